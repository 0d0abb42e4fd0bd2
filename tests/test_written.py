"""Twins that a detector learns from, and those it is tried on: whole, balanced, apart from each other."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from magistrate.features.words import words

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def script() -> Any:
    """`twins.py`, which stands beside the data."""
    spec = importlib.util.spec_from_file_location("twins", BENCHMARKS / "detector" / "twins.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


twins = script()
HELD = sorted((BENCHMARKS / "detector").glob("held*.jsonl"))
LEARNT = sorted(set((BENCHMARKS / "detector").glob("*.jsonl")) - set(HELD))
TRIED = [*HELD, BENCHMARKS / "everyday.jsonl"]
FILES = [*LEARNT, *TRIED]
ADDITIONS = BENCHMARKS / "additions.jsonl"  # its words do tell: what is not in a context has other words
DENIAL = re.compile(r"\b(?:not|no|never)\b|n't\b", re.I)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(twins.documents(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_words_length_and_denials_do_not_tell_right_from_wrong(path: Path) -> None:
    truth, new, length, denied = [], [], [], []
    for told in documents(path):
        for twin in told["twins"]:
            known = set(words(f"{told['context']}\n{twin['question'] or ''}"))
            for side in twins.SIDES:
                said = words(twin[side])
                truth.append(side == "wrong")
                new.append(np.mean([word not in known for word in said]) if said else 0.0)
                length.append(len(twin[side]))
                denied.append(len(DENIAL.findall(twin[side])))
    for scores in (new, length, denied):
        assert 0.45 <= roc_auc_score(truth, scores) <= 0.55


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_twin_is_whole_and_its_wrong_words_are_marked(path: Path) -> None:
    for told in documents(path):
        assert set(told) == {"domain", "context", "twins"} and told["context"].strip()
        for twin in told["twins"]:
            assert set(twin) - {"faults"} == {"kind", "question", "right", "wrong"}, twin
            faults = twin.get("faults")
            assert all(twin["wrong"].count(each) == 1 for each in faults or ()), twin
            if faults:
                assert [twin["wrong"][start:end] for start, end in twins.faults(twin)] == faults
            assert twin["right"].strip() and twin["wrong"].strip() and twin["right"] != twin["wrong"]
    for row in twins.rows(path):
        assert bool(row["spans"]) == (row["label"] == "hallucinated")
        assert all(0 <= start < end <= len(row["output"]) for start, end in row["spans"])


def test_what_is_tried_was_not_learnt_from() -> None:
    seen: dict[str, str] = {}
    for path in [*FILES, ADDITIONS]:
        for told in documents(path):
            text = re.sub(r"\W+", " ", told["context"]).casefold()
            assert seen.setdefault(text, path.stem) == path.stem, told["context"][:80]
    stages = "".join(path.read_text() for path in (BENCHMARKS / "detector" / "stages").glob("*.yaml"))
    named = set(re.findall(r"name: ([\w-]+)", stages))
    assert not named & {path.stem for path in TRIED}
    assert {
        name for name in named if name.startswith(("written", "short", "answers", "reports", "replies"))
    } <= {f"{path.stem}{form}" for path in LEARNT for form in ("", "-together", "-elsewhere", "-copied")}


def test_outputs_of_several_statements_say_what_their_twins_say(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    pairs = [("It opens at nine.", "It opens at ten."), ("Dogs may come in.", "Dogs must stay outside.")]
    told = [{"kind": "k", "question": None, "right": right, "wrong": wrong} for right, wrong in pairs]
    path.write_text(json.dumps({"domain": "d", "context": "c", "twins": told}) + "\n")
    first, second = twins.together(path)
    for row in (first, second):
        sides = [side for side in twins.SIDES for twin in told if twin[side] in row["output"]]
        assert len(sides) == 2
        marked = [row["output"][start:end] for start, end in row["spans"]]
        assert len(marked) >= sides.count("wrong") and (row["label"] == "faithful") == (not marked)
        assert all(any(each in twin["wrong"] for twin in told) for each in marked)
    together = first["output"] + second["output"]
    assert all(twin[side] in together for twin in told for side in twins.SIDES)


@pytest.mark.parametrize("path", LEARNT[:2], ids=lambda path: path.stem)
def test_a_statement_stands_beside_its_document_and_beside_a_text_that_is_silent_on_it(path: Path) -> None:
    rows = list(twins.elsewhere(path))
    assert rows == list(twins.elsewhere(path))
    known = {told["context"] for told in documents(path)}
    alone = 0
    for right, wrong in zip(rows[::2], rows[1::2], strict=True):
        assert (right["label"], wrong["label"]) == ("faithful", "hallucinated")
        ((start, end),) = wrong["spans"]
        said = wrong["output"][start:end]
        assert said in right["output"] and said not in wrong["context"][0]
        assert right["context"][0] in known
        alone += right["output"] == wrong["output"]
    assert 0.5 < alone / (len(rows) / 2) < 0.95  # the others have another statement beside them


@pytest.mark.parametrize("path", LEARNT[:2], ids=lambda path: path.stem)
def test_copied_sentences_stand_as_they_are_and_with_two_values_exchanged(path: Path) -> None:
    rows = list(twins.copied(path))
    assert rows == list(twins.copied(path)) and len(rows) > 200
    both = 0
    for right, wrong in zip(rows[::2], rows[1::2], strict=True):
        (context,) = right["context"]
        assert right["output"] in context and not right["spans"] and wrong["context"] == [context]
        assert wrong["output"] not in context
        said = [wrong["output"][start:end] for start, end in wrong["spans"]]
        assert all(each in context for each in said), "no value is new"
        both += len(said) == 2 and all(each in right["output"] for each in said)
    assert both > len(rows) / 12


@pytest.mark.parametrize(
    "text, kinds",
    [
        ("open from 9:30 on Monday", ["time", "day"]),
        ("it costs €1,250.50, not €90", ["€number", "€number"]),
        ("for 20 minutes, then 25 minute", ["number minute", "number minute"]),
        ("by 5% in March 2024", ["number %", "month", "number"]),
        ("said that Ann Lee met Bob Wise in Rome", ["name 2", "name 2", "name 1"]),
    ],
)
def test_values_are_found_with_their_kinds(text: str, kinds: list[str]) -> None:
    assert [kind for _, _, kind in twins.values(text)] == kinds


def test_values_are_exchanged_if_that_changes_what_is_said() -> None:
    def outputs(said: str, context: str = "") -> set[str]:
        return {twins.exchanged(said, edits)[0] for edits in twins.exchanges(said, f"{said} {context}")}

    assert outputs("From 10 minutes on it takes 20 minutes.") == {"From 20 minutes on it takes 10 minutes."}
    assert outputs("It takes 10, 20 or 30.") == {"It takes 30, 20 or 10."}, "members of a list"
    assert outputs("It ends at 9:00.", "It begins at 8:00 on Monday.") == {"It ends at 8:00."}
    assert not outputs("It ends at 9:00.", "It costs 8 euros.")
