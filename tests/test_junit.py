"""The document for CI servers: what they read, and that nothing foreign can break it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate import ScriptedEngine
from magistrate.errors import EngineError, EngineGone, SpecError
from magistrate.report import RunFacts, summarize
from magistrate.report.export import fresh, junit
from magistrate.report.gates import GateResult
from magistrate.types import Prompt, Sample, Verdict
from terminal import Call

# What Jenkins' junit-10.xsd allows: attributes (the first ones are required) and children, in their order.
ELEMENTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "testsuites": (("time", "tests", "failures", "errors"), ("testsuite",)),
    "testsuite": (("name", "tests", "failures", "errors", "time", "skipped"), ("properties", "testcase")),
    "properties": ((), ("property",)),
    "property": (("name", "value"), ()),
    "testcase": (("name", "classname", "time"), ("failure", "error", "system-out")),
    "failure": (("message", "type"), ()),
    "error": (("message", "type"), ()),
    "system-out": ((), ()),
}


def checked(document: bytes) -> ElementTree.Element:
    """The root of a document that keeps to the schema, its counts included."""
    root = ElementTree.fromstring(document)
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, children = ELEMENTS[element.tag]
        assert set(element.attrib) == set(attributes), element.tag
        order = [children.index(child.tag) for child in element]
        assert order == sorted(order)
        if element.tag == "testcase":
            assert len(element) <= 1
    for element in (root, *root.findall("testsuite")):
        assert int(element.attrib["tests"]) == len(list(element.iter("testcase")))
        assert int(element.attrib["failures"]) == len(list(element.iter("failure")))
        assert int(element.attrib["errors"]) == len(list(element.iter("error")))
    return root


def report_of(name: str = "r", judge: str = "j", status: str = "done") -> Any:
    samples = {"a": Sample("a", "x", label="faithful")}
    return summarize(
        RunFacts(name, name, name, status, 1, 2.5), samples, [Verdict("a", judge, "faithful", 0.1)], {}
    )


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=30), st.text(max_size=30))
def test_any_text_is_written_so_that_it_can_be_read_again(hostile: str, other: str) -> None:
    gates = [GateResult(hostile, other, False, hostile), GateResult(other, hostile, True, other)]
    root = checked(junit(report_of(hostile, other), gates, error=hostile))
    assert len(root.findall(".//failure")) == len(root.findall(".//error")) == 1


def test_markup_and_control_characters_are_harmless() -> None:
    evil = "]]><testcase name='x'/>&amp;\x00\x1b[2J\ud800\uffff"
    root = checked(junit(report_of(), [GateResult(evil, "j", False, evil)]))
    (failure,) = root.findall(".//failure")
    assert (
        failure.text == "]]><testcase name='x'/>&amp;\u2400\u241b[2J\ufffd\ufffd" == failure.attrib["message"]
    )


def test_a_case_a_gate_and_judge_and_one_for_how_the_run_ended() -> None:
    gates = [
        GateResult("f1>=0.7", "j", False, "f1 is low"),
        GateResult("coverage>=1", "j", True, "all there"),
    ]
    root = checked(junit(report_of(), gates, max_failures=1))
    names = [
        (case.attrib["classname"], case.attrib["name"], [child.tag for child in case])
        for case in root.iter("testcase")
    ]
    assert names == [
        ("magistrate", "the run is finished", []),
        ("magistrate", "max-failures 1", []),
        ("magistrate", "every judge gives a verdict", []),
        ("magistrate.j", "f1>=0.7", ["failure"]),
        ("magistrate.j", "coverage>=1", ["system-out"]),
    ]
    unfinished = checked(junit(report_of(status="interrupted"), []))
    assert len(list(unfinished.iter("testcase"))) == 2  # no limit is known, so that none could be passed
    assert "the run is interrupted" in str(unfinished.find(".//error[@message]").attrib)  # type: ignore[union-attr]


def test_a_pipe_is_no_earlier_document_and_what_cannot_be_taken_away_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, file, link = tmp_path / "pipe", tmp_path / "junit.xml", tmp_path / "stdout"
    os.mkfifo(pipe)
    file.write_text("of an earlier run")
    link.symlink_to(file)
    for each in (pipe, link):
        fresh(each)
    assert pipe.exists() and link.is_symlink() and file.read_bytes() == b""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(SpecError, match=r"cannot write .*junit\.xml: Permission denied"):
        fresh(file)


# --- at the command line --------------------------------------------------------------------------


@pytest.fixture
def rows(home: Path) -> str:
    lines = [{"output": f"true {at}", "context": f"c{at}", "label": "faithful"} for at in range(40)]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return "rows.jsonl"


def engine_of(monkeypatch: pytest.MonkeyPatch, script: Any, **options: Any) -> None:
    engine = ScriptedEngine(script, name="script", **options)
    monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: engine)


def test_the_document_is_written_whether_gates_pass_or_not(
    call: Call, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_of(monkeypatch, lambda prompt: {"faithful": 1.0})
    done = call(
        "run",
        rows,
        "--gate",
        "accuracy>=0.9",
        "--gate",
        "auroc>=0.5",
        "--junit",
        "junit.xml",
        "--judge",
        "faithfulness",
    )
    root = checked(Path("junit.xml").read_bytes())
    assert done.code == 1 and root.attrib["failures"] == "1" and root.attrib["tests"] == "5"
    assert "auroc could not be measured" in root.find(".//failure").attrib["message"]  # type: ignore[union-attr]
    assert [each.attrib["value"] for each in root.iter("property") if each.attrib["name"] == "samples"] == [
        "40"
    ]
    shown = call("show", "last", "--gate", "accuracy>=0.9", "--junit", "junit.xml")
    assert shown.code == 0 and checked(Path("junit.xml").read_bytes()).attrib["failures"] == "0"
    assert call("run", rows, "--junit", "no/where.xml", "--judge", "faithfulness").code == 2
    assert call("run", rows, "--junit", ".", "--judge", "faithfulness").code == 2


def test_the_document_says_what_ended_a_run_before_its_time(
    call: Call, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Prompt] = []

    def ends(prompt: Prompt) -> Any:
        asked.append(prompt)
        return EngineGone("the engine <gone>") if len(asked) > 10 else {"faithful": 1.0}

    engine_of(monkeypatch, ends)
    Path("junit.xml").write_text("of an earlier run")
    done = call(
        "run",
        rows,
        "--gate",
        "accuracy>=0",
        "--concurrency",
        1,
        "--junit",
        "junit.xml",
        "--judge",
        "faithfulness",
    )
    root = checked(Path("junit.xml").read_bytes())
    assert done.code == 3 and root.attrib["errors"] == "1" and root.attrib["failures"] == "1"
    assert "the engine <gone>" in root.find(".//error").attrib["message"]  # type: ignore[union-attr]
    limited = call("resume", "last", "--max-seconds", 0.0001, "--junit", "junit.xml")
    assert limited.code == 3
    root = checked(Path("junit.xml").read_bytes())
    assert "interrupted" in root.find(".//error").attrib["message"]  # type: ignore[union-attr]


def test_an_old_document_is_not_left_for_a_run_that_could_not_begin(
    call: Call, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_of(monkeypatch, lambda prompt: {"faithful": 1.0})
    Path("empty.jsonl").write_text("")
    Path("junit.xml").write_text("of an earlier run")
    assert call("run", "empty.jsonl", "--new", "--junit", "junit.xml", "--judge", "faithfulness").code == 2
    assert not Path("junit.xml").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "no-file.jsonl"),
        ("run", "rows.jsonl", "--gate", "f2>=1"),
        ("run", "rows.jsonl", "--judge", "nobody"),
        ("run", "rows.jsonl", "--map", "output=nowhere"),
        ("run", "--spec", "no-file.toml"),
        ("resume", "nope"),
        ("retry", "nope"),
        ("show", "nope"),
        ("show", "last", "--gate", "f2>=1"),
    ],
)
def test_a_command_that_fails_leaves_no_document_of_an_earlier_run(
    call: Call, rows: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    engine_of(monkeypatch, lambda prompt: {"faithful": 1.0})
    assert call("run", rows, "--judge", "faithfulness").code == 0
    Path("junit.xml").write_text("of an earlier run")
    assert call(*words, "--junit", "junit.xml").code in (2, 3)
    assert not Path("junit.xml").exists()


def test_a_dry_run_judges_nothing_and_leaves_the_document(
    call: Call, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_of(monkeypatch, lambda prompt: {"faithful": 1.0})
    Path("junit.xml").write_text("of an earlier run")
    assert call("run", rows, "--dry-run", "--junit", "junit.xml", "--judge", "faithfulness").code == 0
    assert Path("junit.xml").read_text() == "of an earlier run"


def test_show_holds_failures_against_the_limit_of_the_run_itself(
    call: Call, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_of(monkeypatch, lambda prompt: {"faithful": 1.0} if "true 1" in str(prompt) else EngineError("x"))
    limit = ("--max-failures", "0.25", "--give-up-after", 100)
    assert call("run", rows, *limit, "--junit", "run.xml", "--judge", "faithfulness").code == 3
    assert call("show", "last", "--junit", "show.xml").code == 0
    for file in ("run.xml", "show.xml"):
        root = checked(Path(file).read_bytes())
        (case,) = [each for each in root.iter("testcase") if "max-failures" in each.attrib["name"]]
        assert case.attrib["name"] == "max-failures 0.25" and case.find("error") is not None


def test_a_judge_that_only_failed_gave_no_verdict_however_many_may_fail(
    call: Call, rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_of(monkeypatch, lambda prompt: EngineError("x"))
    limits = ("--max-failures", "1", "--give-up-after", 100)
    done = call("run", rows, *limits, "--junit", "junit.xml", "--judge", "faithfulness")
    assert done.code == 3 and "no verdict on any of 40 samples: 40 failed (40 engine_error)" in done.err
    root = checked(Path("junit.xml").read_bytes())
    (case,) = [each for each in root.iter("testcase") if each.attrib["name"] == "every judge gives a verdict"]
    assert case.find("error") is not None
