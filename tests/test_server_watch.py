"""What is watched, on the page and as JSON: counts that are lists, shares that may be missing, one trace."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from browsing import HOSTILE
from hostile_store import watched_traces
from magistrate import _async
from magistrate.server import watch
from magistrate.server.app import create_app
from magistrate.server.serve import wrap_app
from magistrate.server.settings import Settings
from magistrate.server.traces import keep_sample, trace_address
from magistrate.store import Store
from magistrate.store.watch_figures import AnswerFilter
from magistrate.types import FAITHFUL, HALLUCINATED, Sample
from magistrate.watch.rates import rates
from postgres import Server
from watched import MANY, NOON, WRONG, Clock, Obedient, answer, mixed, rules, watched_store, watcher


@dataclass(frozen=True)
class Watched:
    """A store in which something is watched, and the clock of all that came."""

    place: str
    clock: Clock

    def open(self) -> Store:
        return Store.open(self.place, clock=self.clock)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def watched_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Ninety answers in three of the last 24 hours, several of them at one moment; three are not read."""
    if request.param == "sqlite":
        place = str(tmp_path_factory.mktemp("watched") / "runs.db")
    else:
        server: Server = request.getfixturevalue("postgres")
        place = server.new_database()
    return Watched(place, watched_store(place))


@pytest.fixture
def there(watched_once: Watched, tmp_path: Path, request: pytest.FixtureRequest) -> Watched:
    """The same, to be changed."""
    if "://" not in watched_once.place:
        place = shutil.copy(watched_once.place, tmp_path / "runs.db")
        return Watched(str(place), Clock(watched_once.clock()))
    server: Server = request.getfixturevalue("postgres")
    place = server.new_database()
    return Watched(place, watched_store(place))


@contextmanager
def client_of(there: Watched) -> Iterator[TestClient]:
    settings = Settings(store=there.place)
    app = create_app(settings)
    app.state.clock = there.clock
    with TestClient(wrap_app(app, settings), base_url="http://localhost") as opened:
        yield opened


@pytest.fixture(scope="module")
def client(watched_once: Watched) -> Iterator[TestClient]:
    with client_of(watched_once) as opened:
        yield opened


@pytest.fixture
def changing(there: Watched) -> Iterator[TestClient]:
    with client_of(there) as opened:
        yield opened


def listed(client: TestClient, address: str) -> list[dict[str, Any]]:
    """All lines of a list, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        view = client.get(f"/api{address}").raise_for_status().json()["listed"]
        found += view["lines"]
        if view["older"] is None:
            return found
        older = client.get(address).text
        (address,) = [unescape(each) for each in re.findall(r'<a href="([^"]+)" rel="next">', older)]


def test_every_count_of_the_funnel_leads_to_as_many_answers_and_they_add_up(client: TestClient) -> None:
    page = client.get("/watch").raise_for_status().text
    rows = re.findall(r'<th scope="row">([\w ]+) <small>.*?<a href="([^"]+)">([\d,]+)</a>', page)
    assert [name for name, _, _ in rows] == [
        *("seen", "filtered", "no output", "about", "sampled out", "drawn", "retrying", "abstained"),
        *("judged", "flagged"),
    ]
    counts = {name: int(n.replace(",", "")) for name, _, n in rows}
    assert {name: len(listed(client, unescape(href))) for name, href, _ in rows} == counts
    assert counts["seen"] == 90 == counts["filtered"] + counts["no output"] + counts["about"]
    assert counts["about"] == counts["sampled out"] + counts["drawn"]
    assert counts["drawn"] == counts["retrying"] + counts["abstained"] + counts["judged"]
    assert 0 < counts["flagged"] < counts["judged"]


def test_shares_are_those_of_the_rates_and_an_hour_without_verdicts_has_none(
    client: TestClient, watched_once: Watched
) -> None:
    view = client.get("/api/watch").raise_for_status().json()
    (rule,) = view["rules"]
    (shares,) = rule["shares"]
    since = NOON - timedelta(hours=20)
    with watched_once.open() as store:
        expected = rates(
            store, "all <b>", "obedient", since=since, until=watched_once.clock(), step=timedelta(hours=1)
        )
    told = [(each["share"]["value"], each["n"], each["of"]) for each in shares["parts"]]
    assert told[:23] == [(each.share.value, each.n, each.of) for each in expected][:23]
    nothing = [each for each in shares["parts"] if not each["n"]]
    assert len(nothing) == 21
    assert {(each["share"]["value"], each["share"]["undefined"]) for each in nothing} == {(None, "no data")}
    assert [each["states"] for each in rule["traffic"][:20]] == [None] * 20, "the rule was not there yet"
    assert sum(sum(each["states"].values()) for each in rule["traffic"][20:]) == 90
    page = client.get("/watch").text
    assert page.count(">no data<") >= 21 and ">–</text>" in page
    assert (view["traces"]["n"], view["traces"]["unread"]) == (93, 3)


def test_of_a_rule_without_verdicts_nothing_is_said_to_be_flagged(tmp_path: Path) -> None:
    clock = Clock()
    with Store.open(tmp_path / "runs.db", clock=clock) as store:
        watcher(store, rules(MANY), clock, Obedient(mixed))
    with TestClient(create_app(Settings(store=str(tmp_path / "runs.db")))) as client:
        page = client.get("/watch").text
    assert 'Flagged</dt><dd><span class="no-data">no data</span>' in re.sub(r"\s*\n\s*", "", page)
    assert "flagged <small>" not in page


def test_where_nothing_is_watched_the_page_says_how_to_begin(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(store=str(tmp_path / "runs.db")))) as client:
        page = client.get("/watch").raise_for_status().text
        assert "magistrate serve --watch rules.yaml" in page and "<svg" not in page
        assert "No rule has decided" in client.get("/watch/traces").raise_for_status().text


def test_many_answers_are_counted_aside(
    client: TestClient, watched_once: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOST_COUNTED", 10)
    direct = client.get("/api/watch").json()["rules"][0]
    found = direct
    for _ in range(2000):
        found = client.get("/api/watch").json()["rules"][0]
        if not found["pending"]:
            break
    assert found["shares"] and found["shares"][0]["whole"]["n"] > 0 and found["refused"] is None
    assert found["shares_until"] <= watched_once.clock().isoformat()
    assert "data-again" not in client.get("/watch").text


# --- the list -----------------------------------------------------------------------------------


def test_a_list_goes_on_where_it_was_left_whatever_came_at_one_moment(client: TestClient) -> None:
    lines = listed(client, "/watch/traces")
    assert len(lines) == 90 == len({line["target"] for line in lines})
    moments = [line["seen_at"] for line in lines]
    assert moments == sorted(moments, reverse=True) and len(set(moments)) == 3
    assert client.get("/api/watch/traces").json()["n"] == 90


def test_answers_are_found_by_state_label_time_and_text(client: TestClient) -> None:
    everything = listed(client, "/watch/traces")
    wrong = [each for each in everything if each["asked"] and each["asked"][-1].get("label") == HALLUCINATED]
    cases = {
        "state=no_output": [each for each in everything if each["state"] == "no_output"],
        "state=retrying&words=HARD": [each for each in everything if each["state"] == "retrying"],
        f"label={HALLUCINATED}": wrong,
        f"label={HALLUCINATED}&judge=obedient": wrong,
        f"label={HALLUCINATED}&judge=nobody": [],
        "label=hallu%25": [],
        "words=%C3%A4gypten": [each for each in everything if "ÄGYPTEN" in str(each["output"])],
        "words=how many PEOPLE&state=judged": [each for each in everything if each["state"] == "judged"],
        "words=%27 or 1=1 --": [],
        "words=%25": [],
        "rule=nobody": [],
        "rule=all <b>": everything,
        "since=2026-11-21T13:00:00&until=2026-11-21T14:00": [
            each for each in everything if "T13:" in each["seen_at"]
        ],
    }
    for query, expected in cases.items():
        assert [each["target"] for each in listed(client, f"/watch/traces?{query}")] == [
            each["target"] for each in expected
        ], query
    unread = client.get("/api/watch/traces?state=unread").json()
    assert (len(unread["unread"]), unread["n"]) == (3, 3)


def test_a_search_that_came_to_its_bound_says_how_far_and_goes_on(
    client: TestClient, watched_once: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magistrate.store.watch_figures.MOST_LOOKED", 20)
    monkeypatch.setattr("magistrate.store.watch_figures.LOOKED_AT_ONCE", 10)
    with watched_once.open() as store, store.snapshot() as moment:
        nothing = moment.answers_where(AnswerFilter(words="nowhere"), limit=5)
        assert (nothing.lines, nothing.looked) == ((), 20) and nothing.older is not None
    assert "0 found among the 20 that were looked at; there are older ones" in (
        client.get("/watch/traces?words=nowhere").text
    )
    assert len(listed(client, "/watch/traces?words=hard")) == 15


def test_what_cannot_be_asked_is_refused(client: TestClient) -> None:
    far = (
        '{"seen_at":"0001-01-01T00:00:00+23:00","target":"'
        + "a" * 64
        + '","rule":"","version":1,"revision":1}'
    )
    for query in ("since=x", "until=0001-01-01T00:00:00%2B23:00", "state=gone", "after=1", f"after={far}"):
        for start in ("", "/api"):
            found = client.get(f"{start}/watch/traces?{query}")
            assert found.status_code == 422, (query, found.text)
    assert client.get("/watch?period=year").status_code == 422
    assert client.get("/watch/trace?id=nothing").status_code == 404 == client.get("/watch/trace").status_code


# --- one trace ----------------------------------------------------------------------------------


def flagged(client: TestClient) -> dict[str, Any]:
    return listed(client, f"/watch/traces?label={HALLUCINATED}")[0]


def test_a_trace_shows_the_sample_both_quotes_and_where_each_part_came_from(client: TestClient) -> None:
    line = flagged(client)
    page = client.get(f"/watch/trace?id={line['trace_id']}&claim=1").raise_for_status().text
    output, context = re.findall(r'<mark class="contradiction chosen"[^>]*>([^<]+)</mark>', page)
    assert (output, context) == ("999,999", "134,000")
    for part, span, key in (("input", 1, "input.value"), ("context", 2, "retrieval.documents")):
        row = rf'<th scope="row">{part}</th><td><a href="#span-{span}">\w+</a></td><td><code>{key}'
        assert re.search(row, page), part
    assert (
        '<li class="level-0 taken" id="span-1">' in page and '<li class="level-1 taken" id="span-2">' in page
    )
    run = re.search(r'<a href="(/runs/[^"]+)">in its run', page)
    assert run and client.get(unescape(run[1])).status_code == 200
    data = client.get(f"/api/watch/trace?id={line['trace_id']}").json()
    assert (data["outcome"]["label"], data["decision"]["inclusion"]) == (HALLUCINATED, 0.6)
    assert data["sample"]["output"] == WRONG and len(data["spans"]) == 2


def test_a_trace_without_a_verdict_says_why_and_one_that_nobody_read_says_so(client: TestClient) -> None:
    for state, words in (
        ("no_output", "No answer text was recorded"),
        ("retrying", "engine_error"),
        ("sampled_out", "not sampled"),
        ("abstained", "cannot tell"),
    ):
        line = listed(client, f"/watch/traces?state={state}")[0]
        page = client.get(f"/watch/trace?id={line['trace_id']}").raise_for_status().text
        assert words in page or "rate_limited" in page, state
        assert "judged hallucinated" not in page and "judged faithful" not in page, state
    unread = client.get("/api/watch/traces?state=unread").json()["unread"][0]
    page = client.get(f"/watch/trace?id={unread['trace_id']}").raise_for_status().text
    assert "it has not been read yet" in page and "<form" not in page.split("<main")[1]


def test_a_sample_is_added_to_a_data_set_once(changing: TestClient, there: Watched) -> None:
    lines = listed(changing, f"/watch/traces?label={HALLUCINATED}")[:2]
    for n, line in enumerate([*lines, lines[0]]):
        form = {"id": line["trace_id"], "target": line["target"], "rule": line["rule"], "name": "wrong ones"}
        answer = changing.post("/watch/trace/keep", data=form, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        page = changing.get(answer.headers["location"]).text
        assert f"wrong ones@{min(n + 1, 2)}" in page
    with there.open() as store:
        assert [each.n_samples for each in store.dataset_versions("wrong ones")] == [1, 2]
        kept = list(store.dataset_samples(store.find_dataset("wrong ones").digest))
    assert [each.id for each in kept] == [f"{line['trace_id']}.{'a' * 16}" for line in lines]
    assert {(each.output, each.context, each.label) for each in kept} == {
        (WRONG, ("Bern has 134,000 people.",), None)
    }


def test_what_another_program_adds_meanwhile_stays(there: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Store.add_dataset

    def with_another(store: Store, name: str, samples: Any, *, source: str, by: str | None = None) -> Any:
        monkeypatch.setattr(Store, "add_dataset", add)
        add(store, name, [*store.dataset_samples(first.digest), Sample("theirs", "b")], source="them")
        return add(store, name, samples, source=source, by=by)

    with there.open() as store:
        first = store.add_dataset("both", [Sample("first", "a")], source="a test")
        monkeypatch.setattr(Store, "add_dataset", with_another)
        made = keep_sample(store, "both", Sample("mine", "c"))
        assert [each.id for each in store.dataset_samples(made.digest)] == ["first", "theirs", "mine"]


def test_another_site_cannot_keep_anything_and_a_bad_name_is_refused(
    changing: TestClient, there: Watched
) -> None:
    line = flagged(changing)
    form = {"id": line["trace_id"], "target": line["target"], "name": "stolen"}
    forged = changing.post("/watch/trace/keep", data=form, headers={"sec-fetch-site": "cross-site"})
    assert forged.status_code == 403
    assert changing.post("/watch/trace/keep", data={**form, "name": "../x"}).status_code == 422
    empty = listed(changing, "/watch/traces?state=no_output")[0]
    nothing = {"id": empty["trace_id"], "target": empty["target"], "name": "nothing"}
    assert changing.post("/watch/trace/keep", data=nothing).status_code == 404
    with there.open() as store:
        assert store.dataset_versions() == []


def test_a_later_revision_and_the_one_before_are_both_to_be_seen(
    changing: TestClient, there: Watched
) -> None:
    line = flagged(changing)
    number = int(line["trace_id"], 16)
    with there.open() as store:
        root, search = answer(number, "Bern has 134,000 people.", begin=NOON, user="a")
        there.clock.pass_(minutes=5)
        store.traces.put([replace(root, attributes=root.attributes | {"late": 1}), search], there.clock())
        worker = watcher(store, rules(MANY), there.clock, Obedient(mixed))
        there.clock.pass_(seconds=20)
        _async.run(worker.drain())
    data = changing.get(f"/api/watch/trace?id={line['trace_id']}").json()
    assert [each["state"] for each in data["decisions"]] == ["judged", "superseded"]
    assert data["outcome"]["label"] == FAITHFUL and data["sample"]["output"] != WRONG
    page = changing.get(f"/watch/trace?id={line['trace_id']}").text
    earlier = [unescape(each) for each in re.findall(r'<a href="([^"]+revision=1)">', page)]
    assert len(earlier) == 1
    assert "999,999" in changing.get(earlier[0]).text


# --- hostile texts ------------------------------------------------------------------------------


class _Elements(HTMLParser):
    """What a page holds that only its author may put there."""

    def __init__(self) -> None:
        super().__init__()
        self.strange: list[str] = []
        self.text = ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        never = ("iframe", "img", "object", "embed", "base", "style", "marquee")
        led = [given[name] for name in ("href", "src", "action") if name in given]
        if (
            tag in never
            or (tag == "script" and not given.get("src", "").startswith("/static/"))
            or any(name.startswith("on") or name in ("style", "srcdoc", "autofocus") for name in given)
            or not all(each.startswith(("/", "#", "?")) and not each.startswith("//") for each in led)
        ):
            self.strange.append(f"{tag} {given}")


def test_hostile_texts_stay_texts_on_every_page(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs.db") as store:
        trace = watched_traces(store, itertools.cycle(HOSTILE).__next__)
    with TestClient(create_app(Settings(store=str(tmp_path / "runs.db")))) as client:
        lists = ["/watch/traces", "/watch/traces?state=unread", "/watch/traces?words=%3Cscript%3E%22"]
        found = [re.findall(r'<a class="id" href="([^"]+)"', client.get(each).text) for each in lists]
        assert (len(found[0]), len(found[1])) == (24, 1)
        traces = [unescape(each) for each in [*found[0][:8], *found[1]]]
        chosen = trace_address(trace, claim=1)
        odd = "/watch/traces?rule=%22%3E%3Cscript%3E&label=%3Cimg%20src=x%3E&judge='&since=&state="
        for path in ("/watch", "/watch?period=7d&label=%3Cb%3E", *lists, odd, *traces, chosen):
            page = client.get(path)
            assert page.status_code == 200, (path, page.text[-500:])
            parser = _Elements()
            parser.feed(page.text)
            assert parser.strange == [], path
            unseen = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
            assert not re.search(unseen, parser.text), path
        assert '<mark class="contradiction chosen"' in client.get(chosen).text
        for path in ("/api/watch", "/api/watch/traces", f"/api{chosen}"):
            assert client.get(path).raise_for_status().headers["content-type"] == "application/json"
