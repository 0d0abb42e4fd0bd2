"""One sample as a page and as data: all of it is there, whatever it holds, and every address leads to it."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from magistrate import Run
from magistrate._text import seen
from magistrate.errors import SpecError
from magistrate.report.html.outcomes import Mark, blocked, blocks_of
from magistrate.server.app import create_app
from magistrate.server.outcomes import ListFilter
from magistrate.server.responses import sample_address
from magistrate.server.samples import CLAIMS_AT_ONCE, STEPS_AT_ONCE, evidence_of, sample_view, steps_of
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.types import Claim, Sample, Span, Step, Usage, Verdict
from reported import CLAIMS, CONTEXT, OUTPUT, outcomes_of, samples_of, stored
from served import served

ODD_IDS = [
    "", ".", "..", "a/b", "a/../b", "/a", "a/", "a//b", "\\", "?x", "#x", "%2F", "%252e", "a&b=c", "a+b c",
    " a ", "steps", "ünï/cö de", "東京", "\x00\n\x1b", "\ud800", "<script>alert(1)</script>", '"onclick=',
    "x" * 3000, "🙂" * 3000,
]  # fmt: skip
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "' autofocus onfocus=alert(1) x='",
    "</textarea></details></li></ol><iframe src=javascript:alert(1)>",
    "<!--",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "\u202eevil\u2066\u2028\x00\x1b[2J\x7f\ufeff\u200b",
]
ASKED = (
    ("system", "You compare."),
    ("user", f"Context:\n[1] {CONTEXT[0]}\n\nAnswer to check: {OUTPUT}\n\nYes or no?"),
)
STEPS = (
    Step("generate", ASKED, {"text": '{"claims": []}', "finish": "stop"}, Usage(1, 900, 300, 80, 20), 1.2),
    Step("choose", ASKED, {"best": "no", "probabilities": {"yes": 0.2, "no": 0.8}}, Usage(1, 950), 0.1),
    Step("likelihood", ASKED, {"text": OUTPUT, "logprobs": [-1.0, -3.0]}, Usage(1, 200), 0.2),
    Step("generate", ASKED, {"error": "InvalidOutput: no JSON", "text": "well"}, Usage(1), 3.0),
)


def opened(run: Run) -> TestClient:
    return TestClient(create_app(Settings(store=run.store)), follow_redirects=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twenty samples by two judges, the first with steps; a third judge has judged none."""
    samples = samples_of(20)
    outcomes = [replace(each, steps=STEPS) for each in outcomes_of(samples)]
    return stored(
        tmp_path_factory.mktemp("run"),
        samples,
        [*outcomes, *outcomes_of(samples, "second")],
        judges=("rubric", "second", "third"),
    )


@pytest.fixture(scope="module")
def store(run: Run) -> Iterator[Store]:
    with Store.open(run.store) as found:
        yield found


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    with opened(run) as found:
        yield found


class Reading(HTMLParser):
    """The elements, the attributes and the words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_data(self, data: str) -> None:
        self.words += data


def links(page: str, rel: str | None = None) -> list[str]:
    """The addresses that links of a page lead to, those of one relation or all."""
    pattern = r'<a [^>]*href="([^"]*)"' if rel is None else rf'<a [^>]*rel="{rel}" href="([^"]*)"'
    return [unescape(found) for found in re.findall(pattern, page)]


# --- what a sample is shown with -------------------------------------------------------------------


def test_every_judge_is_there_and_the_steps_of_the_one_that_is_looked_at(run: Run, store: Store) -> None:
    view = sample_view(store, run.id, "bridge-002", "second")
    assert view.sample == samples_of(20)[2]
    assert view.judges == ("rubric", "second", "third") and view.judge == "second"
    assert [each.judge for each in view.outcomes] == ["rubric", "second"], "the third has no outcome"
    assert [len(each.outcome.steps) for each in view.outcomes] == [0, 0]
    first = sample_view(store, run.id, "bridge-002")
    assert first.judged is not None and first.judged.judge == "rubric" and first.judged.outcome.steps == STEPS
    assert first.judged.right is True
    whole = sample_view(store, run.id, "bridge-002", all_steps=True)
    assert [len(each.outcome.steps) for each in whole.outcomes] == [4, 0]
    assert sample_view(store, run.id, "bridge-002", "third").judged is None


def test_next_goes_through_all_samples_and_previous_back(run: Run, store: Store) -> None:
    ids = [sample.id for sample in samples_of(20)]
    assert walked(store, run, ids[0], ListFilter(), forward=True) == ids
    assert walked(store, run, ids[-1], ListFilter(), forward=False) == ids[::-1]


@pytest.mark.full
@pytest.mark.parametrize(
    "wanted",
    [
        ListFilter(said="hallucinated"),
        ListFilter(right="wrong"),
        ListFilter(truth="faithful"),
        ListFilter(said="faithful", threshold=0.9),
    ],
)
def test_within_a_filter_next_goes_through_what_fits_it(run: Run, store: Store, wanted: ListFilter) -> None:
    with store.snapshot() as moment:
        samples = {each.id: each for each in moment.samples(run.id)}
        fitting = set()
        for each in moment.outcomes(run.id, judge="rubric"):
            if not isinstance(each, Verdict):
                said = None
            elif wanted.threshold is None:
                said = each.label
            else:
                said = "hallucinated" if each.score >= wanted.threshold else "faithful"
            gold = samples[each.sample_id].label
            right = None if said is None else "right" if said == gold else "wrong"
            if wanted.said in (None, said) and wanted.right in (None, right) and wanted.truth in (None, gold):
                fitting.add(each.sample_id)
    assert 2 < len(fitting) < 20
    start = next(each for each in fitting if sample_view(store, run.id, each, wanted=wanted).previous is None)
    forth = walked(store, run, start, wanted, forward=True)
    assert len(forth) == len(fitting) and set(forth) == fitting
    assert walked(store, run, forth[-1], wanted, forward=False) == forth[::-1]


def walked(store: Store, run: Run, start: str, wanted: ListFilter, *, forward: bool) -> list[str]:
    found: list[str] = []
    at: str | None = start
    while at is not None:
        found.append(at)
        assert len(found) <= 20
        view = sample_view(store, run.id, at, wanted=wanted)
        at = view.next if forward else view.previous
    return found


def test_what_is_not_there_is_said(run: Run, store: Store, client: TestClient) -> None:
    with pytest.raises(SpecError, match="has no judge 'thrd'; it has: 'rubric', 'second', 'third'"):
        sample_view(store, run.id, "bridge-002", "thrd")
    for start, kind in (("", "text/html"), ("/api", "application/json")):
        for path, told in (
            (f"{start}/runs/{run.id}/samples/bridge-02", "bridge-002"),
            (f"{start}/runs/{run.id}/sample?id=..", "no sample"),
            (f"{start}/runs/nothere/samples/bridge-002", "nothere"),
            (f"{start}/runs/{run.id}/samples/bridge-002?judge=thrd", "has no judge"),
        ):
            answer = client.get(path)
            assert answer.status_code == 404 and told in unescape(answer.text), path
            assert answer.headers["content-type"].startswith(kind)
        assert client.get(f"{start}/runs/{run.id}/sample").status_code == 422
        assert client.get(f"{start}/runs/{run.id}/sample?id=%ff").status_code == 422
    for claim in ("0", "5", "-1", "x", "9" * 400, "٣"):
        page = client.get(f"/runs/{run.id}/samples/bridge-002", params={"claim": claim})
        assert page.status_code == 200 and "data-chosen" not in page.text


# --- claims and texts ------------------------------------------------------------------------------


def test_of_many_claims_every_one_can_be_chosen_and_each_is_listed_once() -> None:
    n = 5_000
    text = "word " * 8_000
    claims = tuple(
        Claim(
            "agreement",
            Span(at, at + 4),
            Span(0, len(text)),
            0,
            f"because {at}",
            output_text=text[at : at + 4],
        )
        for at in range(n)
    )
    sample = Sample("a", text, (text,))
    verdict = Verdict("a", "j", "faithful", 0.1, claims=claims)
    for number in (1, CLAIMS_AT_ONCE, CLAIMS_AT_ONCE + 1, 4_321, n):
        evidence = evidence_of(sample, verdict, number)
        assert evidence.chosen == number and evidence.n_claims == n
        assert evidence.first <= number <= evidence.last < evidence.first + CLAIMS_AT_ONCE
    firsts = [evidence_of(sample, verdict, number).first for number in range(1, n + 1, CLAIMS_AT_ONCE)]
    lasts = [evidence_of(sample, verdict, number).last for number in range(1, n + 1, CLAIMS_AT_ONCE)]
    assert firsts == [1, *(last + 1 for last in lasts[:-1])] and lasts[-1] == n
    assert evidence_of(sample, verdict, n + 1).chosen is None


def test_a_claim_leads_to_where_its_words_stand() -> None:
    whole = Claim("contradiction", Span(0, 4), Span(0, 7), 0)
    sample = Sample("a", "text", ("context",), label="faithful")
    odd = {
        "output": replace(whole, context_index=7),
        "context": replace(whole, output_quote=Span(2, 2)),
        "claim": Claim("unsupported", Span(40, 50)),
    }
    for side, claim in odd.items():
        found = evidence_of(sample, Verdict("a", "j", "faithful", 0.1, claims=(claim,)), 1)
        (line,) = found.claims
        assert line.anchor == f"{side}-1"
        texts = f"{found.output.body if found.output else ''}{found.sources[0].body}"
        assert (f'id="{side}-1"' in texts) == (side != "claim")
        assert ("chosen" in texts) == (side != "claim")


@given(
    st.text(st.sampled_from("ab \n<&\u202e\u200b\ufeffשם東\U0001f642\u200d\u0301"), max_size=60),
    st.lists(st.tuples(st.integers(-5, 400), st.integers(-5, 400)), max_size=6),
    st.integers(1, 300),
)
def test_nothing_of_a_text_is_lost_and_marks_cover_their_words(
    part: str, places: list[tuple[int, int]], times: int
) -> None:
    text = part * times
    marks = [Mark(start, end, "agreement", "t", n) for n, (start, end) in enumerate(places, 1)]
    found = ElementTree.fromstring(f"<div>{blocked(text, marks, side='output', chosen=1)}</div>")
    assert "".join(found.itertext()) == seen(text)
    assert "".join(text[each.start : each.end] for each in blocks_of(text)) == text
    for mark in marks:
        start, end = max(mark.start, 0), max(min(mark.end, len(text)), 0)
        own = [e for e in found.iter("mark") if str(mark.claim) in e.get("data-claims", "").split()]
        assert "".join(e.text or "" for e in own) == seen(text[start:end])
        assert all(("chosen" in e.get("class", "").split()) >= (mark.claim == 1) for e in own)
        assert len([e for e in found.iter() if e.get("id") == f"output-{mark.claim}"]) == (start < end)
    chosen = "".join(e.text or "" for e in found.iter("mark") if "chosen" in e.get("class", "").split())
    assert chosen == (seen(text[max(places[0][0], 0) : max(places[0][1], 0)]) if places else "")


@pytest.mark.parametrize("line", ["a", "word " * 20, "word " * 5_000, "東" * 30_000, "\n", "👩‍👩‍👧" * 9_000])
def test_a_long_text_is_cut_at_lines_into_blocks_of_about_a_screen(line: str) -> None:
    text = f"{line}\n" * (400_000 // (len(line) + 1))
    blocks = blocks_of(text)
    assert len(blocks) > 10
    for block in blocks:
        assert block.end - block.start <= 13_000 and text.count("\n", block.start, block.end) <= 40
        assert block.cut or block.end == len(text) or text[block.end - 1] == "\n"
        assert text[block.end : block.end + 1] != "\u200d" and text[block.end - 1] != "\u200d"


def test_a_long_context_is_there_as_a_whole(tmp_path: Path) -> None:
    context = "".join(f"{n:07d}\n" for n in range(250_000))
    quote = Claim("agreement", Span(0, 3), Span(1_600_000, 1_600_007), 0, output_text="The")
    sample = Sample("long", OUTPUT, (context,))
    verdict = Verdict("long", "rubric", "faithful", 0.1, claims=(quote,))
    run = stored(tmp_path, [sample], [verdict])
    with opened(run) as client:
        page = client.get(f"/runs/{run.id}/samples/long").text
    assert all(f"{n:07d}\n" in page for n in (0, 124_999, 199_999, 249_999))
    assert (
        '<mark class="agreement" title="claim 1: agreement" data-claims="1" data-begins="1">0200000</mark>'
        in page
    )
    assert page.count('<div class="block">') > 5_000 and "omitted" not in page


def test_100_kb_with_30_claims_takes_less_than_100_ms(tmp_path: Path) -> None:
    context = "".join(f"Line {n} — the bridge at Holm was opened in 1931.\n" for n in range(2_100))
    claims = tuple(
        Claim("contradiction", Span(n, n + 20), Span(3_000 * n, 3_000 * n + 90), 0, "why", 0.9)
        for n in range(30)
    )
    assert len(context) > 100_000
    verdict = Verdict("a", "rubric", "hallucinated", 0.9, claims=claims, steps=STEPS)
    run = stored(tmp_path, [Sample("a", OUTPUT, (context,), label="faithful")], [verdict])
    with opened(run) as client:
        seconds = min(timed(client, f"/runs/{run.id}/samples/a?claim=3") for _ in range(20))
    print(f"a page of a context of 100 kB with 30 claims: {1000 * seconds:.0f} ms")
    assert seconds < 0.1


def timed(client: TestClient, path: str) -> float:
    begin = time.perf_counter()
    assert client.get(path).status_code == 200
    return time.perf_counter() - begin


# --- steps -----------------------------------------------------------------------------------------


def test_texts_of_the_sample_are_told_from_the_words_of_a_prompt() -> None:
    sample = Sample("a", "No.", ("The bridge was opened in 1931. It has two lanes. " * 400,), input="Is it?")
    prompt = (
        f"No. one says.\nContext:\n[1] {sample.context[0]}\n\nQuestion: Is it?\nAnswer: No.\nIs it? Reply."
    )
    (step,) = steps_of(sample, [Step("generate", (("user", prompt),), {"text": "x"}, Usage(), 0.0)])
    ((_, parts),) = step.prompt
    assert sum(len(part.text) + part.left_out + len(part.rest) for part in parts) == len(prompt)
    named = {part.name: part for part in parts if part.name}
    assert [part.name for part in parts if part.name] == ["context", "input", "output"]
    assert named["output"].text == "No." and parts[0].text.startswith("No. one says.")
    assert named["context"].left_out > 15_000, "it stands above"


def test_a_page_has_the_steps_with_what_was_asked_and_what_came_out(run: Run, client: TestClient) -> None:
    page = client.get(f"/runs/{run.id}/samples/bridge-002").text
    words = Reading(page).words
    for each in (
        "You compare.", "Answer to check: ", '{"claims": []}', "no, 80.0%", "0.8000",
        "2 tokens, -2.00 nats each", "went wrong: InvalidOutput: no JSON", "Raw output",
        "read 900 tokens", "from cache 300", "forced 20",
    ):  # fmt: skip
        assert each in words, each
    assert page.count("<details>") == len(STEPS), "and folded"
    assert "Steps" not in Reading(client.get(f"/runs/{run.id}/samples/bridge-002?judge=second").text).words


def test_of_thousands_of_steps_some_are_shown_and_the_data_has_all(tmp_path: Path) -> None:
    sample = samples_of(1)[0]
    verdict = Verdict(sample.id, "rubric", "faithful", 0.1, steps=STEPS * 500)
    run = stored(tmp_path, [sample], [verdict])
    with opened(run) as client:
        page = client.get(f"/runs/{run.id}/samples/{sample.id}").text
        assert f"The first {STEPS_AT_ONCE} are shown" in page and page.count("<details>") == STEPS_AT_ONCE
        (data,) = {link for link in links(page) if link.startswith("/api")}
        assert len(client.get(data).json()["outcomes"][0]["outcome"]["steps"]) == 2_000


# --- addresses -------------------------------------------------------------------------------------


@pytest.mark.full
def test_every_id_has_an_address(tmp_path: Path) -> None:
    samples = [replace(samples_of(1)[0], id=each, metadata={"n": n}) for n, each in enumerate(ODD_IDS)]
    run = stored(tmp_path, samples, [])
    with served(create_app(Settings(store=run.store))) as address, httpx.Client() as client:
        for n, each in enumerate(ODD_IDS):
            data = client.get(f"{address}{sample_address(run.id, each, start='/api')}").json()
            assert data["sample"]["id"] == each and data["position"] == n
        path: str | None = sample_address(run.id, ODD_IDS[0])
        for n, each in enumerate(ODD_IDS):
            assert path is not None
            page = client.get(f"{address}{path}").text
            (told,) = re.findall(r"<h1[^>]*>(.*?)</h1>", page, re.S)
            assert unescape(told) == (seen(each) or "(no id)") and f"{n + 1} of {len(ODD_IDS)}" in page
            path = next(iter(links(page, "next")), None)
        assert path is None


def test_what_the_query_says_goes_along_and_the_claim_does_not(run: Run, client: TestClient) -> None:
    query = "judge=rubric&said=hallucinated&truth=faithful&right=wrong&code=x"
    query += "&order=score&threshold=0.3&flag=agreement&flag=unsupported"
    here = f"/runs/{run.id}/samples/bridge-001"
    page = client.get(f"{here}?{query}&claim=2&evil=1").text
    told = links(page)
    assert f"/runs/{run.id}?{query}" in told
    assert [link for link in told if link.startswith(f"{here}?{query}&claim=")] != []
    assert not [link for link in told if "evil" in link]
    assert "within the filter" in Reading(page).words
    plain = client.get(f"{here}?judge=second&said=&claim=1").text
    assert "within the filter" not in Reading(plain).words
    (following,) = links(plain, "next")
    assert following == f"/runs/{run.id}/samples/bridge-002?judge=second"
    assert client.get(following).status_code == 200


def test_every_link_of_a_page_leads_somewhere(run: Run, client: TestClient) -> None:
    page = client.get(f"/runs/{run.id}/samples/bridge-005?claim=2").text
    ids = {value for name, value in Reading(page).attributes if name == "id"}
    inside = [link.removeprefix("#") for link in links(page) if link.startswith("#")]
    assert len(inside) > 5 and set(inside) <= ids
    others = {link for link in links(page) if f"/runs/{run.id}/sample" in link}
    assert len(others) > 8
    for link in others:
        assert client.get(link).status_code == 200, link
        anchor = link.partition("#")[2]
        assert not anchor or anchor in ids, link


def test_a_claim_is_chosen_by_its_address(run: Run, client: TestClient) -> None:
    page = client.get(f"/runs/{run.id}/samples/bridge-002?claim=2").text
    chosen = re.findall(r'<mark class="[^"]*\bchosen"[^>]*>([^<]*)</mark>', page)
    assert "".join(chosen) == f"{CLAIMS[1].output_text}{CLAIMS[1].context_text}"
    assert page.count('aria-current="true"') == 2, "the judge and the claim"
    assert 'data-chosen="2" data-kind="contradiction"' in page


def test_the_very_same_sample_is_found_in_other_runs(tmp_path: Path) -> None:
    samples = samples_of(2)
    first = stored(tmp_path, samples, outcomes_of(samples), name="first")
    renamed = [replace(each, id=f"../{each.id}?") for each in samples]
    second = stored(tmp_path, renamed, outcomes_of(renamed, "other"), name="second", judges=("other",))
    with opened(first) as client:
        page = client.get(f"/runs/{first.id}/samples/bridge-001").text
        (link,) = [each for each in links(page) if f"/runs/{second.id}/sample" in each]
        found = client.get(link)
        assert found.status_code == 200 and "../bridge-001?" in Reading(found.text).words
        assert [each for each in links(found.text) if f"/runs/{first.id}/samples/bridge-001" in each]


# --- data ------------------------------------------------------------------------------------------


def test_the_data_is_all_that_the_store_has(run: Run, store: Store, client: TestClient) -> None:
    data = client.get(f"/api/runs/{run.id}/samples/bridge-002").json()
    assert data["previous"] == "bridge-001" and data["next"] == "bridge-003"
    assert data["sample"]["output"] == OUTPUT and data["sample"]["context"] == [
        *CONTEXT,
        "Page 2 of the survey.",
    ]
    assert [(each["judge"], each["kind"], each["right"]) for each in data["outcomes"]] == [
        ("rubric", "verdict", True),
        ("second", "verdict", True),
    ]
    assert len(data["outcomes"][0]["outcome"]["claims"]) == len(CLAIMS)
    assert data["outcomes"][0]["outcome"]["steps"][1]["result"] == STEPS[1].result
    kinds = [
        client.get(f"/api/runs/{run.id}/samples/bridge-00{n}").json()["outcomes"][0]["kind"] for n in (7, 8)
    ]
    assert kinds == ["failure", "abstention"]


def test_values_that_json_has_no_word_for_are_texts(tmp_path: Path) -> None:
    sample = Sample("a", "\ud800", metadata={"x": float("nan"), "half": "\udfff", "t": (1,)})
    run = stored(tmp_path, [sample], [])
    with opened(run) as client:
        answer = client.get(f"/api/runs/{run.id}/samples/a")
        page = client.get(f"/runs/{run.id}/samples/a")
    found = json.loads(answer.text, parse_constant=pytest.fail)["sample"]
    assert found["output"] == "\ud800" and found["metadata"] == {"x": "nan", "half": "\udfff", "t": [1]}
    assert page.status_code == 200 and "\ufffd" in page.text


def test_the_document_of_the_api_names_both_addresses(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {"/api/runs/{run_id}/samples/{sample_id}", "/api/runs/{run_id}/sample"} <= paths.keys()


# --- whatever stands in it -------------------------------------------------------------------------


def hostile(text: str, n: int) -> tuple[Sample, Verdict]:
    quoted = Claim("contradiction", Span(0, len(text)), Span(0, len(text)), 0, text, 0.5, text, text)
    heat = {"name": text, "unit": text, "low": 0, "high": 1, "pieces": [[0, len(text), 0.9]]}
    step = Step(
        "choose", ((text, text),), {"best": text, "probabilities": {text: 0.5}, text: text}, Usage(), 0.1
    )
    wrong = Step("generate", ((text, text),), {"error": text, "text": text}, Usage(), 0.1)
    sample = replace(
        samples_of(1)[0],
        id=f"{n}{text}",
        output=text,
        context=(text,),
        input=text,
        expected=text,
        alternatives=(text,),
        label=text,
        spans=(Span(0, len(text), text),),
        metadata={text: text},
    )
    details: dict[str, Any] = {"heat": heat, text: text}
    verdict = Verdict(sample.id, text, text, 0.5, 0.5, text, False, 0.3, (quoted,), details, (step, wrong))
    return sample, verdict


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    pairs = [hostile(text, n) for n, text in enumerate(HOSTILE)]
    samples = [sample for sample, _ in pairs]
    run = stored(tmp_path, samples, [verdict for _, verdict in pairs], name=HOSTILE[0], judges=("rubric",))
    stored(tmp_path, samples, [replace(v, judge=HOSTILE[2]) for _, v in pairs], name=HOSTILE[1], judges=())
    with opened(run) as client:
        bare = Reading(client.get(sample_address(run.id, samples[0].id, judge="rubric")).text)
        for sample, verdict in pairs:
            answer = client.get(
                sample_address(run.id, sample.id, judge=verdict.judge, claim=1, said=sample.output)
            )
            assert answer.status_code == 200, answer.text
            found = Reading(answer.text)
            assert found.tags.count("script") == bare.tags.count("script") == 3
            assert not {"iframe", "img", "textarea", "style", "object", "embed", "base", "form"} & set(
                found.tags
            )
            names = {name for name, _ in found.attributes}
            assert not [
                name for name in names if name.startswith("on") or name in ("style", "autofocus", "srcdoc")
            ]
            refs = [value for name, value in found.attributes if name in ("href", "src")]
            assert all(value.startswith(("/", "#")) for value in refs)
            assert seen(sample.output or "") in found.words
            assert not {"\u202e", "\u2066", "\u2028", "\x00", "\x1b"} & set(answer.text)
            assert client.get(sample_address(run.id, sample.id, start="/api")).status_code == 200


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    bare = Sample("bare", None)
    run = stored(tmp_path, [bare], [], judges=())
    with opened(run) as client:
        words = Reading(client.get(f"/runs/{run.id}/samples/bare").text).words
    for told in ("this run has no judge", "Not produced yet", "There is none", "not labelled", "1 of 1"):
        assert told in words
    samples = samples_of(10)
    run = stored(tmp_path, samples, outcomes_of(samples), status="running")
    with opened(run) as client:
        failed = Reading(client.get(f"/runs/{run.id}/samples/bridge-007").text).words
        declined = Reading(client.get(f"/runs/{run.id}/samples/bridge-008").text).words
    assert "timeout" in failed and "Why it failed" in failed and "no answer in 300 s" in failed
    assert (
        "over_length" in declined
        and "Why it abstained" in declined
        and "40,000 tokens are too many" in declined
    )


def test_an_explanation_that_leads_elsewhere_says_so(tmp_path: Path) -> None:
    sample = samples_of(1)[0]
    verdict = Verdict(sample.id, "rubric", "faithful", 0.123, 0.877, "It is not.", False, 0.42)
    run = stored(tmp_path, [sample], [verdict])
    with opened(run) as client:
        words = Reading(client.get(f"/runs/{run.id}/samples/{sample.id}").text).words
    assert "Explanation, which contradicts the label" in words
    for figure in ("0.123", "0.877", ".42", "wrong"):
        assert figure in words


def test_a_heat_map_is_drawn_where_the_verdict_has_one(tmp_path: Path) -> None:
    sample = replace(samples_of(1)[0], spans=())
    heat = {"name": "doubt", "unit": "nats", "low": 0.0, "high": 3.0, "pieces": [[4, 10, 2.4]]}
    run = stored(tmp_path, [sample], [Verdict(sample.id, "rubric", "faithful", 0.1, details={"heat": heat})])
    with opened(run) as client:
        page = client.get(f"/runs/{run.id}/samples/{sample.id}").text
    assert '<mark class="heat h4" title="2.40 nats">bridge</mark>' in page
    assert '<span>3 nats</span></p>\n<p class="dim told">doubt</p>' in page
