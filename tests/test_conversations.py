"""Samples of several turns: the last answer is on trial, what was said before is what it may rely on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import magistrate
from magistrate import ScriptedEngine
from magistrate.datasets import load
from magistrate.errors import DatasetError
from magistrate.types import Sample, Turn, Verdict

ASKED = {"role": "user", "content": "When does it close?"}
SAID = {"role": "assistant", "content": "At five."}
AGAIN = {"role": "user", "content": "And on Fridays?"}
LAST = {"role": "assistant", "content": "At eight."}


def turns(*messages: dict[str, str]) -> tuple[Turn, ...]:
    return tuple(Turn(each["role"], each["content"]) for each in messages)


@pytest.mark.parametrize(
    ("row", "output", "before"),
    [
        ({"messages": [ASKED, SAID, AGAIN, LAST]}, "At eight.", (ASKED, SAID, AGAIN)),
        ({"messages": [ASKED, SAID, AGAIN], "answer": "At six."}, "At six.", (ASKED, SAID, AGAIN)),
        ({"messages": [ASKED, SAID, AGAIN, LAST], "answer": "At eight."}, "At eight.", (ASKED, SAID, AGAIN)),
        ({"messages": [ASKED, SAID], "answer": "At six."}, "At six.", (ASKED, SAID)),
        ({"messages": [{**SAID, "role": "AI"}]}, "At five.", ()),
        ({"messages": [ASKED], "answer": "At five."}, "At five.", (ASKED,)),
    ],
)
def test_the_last_answer_is_the_output(row: dict[str, Any], output: str, before: Any) -> None:
    (sample,) = load([row])
    assert (sample.output, sample.messages) == (output, turns(*before))


def test_spans_of_the_last_answer_are_held_to_its_length() -> None:
    row = {"messages": [ASKED, LAST], "spans": [[3, 8]]}
    (sample,) = load([row])
    assert [(span.start, span.end) for span in sample.spans] == [(3, 8)]
    with pytest.raises(DatasetError, match="outside the output's 9 characters"):
        list(load([{**row, "spans": [[3, 90]]}]))


@pytest.mark.parametrize("messages", [[], [ASKED], [ASKED, SAID, AGAIN]])
def test_a_conversation_without_an_answer_has_no_output(messages: list[dict[str, str]]) -> None:
    with pytest.raises(DatasetError, match="no output"):
        list(load([{"messages": messages}]))


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.sampled_from(["a", "b"])), max_size=5
    ),
    st.sampled_from([None, "a", "b"]),
)
def test_taking_the_answer_twice_changes_nothing(said: list[tuple[str, str]], output: str | None) -> None:
    sample = Sample("s", output, messages=tuple(Turn(*each) for each in said)).answered()
    assert sample.answered() == sample
    assert output is None or sample.output == output


def test_a_sample_may_rely_on_contexts_and_on_what_was_said() -> None:
    sample = Sample("s", "o", ("c", "d"), messages=turns(ASKED, SAID))
    assert sample.sources == ("c", "d", "When does it close?", "At five.")


def test_judging_a_conversation_from_python() -> None:
    engine = ScriptedEngine([{"faithful": 1}])
    found = magistrate.judge(
        messages=[ASKED, SAID, AGAIN, LAST],
        context="At eight on Fridays.",
        model=engine,
        judge="faithfulness",
    )
    assert isinstance(found, Verdict)
    named = [(part.name, part.text) for part in engine.prompts[0].data()]
    assert named == [
        ("context", "At eight on Fridays."),
        ("messages", "user: When does it close?"),
        ("messages", "assistant: At five."),
        ("messages", "user: And on Fridays?"),
        ("output", "At eight."),
    ]


@pytest.mark.parametrize(
    "given", [{}, {"messages": [ASKED]}, {"messages": [{"role": "user"}], "output": "x"}]
)
def test_judging_nothing_is_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(DatasetError, match="cannot be judged"):
        magistrate.judge(**given, context="c", judge="faithfulness", model=ScriptedEngine([]))


def test_a_conversation_is_stored_and_read_back(tmp_path: Any) -> None:
    rows = [{"messages": [ASKED, LAST], "context": "c", "label": "FAIL"}]
    engine = ScriptedEngine(lambda prompt: {"faithful": 1})
    run = magistrate.evaluate(rows, "faithfulness", model=engine, store=tmp_path / "runs.db", progress=False)
    (sample,) = run.samples()
    assert (sample.output, sample.messages) == ("At eight.", turns(ASKED))
    assert json.loads(json.dumps(run.table()[0]["label"])) == "faithful"
