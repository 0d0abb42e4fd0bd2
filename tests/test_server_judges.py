"""The pages of judges and models and their API: what is there, what each needs, how good it is."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html import unescape
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from asked import an_app
from magistrate._text import decimal
from magistrate.engines import models
from magistrate.judges import registry
from magistrate.judges.quality import measured
from magistrate.report.judges import facts
from magistrate.server.judges import GROUPS
from terminal import Call

INSTALLED = sorted(registry.judge_entries())
QUICK = 0.1  # seconds


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(an_app(tmp_path)) as opened:
        yield opened


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges of other packages, none of which can be loaded."""
    broken = {
        "absent": "no_such_package.at_all:Judge",
        "<img src=x>": "magistrate.judges:NoSuchJudge",
        "twice": "magistrate.judges.context_slice:read",
    }
    known = dict(registry.judge_entries())
    known |= {name: EntryPoint(name, value, registry.JUDGES) for name, value in broken.items()}
    for place in ("magistrate.judges.registry", "magistrate.judges.registry"):
        monkeypatch.setattr(f"{place}.judge_entries", lambda: known)


def words(page: str) -> str:
    """What a reader sees."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.partition("<main")[2])).split())


# --- all of them --------------------------------------------------------------------------------


def test_every_installed_judge_is_listed_once_in_a_group_and_the_default_first(client: TestClient) -> None:
    view = client.get("/api/judges").json()
    assert sorted(each["name"] for each in view["judges"]) == INSTALLED
    assert (view["judges"][0]["name"], view["judges"][0]["default"]) == (registry.DEFAULT_JUDGE, True)
    assert [each["name"] for each in view["judges"] if each["default"]] == [registry.DEFAULT_JUDGE]
    assert {each["group"] for each in view["judges"]} <= set(GROUPS)
    page = client.get("/judges").text
    assert sorted(re.findall(r'<h3><a href="/judges/([^"]+)">', page)) == INSTALLED
    assert page.count('<span class="tag">default</span>') == 1


def test_the_list_says_what_each_reads_and_needs_and_how_good_it_is(client: TestClient) -> None:
    lines = {each["name"]: each for each in client.get("/api/judges").json()["judges"]}
    for name in INSTALLED:
        info, line = registry.judge(name).info, lines[name]
        assert (line["summary"], line["kind"], line["version"]) == (info.summary, info.kind, info.version)
        assert (tuple(line["reads"]), tuple(line["needs"])) == (info.reads, tuple(sorted(info.needs)))
        assert (line["lacks"], line["asked_here"]) == (info.lacks, not info.lacks)
    headline = lines["novelty"]["headline"]
    rows = measured(registry.judge("novelty"))
    assert headline["sets"] == len(rows) and headline["n"] == sum(each.n for each in rows)
    assert lines["exact"]["headline"] is None
    shown = words(client.get("/judges").text)
    assert f"{decimal(headline['auroc'])} AUROC" in shown
    assert "reads context, messages?, input?, output" in shown
    assert "explain=none" in shown and "needs setup" in shown


def test_a_judge_that_cannot_be_loaded_is_listed_with_the_reason(client: TestClient, others: None) -> None:
    lines = {each["name"]: each for each in client.get("/api/judges").json()["judges"]}
    assert "No module named 'no_such_package'" in lines["absent"]["error"]
    assert {"absent", "<img src=x>", "twice"} == {name for name, each in lines.items() if each["error"]}
    page = client.get("/judges").text
    assert "Cannot be loaded" in page and "No module named" in page and "<img" not in page
    detail = client.get("/judges/absent")
    assert detail.status_code == 200 and "No module named" in detail.text
    assert "&lt;img src=x&gt;" in client.get("/judges/%3Cimg%20src=x%3E").text
    assert client.get("/api/judges/absent").json()["error"] == lines["absent"]["error"]
    assert "absent" not in re.findall(r'<option value="([^"]*)"', client.get("/try").text)


# --- one of them --------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("name", INSTALLED)
def test_a_page_says_of_a_judge_what_the_command_line_says(client: TestClient, name: str) -> None:
    told = facts(registry.judge(name))
    view = client.get(f"/api/judges/{name}").json()
    line = view["line"]
    for key in ("summary", "kind", "direction", "labels", "reads", "requires", "needs", "options", "lacks"):
        assert line[key] == told[key]
    for key in ("long", "prompt", "constraint", "trained_on", "card"):
        assert view[key] == told[key]
    assert [{**each, "auroc": None, "balanced_accuracy": None} for each in view["measured"]] == [
        {**each, "auroc": None, "balanced_accuracy": None} for each in told["measured"]
    ]
    page = words(client.get(f"/judges/{name}").text)
    assert told["summary"] in page
    for each in told["labels"]:
        assert each in page
    for each in told["options"]:
        assert each in page
    for each in told["measured"]:
        assert f"{each['set']} " in page or f"{each['set']}*" in page
        assert f"[{decimal(each['auroc'][1])}, {decimal(each['auroc'][2])}]" in page
    if told["lacks"]:
        assert " ".join(told["lacks"].split()) in page and "Try it" not in page


def test_what_a_model_may_answer_is_shown(client: TestClient) -> None:
    assert "answered by Yes yes YES" in words(client.get("/judges/faithfulness").text)
    asks = client.get("/api/judges/faithfulness").json()["asks"]
    assert [each["label"] for each in asks["labels"]] == ["faithful", "hallucinated"]


@pytest.mark.parametrize("name", ["faithfullness", "%00", "..%2f..%2fetc%2fpasswd", "<script>", "mine.yaml"])
def test_a_judge_that_nobody_knows_is_not_found(client: TestClient, home: Path, name: str) -> None:
    (home.parent / "mine.yaml").write_text("kind: classify\n", encoding="utf-8")
    page, data = client.get(f"/judges/{name}"), client.get(f"/api/judges/{name}")
    assert (page.status_code, data.status_code) == (404, 404)
    assert "<script>" not in page.text
    if name == "faithfullness":
        assert "did you mean 'faithfulness'" in unescape(page.text)


# --- models -------------------------------------------------------------------------------------


def test_the_catalogue_is_shown_with_what_is_here_and_how_to_bring_the_rest(
    client: TestClient, home: Path
) -> None:
    view = client.get("/api/models").json()
    assert [each["name"] for each in view["models"]] == [each.name for each in models.entries()]
    assert not any(each["weights"] for each in view["models"])  # this home is empty
    assert not home.exists()
    page = words(client.get("/models").text)
    assert "magistrate models pull detector-large" in page
    for each in models.entries():
        assert f"magistrate models pull {each.name}" in page
        assert each.licence in page and f"{each.size / 1e6:,.0f} MB" in page and str(each.source) in page
    assert {each["name"] for each in view["extras"]} >= {"local", "hub"}


def test_a_model_that_was_pulled_can_be_chosen(client: TestClient, model_folder: Path) -> None:
    usual = models.default().name
    (line,) = [each for each in client.get("/api/models").json()["models"] if each["default"]]
    assert (line["name"], line["weights"]) == (usual, ["q8"])
    page = words(client.get("/models").text)
    assert "installed as q8" in page and f"models pull {usual}" not in page
    assert "not installed" not in words(client.get("/try").text)


# --- all of these -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/judges", "/judges/auto", "/models", "/try", "/api/judges", "/api/judges/auto", "/api/models"]
)
def test_a_page_takes_less_than_a_tenth_of_a_second(client: TestClient, path: str) -> None:
    def taken() -> float:
        start = time.perf_counter()
        assert client.get(path).status_code == 200
        return time.perf_counter() - start

    taken()  # imports the judges
    assert min(taken() for _ in range(5)) < QUICK


def test_the_command_line_still_says_the_same(call: Call, client: TestClient) -> None:
    listed: list[dict[str, Any]] = call("judges", "--json").data
    lines = {each["name"]: each for each in client.get("/api/judges").json()["judges"]}
    assert {each["name"]: each["options"] for each in listed} == {
        name: each["options"] for name, each in lines.items()
    }
