"""Judges by name: options, several words in one, judges and engines in options, and the way back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import SpecError
from magistrate.judges import (
    Candidates,
    Classify,
    Hallucination,
    Judge,
    Passages,
    Rubric,
    Sentences,
    Windows,
    instance,
)
from magistrate.judges.references import Regex
from magistrate.judges.registry import judge, judge_entries, judges, spelled, split_options

FAITHFULNESS: Any = instance("faithfulness")


def unnamed(found: Any) -> Any:
    """A judge as it is set, whatever it and the judges in it are called."""
    inner = {"of": unnamed(found.of)} if hasattr(getattr(found, "of", None), "judge") else {}
    return replace(found, name="", **inner)


# --- what a name stands for ---------------------------------------------------------------------


def test_every_installed_judge_is_there_under_its_name() -> None:
    assert set(judge_entries()) >= {"candidates", "faithfulness", "hallucination", "rubric", "windows"}
    for name in judge_entries():
        assert judge(name).info.name == name


@pytest.mark.parametrize("name", ["faithfulness", "moderation", "sentences", "windows", "passages"])
def test_a_name_may_stand_for_a_judge(name: str) -> None:
    assert judge(name) is instance(name)


@pytest.mark.parametrize(
    ("name", "kind"), [("rubric", Rubric), ("candidates", Candidates), ("hallucination", Hallucination)]
)
def test_or_for_a_class_of_judges(name: str, kind: type) -> None:
    assert judge(name) == kind()


def test_an_object_is_passed_through_and_a_class_is_none() -> None:
    for made in (FAITHFULNESS, Rubric(most=2)):
        assert judge(made) is made
    for wrong in (Rubric, Classify, 3, None):
        with pytest.raises(SpecError, match="a judge must be a name or an object such as"):
            judge(wrong)
    with pytest.raises(
        SpecError, match="the package has no judge 'rubric'; known: context_relevance, faithfulness"
    ):
        instance("rubric")


def test_one_or_several() -> None:
    assert judges("faithfulness") == [FAITHFULNESS]
    assert judges(["faithfulness", Rubric()]) == [FAITHFULNESS, Rubric()]


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("faithfulness:threshold=0.3", {"threshold": 0.3}),
        ("faithfulness:explain=after", {"explain": "after"}),
        ("faithfulness: permute = true , prior=empty_context", {"permute": True, "prior": "empty_context"}),
        ("rubric:most=2", {"most": 2}),
        ("rubric:flag=contradiction", {"flag": frozenset({"contradiction"})}),
        ("rubric:flag=agreement+unsupported", {"flag": frozenset({"agreement", "unsupported"})}),
        ("rubric:kinds=fact+rumour+question,most=3", {"kinds": ("fact", "rumour", "question"), "most": 3}),
        ("rubric:free_stage=false,wording=expert", {"free_stage": False, "wording": "expert"}),
        ("candidates:n=5,unit=sentences,constrained=no", {"n": 5, "unit": "sentences", "constrained": False}),
        ("windows:aggregate=noisy_or,tokens=1000", {"aggregate": "noisy_or", "tokens": 1000}),
        ("sentences:language=de,passages=3", {"language": "de", "passages": 3}),
    ],
)
def test_options_are_set_and_name_the_judge(spec: str, options: dict[str, Any]) -> None:
    found = judge(spec)
    assert found == replace(judge(spec.partition(":")[0]), name=spec, **options)
    assert found.info.name == spec


def test_a_name_may_be_given() -> None:
    assert judge("rubric:most=2,name=strict") == Rubric(name="strict", most=2)
    assert judge("faithfulness:name=strict") == replace(FAITHFULNESS, name="strict")


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ("windows:of=rubric", Windows(Rubric())),
        ("windows:of=(rubric:most=2),tokens=1000", Windows(Rubric(most=2), tokens=1000)),
        (
            "passages:tokens=900,of=(rubric:most=2,kinds=a+b,flag=contradiction)",
            Passages(Rubric(most=2, kinds=("a", "b"), flag=frozenset({"contradiction"})), tokens=900),
        ),
        (
            "windows:of=(sentences:of=(candidates:n=2),aggregate=mean),overlap=0",
            Windows(Sentences(Candidates(n=2), aggregate="mean"), overlap=0),
        ),
        ("sentences:of=(faithfulness:permute=true)", Sentences(replace(FAITHFULNESS, permute=True))),
    ],
)
def test_a_judge_may_be_an_option_of_another(spec: str, made: Judge) -> None:
    assert unnamed(judge(spec)) == unnamed(made)


@pytest.mark.full
def test_an_engine_may_be_an_option(engine: LocalEngine) -> None:
    found = judge(f"rubric:extractor={engine.folder}")
    assert isinstance(found, Rubric) and isinstance(found.extractor, LocalEngine)
    assert found.extractor.info.fingerprint == engine.info.fingerprint
    assert spelled(found) == f"rubric:extractor={engine.info.model}#{engine.info.fingerprint[:12]}"
    assert "extractor=script#" in spelled(Rubric(extractor=ScriptedEngine([])))
    with pytest.raises(SpecError, match="unknown model 'nonesuch'"):
        judge("rubric:extractor=nonesuch")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a=1", ["a=1"]),
        ("a=(b:c=1,d=(e:f=2,g=3)),h=4", ["a=(b:c=1,d=(e:f=2,g=3))", "h=4"]),
        ("", [""]),
        (",", ["", ""]),
        (r"pattern=a{1,3}[,)(],whole=true", ["pattern=a{1,3}[,)(]", "whole=true"]),
        (r"pattern=\(,whole=true", [r"pattern=\(", "whole=true"]),
    ],
)
def test_options_are_cut_at_commas_outside_of_parentheses(text: str, parts: list[str]) -> None:
    assert split_options(text) == parts


def test_a_pattern_is_taken_as_it_is_written() -> None:
    for pattern in ("(?i)(yes|no)", "(?:yes)", "(a)+(b)", "(a,b)", r"\d{1,3}", "[(,]", r"\(a", "(?:a,b)|c"):
        made = judge(f"regex:pattern={pattern},whole=true")
        assert isinstance(made, Regex) and (made.pattern, made.whole) == (pattern, True)


def test_a_judge_in_hundreds_of_others_is_refused_at_once() -> None:
    fits, deep = "novelty", "novelty"
    for _ in range(10):
        fits = f"sentences:of=({fits})"
    assert isinstance(judge(fits), Sentences)
    for _ in range(300):
        deep = f"sentences:of=({deep})"
    begun = time.monotonic()
    for outside in (False, True):
        with pytest.raises(SpecError, match="nested more than 32 deep") as caught:
            judge(deep, outside=outside)
        assert len(str(caught.value)) < 200
    assert time.monotonic() - begun < 5


# --- files --------------------------------------------------------------------------------------

FILE = """
inputs: [output]
labels: {faithful: 0, hallucinated: 1}
prompt: "{{ output }} {{ reply }}"
"""


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_a_file_is_a_judge_too_with_options_and_in_options(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine (1).{ending}"
    path.write_text(f"name: mine\n{FILE}")
    assert judge(str(path)).info.name == "mine"
    assert judge(f"{path}:permute=true").info.name == "mine:permute=true"
    nested = judge(f"sentences:of={path},aggregate=mean")
    assert isinstance(nested, Sentences) and nested.of == judge(str(path))
    nested = judge(f"sentences:of=({path}:permute=true),aggregate=mean")
    assert isinstance(nested, Sentences) and isinstance(nested.of, Classify) and nested.of.permute
    assert spelled(nested) == "sentences:of=(mine@1:permute=true),aggregate=mean"


def test_a_file_may_take_a_file(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner.yaml", tmp_path / "outer.yaml"
    inner.write_text(FILE)
    outer.write_text(f"inputs: [context, output]\nlong: windows\n{FILE[FILE.index('labels') :]}")
    found = judge(f"{outer}:of=({inner}:permute=true),tokens=500")
    assert isinstance(found, Windows) and isinstance(found.of, Classify)
    assert (found.tokens, found.of.permute, found.of.info.name) == (500, True, "inner:permute=true")


def test_a_file_that_is_not_there_is_said_so() -> None:
    with pytest.raises(SpecError, match=r"cannot read nothere\.yaml"):
        judge("nothere.yaml")
    with pytest.raises(SpecError, match=r"cannot read nothere\.yaml"):
        judge("windows:of=nothere.yaml")


# --- the way back -------------------------------------------------------------------------------

CLASSIFY = st.builds(
    lambda **options: replace(FAITHFULNESS, **options),
    permute=st.booleans(),
    threshold=st.none() | st.floats(0.01, 0.99),
    explain=st.sampled_from(["none", "after"]),
    prior=st.sampled_from(["none", "empty_context"]),
)
KINDS = st.frozensets(st.sampled_from(["contradiction", "unsupported", "agreement"]), min_size=1)
RUBRIC = st.builds(
    Rubric,
    flag=KINDS,
    free_stage=st.booleans(),
    wording=st.sampled_from(["context", "expert"]),
    unit=st.sampled_from(["words", "sentences"]),
    kinds=st.lists(st.sampled_from(["fact", "rumour", "question"]), min_size=1, unique=True).map(tuple),
    most=st.integers(1, 20),
)
CANDIDATES = st.builds(
    Candidates, n=st.integers(1, 20), exhaustive=st.booleans(), threshold=st.floats(0.01, 0.99)
)
HALLUCINATION = st.builds(Hallucination, threshold=st.floats(0.01, 1), most_reasons=st.integers(1, 9))
PLAIN = CLASSIFY | RUBRIC | CANDIDATES | HALLUCINATION
AGGREGATE = st.sampled_from(["any", "mean", "noisy_or"])
ANY = st.recursive(
    PLAIN,
    lambda inner: (
        st.builds(Sentences, inner, aggregate=AGGREGATE, passages=st.integers(0, 9))
        | st.builds(Windows, PLAIN, aggregate=AGGREGATE, tokens=st.integers(0, 5000))
        | st.builds(Passages, PLAIN, tokens=st.integers(0, 5000))
    ),
    max_leaves=3,
)


@given(ANY)
def test_a_judge_is_spelled_as_it_is_written(made: Any) -> None:
    words = spelled(made)
    again = judge(words)
    assert unnamed(again) == unnamed(made)
    assert spelled(again) == words
    assert (again.info.prompt, again.info.constraint) == (made.info.prompt, made.info.constraint)


@pytest.mark.parametrize("name", sorted(judge_entries()))
def test_a_judge_as_it_comes_is_spelled_by_its_name(name: str) -> None:
    wraps = name in ("sentences", "windows", "passages")
    assert spelled(judge(name)) == (f"{name}:of=faithfulness@2" if wraps else name)
    assert unnamed(judge(spelled(judge(name)))) == unnamed(judge(name))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Rubric(flag=frozenset({"unsupported", "agreement"})), "rubric:flag=agreement+unsupported"),
        (Windows(Rubric(most=2), tokens=1000), "windows:of=(rubric@1:most=2),tokens=1000"),
        (Rubric(name="strict", most=2), "strict:most=2"),
        (judge("rubric:most=2,least=0"), "rubric:least=0,most=2"),
    ],
)
def test_what_differs_is_spelled_out(made: Judge, words: str) -> None:
    assert spelled(made) == words


def test_a_version_may_be_asked_for() -> None:
    assert judge("faithfulness@2") is FAITHFULNESS
    assert unnamed(judge("windows:of=(rubric@1:most=2)")) == unnamed(Windows(Rubric(most=2)))
    for spec in ("faithfulness@1", "faithfulness@two", "rubric@7:most=2", "windows:of=faithfulness@1"):
        with pytest.raises(SpecError, match=r"is not installed; installed: \d"):
            judge(spec)


# --- what is wrong with it ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "faithfullness",
            r"unknown judge 'faithfullness' \(did you mean 'faithfulness'\?\); see 'magistrate judges'",
        ),
        ("", "unknown judge ''"),
        ("windows:of=rubrik", r"unknown judge 'rubrik' \(did you mean 'rubric'\?\)"),
        ("windows:of=(rubric:mots=2)", r"unknown option 'mots' of judge 'rubric' \(did you mean 'most'\?\)"),
        ("faithfulness:criterion=1", "unknown option 'criterion' of judge 'faithfulness'"),
        ("rubric:", "NAME:key=value"),
        ("rubric:most", "NAME:key=value"),
        ("rubric:=2", "NAME:key=value"),
        ("rubric:most=2,", "NAME:key=value"),
        ("rubric:most=2,most=3", "set twice"),
        ("rubric:most=many", "option 'most': .*integer.*got 'many'"),
        ("rubric:most=0", "most 1 to 20"),
        ("rubric:flag=contradiction+rumour", "flag must be kinds of claims"),
        ("rubric:flag=", "flag must be kinds of claims"),
        ("rubric:wording=poem", "'context' or 'expert'"),
        ("windows:of=(rubric:most=2", "unbalanced parentheses"),
        ("windows:of=rubric)", "unbalanced parentheses"),
        ("windows:of=)rubric(", "unknown judge"),
        ("windows:of=()", "unknown judge ''"),
        ("sentences:of=relevance", "sentences needs a judge with the labels"),
        ("windows:of=windows", "'windows' does not plan its calls"),
        ("faithfulness:explain=true", "'none', 'before' or 'after'"),
        ("faithfulness:threshold=nan", "threshold must be in"),
    ],
)
def test_what_cannot_be_read_is_explained(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        judge(spec)
