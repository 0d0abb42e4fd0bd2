"""Judges that are files: what a YAML file may say, what becomes of it, and what is said of each mistake."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate._yaml import DEEPEST, LARGEST, parse_document, read_document
from magistrate.engines.base import Choice, Option
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import SpecError
from magistrate.judges import (
    Classify,
    Grade,
    Judge,
    Passages,
    Windows,
    instance,
    judge_from_file,
    judge_from_package,
    registry,
)
from magistrate.judges.definitions import JudgeFile
from magistrate.runs.execute import judge_one
from magistrate.types import Abstention, Failure, Outcome, Prompt, Sample, Verdict
from tiers import tries

TONE = """\
version: 3
summary: is it polite
inputs: [output, input?]
labels:
  polite: 0
  rude: [1, insults or mocks]
prompt: |
  How does it sound?
  {% if input %}To: {{ input }}.{% endif %} Text:
  {{ output }}
  {{ reply }}
"""
WORDS = TONE.replace("polite: 0", "polite: {score: 0, answers: [Yes, Sure]}").replace(
    "rude: [1, insults or mocks]", 'rude: {score: 1, answers: No, opening: "No, since"}'
)
RATING = """\
inputs: [input, output]
direction: maximize
prompt: |
  === system
  Rate it.
  === user
  {{ input }}
  {{ output }}
  {{ reply }}
schema:
  type: object
  properties:
    reasons: {type: array, items: {type: string, maxLength: 40}, minItems: 1, maxItems: 2, description: why}
    rating: {type: integer, minimum: 1, maximum: 5}
  required: [reasons, rating]
scale: [1, 5]
explanation: reasons
decision:
  score: rating
  at_least: 4
  label: good
  otherwise: bad
"""
SAMPLE = Sample("s", "Read the manual.", ("It is in the manual. Page nine.",), "Where is it?")


def written(folder: Path, text: str, name: str = "tone.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def judged(judge: Judge, engine: ScriptedEngine, sample: Sample = SAMPLE) -> Outcome:
    return asyncio.run(judge_one(sample, judge, engine))


def verdict(judge: Judge, answers: Sequence[Any], sample: Sample = SAMPLE) -> Verdict:
    found = judged(judge, ScriptedEngine(answers), sample)
    assert isinstance(found, Verdict), found
    return found


def shown(prompt: Prompt) -> str:
    return "\n".join(message.text for message in prompt.messages)


class Listening(ScriptedEngine):
    """Keeps the options that it was offered."""

    offered: Sequence[Option] = ()

    async def choose(self, prompt: Prompt, options: Sequence[Option], **others: Any) -> Choice:  # type: ignore[override]
        self.offered = options
        return await super().choose(prompt, options)


class Even(ScriptedEngine):
    """Finds every option equally probable."""

    async def choose(self, prompt: Prompt, options: Sequence[Option], **others: Any) -> Choice:  # type: ignore[override]
        return Choice(options[0].label, {option.label: 1 / len(options) for option in options}, 1.0, "exact")


# --- labels -------------------------------------------------------------------------------------


def test_a_file_is_a_judge(tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, TONE))
    info = judge.info
    assert (info.name, info.version, info.summary) == ("tone", 3, "is it polite")
    assert (info.labels, info.direction) == (("polite", "rude"), "minimize")
    assert (info.reads, info.requires) == (("output", "input"), ("output",))
    found = verdict(judge, [{"polite": 0.25, "rude": 0.75}])
    assert (found.judge, found.label, found.score, found.mass) == ("tone", "rude", 0.75, 1)


def test_its_name_may_be_another_than_the_files(tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, "name: manners\n" + TONE, "any name at all.yaml"))
    assert judge.info.name == "manners"


def test_what_it_asks_is_what_the_file_says(tmp_path: Path) -> None:
    engine = Listening([{"polite": 1.0}])
    judged(judge_from_file(written(tmp_path, TONE)), engine)
    (prompt,) = engine.prompts
    assert [message.role for message in prompt.messages] == ["user"]
    assert shown(prompt) == (
        "How does it sound?\nTo: Where is it?. Text:\nRead the manual.\n"
        "A. polite\nB. rude: insults or mocks\nReply with one letter, A or B."
    )
    assert {part.name for part in prompt.data()} == {"input", "output"}
    assert [option.surfaces for option in engine.offered] == [("A", " A"), ("B", " B")]


def test_what_a_sample_lacks_is_said_in_the_terms_of_the_judge(tmp_path: Path) -> None:
    asked = (
        TONE.replace("[output, input?]", "[output, context, question]")
        .replace("{{ output }}", "{{ output }} {{ context }} {{ question }}")
        .replace("{% if input %}To: {{ input }}.{% endif %}", "")
    )
    (tmp_path / "tone.yaml").write_text(asked)
    tone = judge_from_file(tmp_path / "tone.yaml")
    for sample, reason, told in (
        (Sample("s", "Go away."), "no_context", "judge 'tone' needs a context, but the sample has none"),
        (
            Sample("s", "Go.", ("c",)),
            "missing_input",
            "judge 'tone' needs 'question', but the sample has none",
        ),
    ):
        outcome = asyncio.run(judge_one(sample, tone, ScriptedEngine([])))
        assert isinstance(outcome, Abstention) and (outcome.reason, outcome.message) == (reason, told)
    faithful = asyncio.run(judge_one(Sample("s", "o"), registry.judge("faithfulness"), ScriptedEngine([])))
    assert "judge 'faithfulness' needs a context" in str(faithful) and "'hallucination' needs none" in str(
        faithful
    )


def test_answers_count_in_their_spellings(tmp_path: Path) -> None:
    engine = Listening([{"polite": 1.0}])
    judged(judge_from_file(written(tmp_path, WORDS)), engine)
    assert shown(engine.prompts[0]).endswith("Reply with one word, Yes or No.")
    said = [{surface.strip() for surface in option.surfaces} for option in engine.offered]
    assert said == [{"Yes", "yes", "YES", "Sure", "sure", "SURE"}, {"No", "no", "NO"}]


def test_yes_and_no_are_words(tmp_path: Path) -> None:
    """In YAML 1.2 yes, no, on and off are words; what else looks like a value is a name as it is written."""
    names = ("yes", "no", "on", "off", "true", "null", "1.10", "012", "2024-01-01", "ça va", "'a b'")
    labels = "".join(f"  {name}: 0.5\n" for name in names)
    judge = judge_from_file(
        written(tmp_path, changed(TONE, "  polite: 0\n  rude: [1, insults or mocks]\n", labels))
    )
    assert judge.info.labels == (*names[:-1], "a b")


def test_of_more_than_two_labels_the_likeliest_is_taken(tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, changed(TONE, "  rude:", "  plain: 0.5\n  rude:")))
    found = verdict(judge, [{"polite": 0.3, "plain": 0.4, "rude": 0.3}])
    assert (found.label, found.score, found.probability) == ("plain", 0.5, 0.4)


def test_categories_are_asked_one_by_one(tmp_path: Path) -> None:
    text = changed(TONE, "How does it sound?", "Does it {{ description }} ({{ category }})?")
    judge = judge_from_file(written(tmp_path, text + "categories: {threat: threaten, mockery: mock}\n"))

    def answer(prompt: Prompt) -> dict[str, float]:
        return {"polite": 0.1, "rude": 0.9} if "mock (mockery)" in shown(prompt) else {"polite": 1.0}

    engine = ScriptedEngine(answer)
    found = judged(judge, engine)
    assert isinstance(found, Verdict)
    assert found.details["categories"] == {"threat": 0, "mockery": 0.9}
    assert "Does it threaten (threat)?" in shown(engine.prompts[0])


@pytest.mark.parametrize(("threshold", "label"), [(0.5, "rude"), (0.7, "polite")])
def test_of_two_labels_the_threshold_decides(threshold: float, label: str, tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, f"{TONE}decision: {{threshold: {threshold}}}\n"))
    assert verdict(judge, [{"polite": 0.4, "rude": 0.6}]).label == label


@pytest.mark.parametrize("explain", ["before", "after"])
def test_it_explains(explain: str, tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, f"{WORDS}explain: {explain}\n"))
    chosen = {"polite": 0.1, "rude": 0.9}
    answers = ["it mocks", chosen] if explain == "before" else [chosen, "it mocks", {"polite": 1.0}]
    found = verdict(judge, answers)
    assert (found.label, found.explanation) == ("rude", "it mocks")
    assert found.explanation_agrees is (None if explain == "before" else False)
    opening = "No, since" if explain == "after" else "Reason:"
    assert any(text.endswith(opening) for step in found.steps for _, text in step.prompt)


def test_how_an_explanation_is_read_again_can_be_said(tmp_path: Path) -> None:
    again = "explain: after\nreread: |\n  Said: {{ explanation }}\n  Is it for polite? {{ reply }}\n"
    engine = ScriptedEngine([{"polite": 1.0}, "it greets", {"polite": 1.0}])
    found = judged(judge_from_file(written(tmp_path, WORDS + again)), engine)
    assert isinstance(found, Verdict) and found.explanation_agrees
    assert shown(engine.prompts[-1]) == "Said: it greets\nIs it for polite? Reply with one word, Yes or No."


def test_orders_are_averaged(tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, TONE + "permute: true\n"))
    found = verdict(judge, [{"polite": 1.0}, {"rude": 1.0}])
    assert (found.score, len(found.steps)) == (0.5, 2)
    assert ["A. rude: insults or mocks" in step.prompt[0][1] for step in found.steps] == [False, True]


def test_a_prior_is_divided_out(tmp_path: Path) -> None:
    text = changed(changed(TONE, "[output,", "[output, context,"), "Text:", "{{ context }}\n  Text:")
    judge = judge_from_file(written(tmp_path, text + "prior: empty_context\n"))
    found = verdict(judge, [{"polite": 0.5, "rude": 0.5}, {"polite": 0.8, "rude": 0.2}])
    assert found.score == pytest.approx(0.8)


def test_what_is_copied_is_not_asked(tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, TONE + "copied: polite\n"))
    assert verdict(judge, [], replace(SAMPLE, output=SAMPLE.context[0])).label == "polite"


# --- schemas ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rating", "score", "label"), [(1, 0, "bad"), (3, 0.5, "bad"), (4, 0.75, "good"), (5, 1, "good")]
)
def test_a_rule_reads_score_and_label_off_an_object(
    rating: int, score: float, label: str, tmp_path: Path
) -> None:
    judge = judge_from_file(written(tmp_path, RATING, "rating.yaml"))
    assert (judge.info.labels, judge.info.direction) == (("bad", "good"), "maximize")
    engine = ScriptedEngine([f'{{"reasons":["short","clear"],"rating":{rating}}}'])
    found = judged(judge, engine)
    assert isinstance(found, Verdict)
    assert (found.score, found.label, found.probability) == (score, label, None)
    assert found.explanation == "short; clear"
    assert [message.role for message in engine.prompts[0].messages] == ["system", "user"]
    assert shown(engine.prompts[0]).endswith(
        'Reply in JSON with these keys in this order: "reasons" (why); "rating".'
    )


def test_without_a_scale_the_number_is_the_score(tmp_path: Path) -> None:
    text = changed(changed(RATING, "scale: [1, 5]\n", ""), "at_least: 4", "at_least: 0.5")
    text = changed(text, "integer, minimum: 1, maximum: 5", "number, minimum: 0, maximum: 1, multipleOf: 0.1")
    text = changed(text, "explanation: reasons\n", "")
    found = verdict(judge_from_file(written(tmp_path, text)), ['{"reasons":["a"],"rating":0.3}'])
    assert (found.score, found.label, found.explanation) == (0.3, "bad", None)


def test_what_the_schema_does_not_allow_is_a_failure(tmp_path: Path) -> None:
    found = judged(judge_from_file(written(tmp_path, RATING)), ScriptedEngine(['{"rating":9}']))
    assert isinstance(found, Failure)
    assert found.code == "invalid_output"


# --- inputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (replace(SAMPLE, output=None), "no_output"),
        (replace(SAMPLE, output=" "), "no_output"),
        (replace(SAMPLE, context=()), "no_context"),
        (replace(SAMPLE, metadata={}), "missing_input"),
        (replace(SAMPLE, metadata={"lang": " "}), "missing_input"),
    ],
)
def test_without_a_required_input_it_abstains_and_asks_nothing(
    sample: Sample, reason: str, tmp_path: Path
) -> None:
    text = changed(TONE, "[output,", "[output, context, lang,")
    text = changed(text, "Text:", "{{ context }} {{ lang }}:")
    found = judged(judge_from_file(written(tmp_path, text)), ScriptedEngine([]), sample)
    assert isinstance(found, Abstention)
    assert (found.reason, found.steps) == (reason, ())


def test_an_input_with_a_question_mark_may_be_missing_and_is_then_nothing(tmp_path: Path) -> None:
    engine = ScriptedEngine([{"polite": 1.0}])
    judged(judge_from_file(written(tmp_path, TONE)), engine, replace(SAMPLE, input=None))
    assert "To:" not in shown(engine.prompts[0])


def test_other_names_are_of_the_metadata(tmp_path: Path) -> None:
    text = changed(changed(TONE, "[output,", "[output, lang, tags?,"), "Text:", "{{ lang }}/{{ tags }}")
    engine = ScriptedEngine([{"polite": 1.0}])
    sample = replace(SAMPLE, metadata={"lang": "en", "tags": ["a", "b"]})
    judged(judge_from_file(written(tmp_path, text)), engine, sample)
    assert 'en/["a", "b"]' in shown(engine.prompts[0])


def test_what_is_shown_instead_of_a_missing_input_can_be_said(tmp_path: Path) -> None:
    text = changed(
        TONE, "{% if input %}To: {{ input }}.{% endif %}", "To: {{ input | default('all', true) }}."
    )
    engine = ScriptedEngine([{"polite": 1.0}] * 2)
    judge = judge_from_file(written(tmp_path, text))
    for sample in (SAMPLE, replace(SAMPLE, input=None)):
        judged(judge, engine, sample)
    assert ["To: all." in shown(prompt) for prompt in engine.prompts] == [False, True]


def test_several_contexts_are_numbered_and_can_be_gone_through(tmp_path: Path) -> None:
    text = changed(TONE, "[output,", "[output, context,")
    text = changed(
        text, "Text:", "{{ context }}\n  {% for each in context %}\n  <{{ each }}>\n  {% endfor %}\n  Text:"
    )
    engine = ScriptedEngine([{"polite": 1.0}])
    judged(judge_from_file(written(tmp_path, text)), engine, replace(SAMPLE, context=("one", "two")))
    assert "[1] one\n[2] two\n<one>\n<two>\n" in shown(engine.prompts[0])


# --- long contexts ------------------------------------------------------------------------------

LONG = changed(changed(TONE, "[output,", "[context, output,"), "How does", "{{ context }}\n  How does")
MANY = replace(SAMPLE, context=tuple(f"This is sentence number {n} of them." for n in range(40)))


def by_number(prompt: Prompt) -> dict[str, float]:
    """Rude wherever sentence 7 is shown."""
    return {"rude": 1.0} if "number 7 of" in shown(prompt) else {"polite": 1.0}


@pytest.mark.parametrize(("direction", "score"), [("minimize", 0), ("maximize", 1)])
def test_a_context_that_does_not_fit_is_judged_in_windows(
    direction: str, score: float, tmp_path: Path
) -> None:
    """One window that speaks for the output is enough, whichever end of the score that is."""
    judge = judge_from_file(written(tmp_path, f"{LONG}direction: {direction}\nlong: windows\n"))
    assert isinstance(judge, Windows)
    assert judge.info.name == "tone"
    found = judged(judge, ScriptedEngine(by_number, context_window=200), MANY)
    assert isinstance(found, Verdict)
    assert (found.score, len(found.details["windows"]) > 1) == (score, True)
    refused = judge_from_file(written(tmp_path, LONG))
    cut = judged(refused, ScriptedEngine(by_number, context_window=200), MANY)
    assert isinstance(cut, Abstention)
    assert cut.reason == "over_length"


def test_a_context_that_does_not_fit_is_cut_to_passages(tmp_path: Path) -> None:
    judge = judge_from_file(written(tmp_path, f"{LONG}long: passages\n"))
    assert isinstance(judge, Passages)
    found = judged(judge, ScriptedEngine(by_number, context_window=200), MANY)
    assert isinstance(found, Verdict)
    assert found.details["characters_left_out"] > 0


# --- where they are found -----------------------------------------------------------------------


def test_options_go_behind_the_path(tmp_path: Path) -> None:
    path = written(tmp_path, TONE)
    judge = registry.judge(f"{path}:permute=true,threshold=0.6")
    assert isinstance(judge, Classify)
    assert (judge.permute, judge.threshold) == (True, 0.6)
    assert judge.info.name == "tone:permute=true,threshold=0.6"
    rating = registry.judge(f"{written(tmp_path, RATING, 'rating.yml')}:max_tokens=64")
    assert isinstance(rating, Grade)
    assert rating.max_tokens == 64


@pytest.mark.parametrize("name", ["context_relevance", "faithfulness", "moderation", "relevance"])
def test_judges_of_the_package_are_files_too(name: str) -> None:
    judge = judge_from_package("magistrate.judges", f"builtin/{name}.yaml")
    assert judge == instance(name) == registry.judge(name)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("magistrate.judges", "builtin/nothere.yaml"),
        ("magistrate.judges", "builtin"),
        ("no_such_one", "a.yaml"),
    ],
)
def test_a_package_without_the_file_is_explained(package: str, name: str) -> None:
    with pytest.raises(SpecError, match=f"cannot read {name} of the package {package}: "):
        judge_from_package(package, name)


# --- the templates ------------------------------------------------------------------------------

OPTIONAL = re.compile(r"^#(?P<key>\w+):.*\n(?:#  .*\n)*", re.MULTILINE)


def template(kind: str) -> str:
    return (files("magistrate.judges") / "templates" / f"{kind}.yaml").read_text(encoding="utf-8")


def test_the_templates_explain_every_key_that_their_kind_has() -> None:
    keys = {info.alias or name for name, info in JudgeFile.model_fields.items()}
    labels, schema = (
        set(re.findall(r"^#?(\w+):", template(kind), re.MULTILINE)) for kind in ("labels", "schema")
    )
    assert labels | schema == keys
    assert labels & schema == keys - (labels ^ schema)
    assert labels ^ schema == {
        "labels", "categories", "explain", "permute", "prior", "reread", "copied", "model",
        "schema", "scale", "explanation", "max_tokens",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["labels", "schema"])
def test_every_optional_line_of_a_template_can_be_taken_in(kind: str, tmp_path: Path) -> None:
    text = template(kind)
    as_it_is = judge_from_file(written(tmp_path, text))
    assert as_it_is.info.summary
    optional = list(OPTIONAL.finditer(text))
    assert optional
    for block in optional:
        taken = re.sub("^#", "", block[0], flags=re.MULTILINE)
        more = text[: block.start()] + taken + text[block.end() :]
        if block["key"] == "categories":
            more = changed(more, "  Does the", "  Category: {{ category }}\n  Does the")
        judge = judge_from_file(written(tmp_path, more))
        assert judge != as_it_is, f"{block['key']} changes nothing"


# --- mistakes -----------------------------------------------------------------------------------

LABELS = "labels:\n  polite: 0\n  rude: [1, insults or mocks]\n"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)

# What is changed in what ("" puts it behind), the line that is blamed, and what is said, … for anything.
BROKEN = [
    # keys
    (TONE, "", "permut: true\n", 12, "permut: unknown key; did you mean 'permute'? … known: "),
    (TONE, "", "treshold: 0.5\n", 12, "did you mean 'decision.threshold'?"),
    (TONE, "", "xyzzy: 1\n", 12, "xyzzy: unknown key; known: name, version"),
    (
        TONE,
        "",
        "decision:\n  treshold: 0.5\n",
        13,
        "decision.treshold: unknown key; did you mean 'threshold'?",
    ),
    (
        TONE,
        "[1, insults or mocks]",
        "{score: 1, answer: No}",
        6,
        "labels.rude.answer: unknown key; did you mean 'answers'?",
    ),
    (TONE, "prompt:", "promt:", 7, "did you mean 'prompt'?"),
    (TONE, "inputs: [output, input?]\n", "", 1, "inputs: is missing"),
    ("", "", TONE[: TONE.index("prompt")], 1, "prompt: is missing"),
    (TONE, "", "version: 4\n", 12, "version: is given twice, first on line 1"),
    (TONE, "  rude:", "  polite: 1\n  rude:", 6, "labels.polite: is given twice"),
    (TONE, "  polite: 0\n", "  1: 0\n  '1': 0.5\n", 6, "labels.1: is given twice, first on line 5"),
    # kinds of values
    (TONE, "version: 3", "version: three", 1, "version: must be a whole number; got 'three'"),
    (TONE, "version: 3", "version: 1.5", 1, "a whole number; got 1.5"),
    (TONE, "version: 3", "version: 0", 1, "version: must be at least 1; got 0"),
    ("", "", "name: 5\n" + TONE, 1, "name: must be text; got 5; put it in quotes"),
    (TONE, "summary: is it polite", "summary:", 2, "summary: must be text; got nothing"),
    (TONE, "[output, input?]", "output", 3, "inputs: must be a list … 'output'"),
    (TONE, "[output, input?]", "[]", 3, "inputs: must be a list of at least 1"),
    (TONE, "input?]", "7]", 3, "inputs.1: must be text; got 7"),
    (TONE, LABELS, "labels: [polite, rude]\n", 4, "labels: must be lines of 'key: value'"),
    (TONE, "", "permute: yes\n", 12, "permute: must be true or false; got 'yes'"),
    (TONE, "", "explain: afterwards\n", 12, "explain: must be 'none', 'before' or 'after' … 'afterwards'"),
    ("", "", TONE[: TONE.index("prompt")] + "prompt: ''\n", 7, "prompt: must be a non-empty text"),
    # labels
    (TONE, "polite: 0", "polite: 2", 5, "labels.polite.score: must be at most 1; got 2"),
    (TONE, "polite: 0", "polite: -1", 5, "labels.polite.score: must be at least 0; got -1"),
    (TONE, "polite: 0", "polite: low", 5, "labels.polite.score: must be a number; got 'low'"),
    (TONE, "polite: 0", "polite:", 5, "labels.polite.score: must be a number; got nothing"),
    (TONE, "polite: 0", "polite: .nan", 5, "must be a finite number; got nan"),
    (TONE, "polite: 0", "polite: true", 5, "must be a number; got true"),
    (TONE, "[1, insults or mocks]", "[1, a, b]", 6, "labels.rude: a label must be … [score, description]"),
    (TONE, "  rude: [1, insults or mocks]\n", "", 4, "labels: there must be 2 to 26 labels, got 1"),
    (TONE, LABELS, "labels: {}\n", 4, "labels: there must be 2 to 26 labels, got 0"),
    (TONE, LABELS, "labels:\n" + "".join(f"  l{n}: 0\n" for n in range(27)), 4, "got 27"),
    (TONE, "polite: 0", "'': 0", 5, "a label has no name"),
    (TONE, "polite: 0", "polite: 1", 6, "labels.rude: both labels have the score 1"),
    (TONE, "polite: 0", "polite: {score: 0, answers: Yes}", 4, "either all labels or none must have answers"),
    (WORDS, "[Yes, Sure]", "NO", 4, "labels: two answers are the same except for their case"),
    (WORDS, "[Yes, Sure]", "true", 5, "labels.polite.answers: must be a list … got true"),
    (TONE, "", "copied: nice\n", 12, "copied: 'nice' is not one of the labels"),
    (
        TONE,
        "",
        "decision: {threshold: 1.5}\n",
        12,
        "decision.threshold: threshold must be in (0, 1), got 1.5",
    ),
    (TONE, "", "decision:\n  threshold: high\n", 13, "decision.threshold: must be a number; got 'high'"),
    (
        "",
        "",
        changed(TONE, "  rude:", "  plain: 0.5\n  rude:") + "decision: {threshold: 0.5}\n",
        13,
        "decision.threshold: a threshold needs exactly two labels",
    ),
    (TONE, "", "decision: {at_least: 3}\n", 12, "decision.at_least: is only for 'schema'"),
    (TONE, "", "scale: [0, 1]\n", 12, "scale: cannot be combined with 'labels'"),
    (RATING, "", "permute: true\n", 23, "permute: cannot be combined with 'schema'"),
    (TONE, "", "prior: empty_context\n", 12, "prior: prior needs a judge that reads the context"),
    (TONE, "", "long: windows\n", 12, "long: only the context is cut"),
    (TONE, "", "schema: {type: object}\n", 12, "schema: labels are also given; give either"),
    (TONE, LABELS, "", 1, "give either 'labels' ( … or 'schema' ("),
    # names
    (
        "",
        "",
        "name: ../tone\n" + TONE,
        1,
        "name: must start with a letter, followed by letters, digits, - and _ … '../tone'",
    ),
    ("", "", "name: ''\n" + TONE, 1, "name: must start with a letter"),
    ("", "", f"name: {'x' * 65}\n{TONE}", 1, "name: must start with a letter … at most 64"),
    (TONE, "input?", "in put", 3, "inputs.1: must be a name, followed by ? … 'in put'"),
    (TONE, "input?", "output?", 3, "inputs.1: 'output' is given twice"),
    (TONE, "input?", "reply", 3, "inputs.1: 'reply' has another meaning"),
    # prompts
    (
        TONE,
        "{{ output }}",
        "{{ ouput }}",
        10,
        "prompt: the prompt uses {{ ouput }} … among its inputs: output, input; did you mean 'output'?",
    ),
    (TONE, "How", "{{ category }}", 8, "the prompt uses {{ category }}"),
    (TONE, "", "categories: {a: b}\n", 7, "must use {{ category }}"),
    (TONE, "  {{ reply }}\n", "", 7, "prompt: the prompt must use {{ reply }}"),
    (TONE, "{% if input %}", "{% if %}", 9, "prompt: not Jinja: Expected an expression"),
    (TONE, "{% endif %}", "", 11, "prompt: not Jinja: Unexpected end … 'if'"),
    (TONE, "{{ reply }}", "{{ reply", 11, "prompt: not Jinja: unexpected end"),
    (TONE, "{{ output }}", "{{ output | shout }}", 10, "No filter named 'shout'"),
    (
        TONE,
        "{{ output }}",
        "{{ output | truncate(9) }}",
        10,
        "the filter 'truncate' cannot be applied to output",
    ),
    (TONE, "How", "{% include '/etc/passwd' %}", 7, "prompt: … no loader"),
    (TONE, "{{ output }}", "{{ output.__class__.__mro__ }}", 7, "prompt: … unsafe"),
    (TONE, "How", "{{ 1 / 0 }}", 7, "prompt: ZeroDivisionError"),
    (TONE, "{{ output }}", "{{ output[:1] }}", 7, "prompt: an input can be inserted"),
    (
        changed(TONE, "input?", "context?"),
        "{% if input %}To: {{ input }}.{% endif %}",
        "{{ context[1] }}",
        7,
        "prompt: … (where there is no context)",
    ),
    (RATING, "=== system", "=== sytem", 4, "prompt: a section starts with … got '=== sytem'"),
    (RATING, "=== user", "=== user ", 6, "'=== user' or '=== assistant'; got '=== user '"),
    (RATING, "  === system", "  Hello\n  === system", 4, "before the first section"),
    (RATING, "=== user\n", "\n", 3, "prompt: lacks a section '=== user'"),
    (TONE, "", "reread: |\n  x\n  {{ explanation }} {{ what }}\n", 14, "reread: the prompt uses {{ what }}"),
    (TONE, "", "reread: |\n  {{ explanation }}\n", 12, "reread: … {{ reply }}"),
    # schemas
    (
        RATING,
        ", maxLength: 40",
        "",
        13,
        "schema.properties.reasons.items: a string without a bound; add maxLength",
    ),
    (RATING, "integer", "integr", 14, 'schema.properties.rating.type: … did you mean "integer"?'),
    (RATING, "type: object", "type: array", 10, "schema: must be of 'type: object', with properties"),
    (RATING, "type: object", "type: string", 10, "schema: must be of 'type: object'"),
    (
        RATING,
        "maxLength: 40",
        "x-quote: {of: output}",
        10,
        "schema: x-quote is only supported in judges written in Python",
    ),
    (RATING, "score: rating", "score: mark", 19, "decision.score: score is 'mark' … reasons, rating"),
    (
        RATING,
        "{type: integer, minimum: 1, maximum: 5}",
        "{type: string, maxLength: 3}",
        14,
        "schema.properties.rating.type: the score must be a number",
    ),
    (
        RATING,
        "maximum: 5",
        "maximum: 10",
        14,
        "schema.properties.rating.maximum: 10 is outside the scale, 1 to 5",
    ),
    (RATING, "[reasons, rating]", "[reasons]", 10, "schema: the schema must require 'rating'"),
    (RATING, "explanation: reasons", "explanation: why", 17, "explanation: explanation is 'why'"),
    (RATING, "explanation: reasons", "explanation: rating", 17, "explanation: 'rating' must be a string"),
    (RATING, "  at_least: 4\n", "", 18, "decision: lacks at_least"),
    ("", "", RATING[: RATING.index("decision")], 1, "decision: lacks score, at_least, label, otherwise"),
    (RATING, "", "  threshold: 0.5\n", 23, "decision.threshold: is only for 'labels'"),
    (RATING, "at_least: 4", "at_least: 6", 20, "decision.at_least: at_least must be in (1, 5], got 6"),
    (RATING, "otherwise: bad", "otherwise: good", 22, "decision.otherwise: the two labels must differ"),
    (RATING, "scale: [1, 5]", "scale: [5, 1]", 16, "scale: a scale must go from a smaller"),
    (RATING, "scale: [1, 5]", "scale: [1, 2, 5]", 16, "scale: must be a list of at most 2"),
    (RATING, "scale: [1, 5]", "scale: [1, .inf]", 16, "scale.1: must be a finite number"),
    # no such document
    ("", "", "", 1, "must be lines of 'key: value', but is empty"),
    ("", "", "# nothing\n", 1, "but is empty"),
    ("", "", "\n- a\n- b\n", 2, "must be lines of 'key: value', but is a list"),
    ("", "", "hello\n", 1, "but is a single value"),
    ("", "", TONE + "---\n" + TONE, 12, "a second document starts here"),
    ("", "", "inputs: [output\nversion: 1\n", 2, "not YAML: a [ or { is not closed … starts on line 1"),
    ("", "", "inputs:\n\t- output\n", 2, "not YAML: indent lines with spaces"),
    (TONE, "is it polite", "is it: polite", 2, "a text that contains ': ' must be in quotes"),
    (TONE, "is it polite", '"is it', 11, "a quote is not closed … line 2"),
    (TONE, "is it polite", "'it's'", 2, "this does not belong to … check quotes"),
    (TONE, "is it polite", "*very* polite", 2, "starts with * must be in quotes"),
    (TONE, "is it polite", "%x", 2, "must be in quotes"),
    ("", "", "prompt: {{ output }}\n", 1, "a text that starts with { must be in quotes"),
    ("", "", "prompt: {{ output }} {{ reply }}\n", 1, "a text that starts with { must be in quotes"),
    ("", "", "inputs: [a]\nprompt: {% if a %}\n", 2, "a text that starts with { must be in quotes"),
    (TONE, "", "? [a, b]\n: 3\n", 12, "a key must be a word"),
    (TONE, "sound", "so\x07und", 8, "character '\\x07' is not allowed in YAML"),
    (
        TONE,
        "is it polite",
        "!!python/object/apply:os.system [true]",
        2,
        "summary: tags such as !!python/object/apply:os.system",
    ),
    (TONE, "is it polite", "!mine x", 2, "summary: tags such as !mine"),
    ("", "", "labels: &l {a: 0, b: 1}\n<<: *l\n", 2, "<< is not supported"),
    ("", "", BOMB, 1, "values are nested too deep or too many; check its aliases"),
    ("", "", "a: &a [*a]\n", 1, "values are nested too deep or too many; check its aliases"),
    ("", "", "a: " + "[" * 2000, 1, "values are nested too deep or too many"),
]


def test_a_mistake_is_told_with_file_line_key_and_what_to_do(tmp_path: Path) -> None:
    wrong = []
    for base, old, new, line, said in BROKEN:
        text = changed(base, old, new) if old else base + new
        try:
            judge_from_file(written(tmp_path, text))
            message = "nothing is said"
        except SpecError as error:
            message = str(error)
        placed = re.match(rf"tone\.yaml, line {line}(, [^:]+)?: ", message) and "\n" not in message
        if not (placed and all(words in message for words in said.split(" … "))):
            wrong.append((said, message))
    assert wrong == []


def test_the_files_that_are_broken_are_whole_before() -> None:
    for text in (TONE, WORDS, RATING):
        assert parse_document(text, "tone.yaml").read_as(JudgeFile)


def test_a_file_name_that_is_no_name_is_blamed(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"7\.yaml, line 1, name: is taken from the file's name, and must"):
        judge_from_file(written(tmp_path, TONE, "7.yaml"))


def latin(path: Path) -> None:
    path.write_bytes(b"version: 1\nsummary: caf\xe9\n")


def large(path: Path) -> None:
    path.write_bytes(b"#" * (LARGEST + 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (latin, r"^x\.yaml, line 2: not UTF-8 text: byte 0xe9; save it as UTF-8$"),
        (large, r"x\.yaml has 200,001 bytes; at most 200,000"),
        (Path.mkdir, r"^cannot read .*/x\.yaml: it is a folder$"),
        (lambda path: None, r"^cannot read .*/x\.yaml: No such file or directory$"),
    ],
    ids=["latin-1", "large", "folder", "missing"],
)
def test_what_cannot_be_read_is_explained(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    make(path)
    with pytest.raises(SpecError, match=message):
        judge_from_file(path)
    with pytest.raises(SpecError, match=message):
        registry.judge(str(path))


def test_a_pipe_is_not_waited_for_and_a_strange_path_is_no_crash(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.yaml")
    with pytest.raises(SpecError, match="it is not a regular file"):
        read_document(tmp_path / "x.yaml")
    with pytest.raises(SpecError, match="cannot read"):
        read_document(Path("a\0b.yaml"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "tone.yaml").write_bytes(b"\xef\xbb\xbf" + TONE.encode())
    assert judge_from_file(tmp_path / "tone.yaml").info.name == "tone"


# --- documents ----------------------------------------------------------------------------------


def test_values_are_those_of_yaml_1_2() -> None:
    text = "a: [yes, No, on, 012, 0o14, 0x1F, 1_000, -5, 1e3, .5, -.inf, true, ~, 2024-01-01, 1:30, '7']\n"
    document = parse_document(text, "x")
    assert document.values["a"] == [
        "yes", "No", "on", 12, 12, 31, 1000, -5, 1000.0, 0.5, float("-inf"),
        True, None, "2024-01-01", "1:30", "7",
    ]  # fmt: skip
    assert [type(each) for each in document.values["a"][3:8]] == [int] * 5


def test_every_key_and_item_knows_its_line() -> None:
    document = parse_document("\na:\n  b: 1\n  c:\n    - x\n    - y\nd: |\n  one\n  two\n", "x.yaml")
    assert document.lines == {
        (): 2, ("a",): 2, ("a", "b"): 3, ("a", "c"): 4, ("a", "c", 0): 5, ("a", "c", 1): 6, ("d",): 7,
    }  # fmt: skip
    assert str(document.error(("a", "c", 1), "no")) == "x.yaml, line 6, a.c.1: no"
    assert str(document.error(("a", "x", "y"), "no")) == "x.yaml, line 2, a.x.y: no"
    assert str(document.error(("d",), "no", row=2)) == "x.yaml, line 9, d: no"
    assert str(document.error((), "no")) == "x.yaml, line 2: no"


def test_an_alias_is_what_it_stands_for_and_an_anchor_may_be_used_again() -> None:
    document = parse_document("a: &x [1]\nb: *x\nc: &x 2\nd: *x\n", "x")
    assert document.values == {"a": [1], "b": [1], "c": 2, "d": 2}


def test_as_deep_as_is_said_and_no_deeper() -> None:
    for depth in (DEEPEST - 5, DEEPEST + 5):
        text = "a: " + "[" * depth + "]" * depth
        if depth < DEEPEST:
            parse_document(text, "x")
        else:
            with pytest.raises(SpecError, match="too deep"):
                parse_document(text, "x")


PIECES = [
    *"{}[]|>#\t\n\x00\x85",
    ": ",
    "- ",
    "0",
    ".nan",
    "null",
    "{{",
    "}}",
    "{% if %}",
    "output",
    "  ",
    "*a",
]
PIECES += ["&a ", "!t ", "=== user", "? ", "<<: ", "9" * 20]


@settings(max_examples=tries(150), deadline=None)
@given(data=st.data())
def test_a_file_that_is_changed_anyhow_is_a_judge_that_can_ask_or_a_message(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A message has file and line and is one line long; what loads has no prompt that fails later."""
    text = data.draw(st.sampled_from([TONE, WORDS, LONG]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 8))
        text = text[:start] + data.draw(st.sampled_from(["", *PIECES])) + text[end:]
    path = tmp_path_factory.getbasetemp() / "anyhow.yaml"
    path.write_bytes(text.encode())
    try:
        judge = judge_from_file(path)
    except SpecError as error:
        assert re.fullmatch(r"anyhow\.yaml, line \d+.*", str(error))
        return
    outcome = judged(judge, Even([]))
    assert not isinstance(outcome, Failure), outcome
