"""Rules on the page: what each did, edits that workers take over, and what an edit may not name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from browsing import HOSTILE
from magistrate import _async
from magistrate.server.app import create_app
from magistrate.server.serve import wrap_app
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.watch.rules import Rule
from magistrate.watch.worker import Watcher
from watched import Clock, Obedient, answer, rules, watcher

TEXT = "name: all\njudges: [novelty]\nbudget: {day: {calls: 9}}"


class Site:
    """The pages over a store with a rules file, and a worker beside them."""

    def __init__(self, place: str, *texts: str) -> None:
        self.place, self.clock, self.judge = place, Clock(), Obedient(lambda _: 0.9)
        self.store = Store.open(place, clock=self.clock)
        self.worker: Watcher = watcher(self.store, rules(*texts), self.clock, self.judge)
        self.serve(*rules(*texts))

    def serve(self, *these: Rule) -> None:
        settings = Settings(store=self.place, watch=True, rules=these)
        app = create_app(settings)
        app.state.clock = self.clock
        # Not entered: the server's own worker stays away, the one of the test judges.
        self.client = TestClient(wrap_app(app, settings), base_url="http://localhost")

    def post(self, do: str, text: str = "", newest: int = 0, name: str = "all", status: int = 200) -> str:
        form = {"name": name, "do": do, "text": text, "newest": newest}
        answered = self.client.post("/watch/rule", data=form)
        assert answered.status_code == status, (do, text, answered.status_code, answered.text[-1500:])
        return unescape(answered.text)

    def come(self, *numbers: int) -> dict[str, int]:
        """Judge what comes, and return how all was decided."""
        for number in numbers:
            self.store.traces.put(answer(number), self.clock())
        self.clock.pass_(seconds=10)
        _async.run(self.worker.drain())
        return self.store.traces.counts("all")


@pytest.fixture
def site(place: str) -> Iterator[Site]:
    found = Site(place, TEXT)
    yield found
    found.store.close()


def test_an_edit_holds_from_the_next_step_until_the_file_changes(site: Site) -> None:
    assert site.come(1, 2) == {"judged": 2}
    page = unescape(site.client.get("/watch/rules").raise_for_status().text)
    assert "2 judged" in page and "2 of 9 calls" in page and ">on<" in page
    text = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", site.client.get("/watch/rule?name=all").text, re.S)
    assert text is not None and "judge: novelty" in text[1]
    edited = text[1] + "\nwhere: {user: b}  # for now\n"
    assert "Saved" in site.post("save", edited)
    assert site.come(3) == {"filtered": 1, "judged": 2}
    record = site.store.traces.rule("all")
    assert record is not None and record.version == 2 and record.spec["where"] == {"user": {"equals": "b"}}
    assert "# for now" in site.client.get("/watch/rule?name=all").text
    assert "meanwhile" in site.post("save", text[1], status=409), "a revision that was not seen is not lost"
    site.post("off", newest=1)
    assert "Off:" in site.client.get("/watch/rule?name=all").text
    assert site.come(4) == {"filtered": 1, "judged": 2}, "a rule that is off decides nothing"
    site.post("on", newest=2)
    noted = [each.details for each in site.store.audit.entries(limit=9) if each.action == "change rule"]
    assert noted == ["revision 3, on", "revision 2, off", "revision 1, on"]
    assert site.come() == {"filtered": 2, "judged": 2}, "and makes up for it later"
    assert [each.enabled for each in site.store.rule_edits.history("all")] == [True, False, True]
    assert "# for now" not in site.client.get("/watch/rule?name=all&revision=0").text
    assert site.client.get("/watch/rule?name=all&revision=9").status_code == 404

    (later,) = rules(TEXT + "\nsample: .5")
    site.serve(later)
    page = site.client.get("/watch/rule?name=all").text
    assert "It is as in the rules file" in page and "replaced: the rule was changed in the file" in page
    site.worker = watcher(site.store, [later], site.clock, site.judge)
    record = site.store.traces.rule("all")
    assert record is not None and record.spec["sample"] == {"rate": 0.5} and "where" not in record.spec


def test_a_rule_that_is_off_loses_no_calls(place: str) -> None:
    """What the other rule has read meanwhile is about answers only, but calls are noted too."""
    site = Site(place, TEXT, "name: calls\ntarget: call\njudges: [novelty]")
    asked = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "134,000"}
    asked |= {"openinference.span.kind": "LLM", "output.value": "Bern has 134,000 people."}

    def come(number: int, span: str, **attributes: str) -> dict[str, int]:
        chain, _ = answer(number)
        late = replace(chain, span_id=span * 16, parent_id=chain.span_id, attributes=attributes)
        site.store.traces.put([chain, late], site.clock())
        site.clock.pass_(seconds=400)
        _async.run(site.worker.drain())
        return site.store.traces.counts("calls")

    with site.store:
        assert come(1, "c", **asked) == {"judged": 1}
        site.post("off", name="calls")
        assert come(2, "c", **asked) == {"judged": 1}
        assert come(1, "d") == {"judged": 1}, "a later span supersedes nothing"
        site.post("on", name="calls", newest=1)
        assert site.come() and site.store.traces.counts("calls") == {"judged": 2}


def test_what_is_wrong_is_told_with_its_line_and_nothing_is_saved(site: Site) -> None:
    wrong = {
        "name: all\njudges: [novelty]\nsampel: .5": "rule, line 3, sampel: unknown key; did you mean",
        "name: all\njudges:\n  - novelty\n  - judge: nowhere": "rule, line 4, judges.1.judge: unknown judge",
        "name: all\njudges: [novelty]\nsample:\n  rate: 2": "rule, line 4, sample.rate: must be at most 1",
        "name: other\njudges: [novelty]": "rule, line 1, name: stays 'all'",
        "name: [": "rule, line 1: not YAML",
        "name: all\njudges: [novelty, novelty]": "is given twice",
    }
    for text, told in wrong.items():
        for do in ("check", "save", "estimate"):
            assert told in site.post(do, text, status=422), (text, do)
    assert "can be read" in site.post("check", TEXT)
    site.post("burn", TEXT, status=422)
    site.post("save", TEXT, name="unknown", status=422)
    assert site.store.rule_edits.newest() == {}


def test_an_edit_names_no_code_no_file_no_model_and_no_address(
    place: str, tmp_path: Path, home: Path
) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", encoding="utf-8")
    of_file = "judge: 'faithfulness:permute=true'\n    model: 'm.gguf'\n    price: 1/2"
    site = Site(place, "name: all\njudges:\n  - " + of_file)
    refused = [
        *(f"judge: {evil}:Judge", f"judge: {tmp_path}/a.yaml", f"judge: detector:{tmp_path}"),
        *(
            f"judge: 'jury:members=novelty+({evil}:Judge)'",
            f"judge: 'jury:members=novelty+({tmp_path}/a.yaml)'",
        ),
        "judge: novelty\n    base_url: http://192.0.2.1/v1",
        "judge: novelty\n    model: other.gguf",
        "judge: 'faithfulness:permute=true'\n    model: 'm.gguf'\n    price: 1/3",
        "judge: 'faithfulness:permute=true'\n    model: 'openai:gpt'\n    price: 1/2",
    ]
    for part in refused:
        for do in ("check", "estimate", "save"):
            assert "rule, line 3" in site.post(do, f"name: all\njudges:\n  - {part}", status=422), part
    assert not (tmp_path / "ran").exists() and site.store.rule_edits.newest() == {}
    for part in (of_file, "novelty", "faithfulness"):
        assert "can be read" in site.post("check", f"name: all\njudges:\n  - {part}\nsample: .1")
    told = site.post("save", "name: all\njudges: [faithfulness]", status=422)
    assert "models pull" in told, "a judge that cannot be made would keep workers from starting"
    site.store.close()


def test_an_estimate_counts_what_the_text_would_decide(site: Site) -> None:
    site.come(1, 2, 3)
    assert "There are no answers of the last 7 days" in site.post("estimate", TEXT)
    page = site.post("estimate", "name: all\njudges: [novelty]\nwhere: {user: b}")
    assert "3 filtered" in page and "to be judged" not in page.partition("</h2>")[2].partition("</p>")[0]
    page = re.sub(r"\s*\n\s*", "", site.post("estimate", "name: all\njudges: [{judge: novelty}]\nquiet: 1m"))
    assert "3 to be judged" in page and ">novelty</th>" in page and "<td>3</td><td>0</td>" in page
    assert site.store.traces.counts("all") == {"judged": 3} and site.store.rule_edits.newest() == {}


def test_hostile_names_and_texts_stay_texts_and_other_sites_change_nothing(tmp_path: Path) -> None:
    name = next(each for each in HOSTILE if "<" in each)[:90]
    site = Site(str(tmp_path / "runs.db"), TEXT)
    (rule,) = rules(TEXT)
    site.serve(rule.model_copy(update={"name": name}))
    text = f"name: all\njudges: [novelty]\nwhere: {{'{name[:20]}</textarea>': 1}}"
    pages = [site.client.get("/watch/rules").text, site.client.get("/watch/rule", params={"name": name}).text]
    pages.append(site.client.post("/watch/rule", data={"name": name, "do": "check", "text": text}).text)
    for page in pages:
        assert "<script>" not in page.replace('<script src="/static/', "")
        assert page.count("</textarea>") == page.count("<textarea") and "<img" not in page
    forged = {"name": name, "do": "off"}
    assert (
        site.client.post("/watch/rule", data=forged, headers={"sec-fetch-site": "cross-site"}).status_code
        == 403
    )
    assert site.store.rule_edits.newest() == {}
    site.store.close()
