"""What an audit changes and what it leaves, what it counts, and how that is said."""

from __future__ import annotations

import asyncio
import html
import json
import math
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap
from statsmodels.stats.proportion import proportion_confint

from magistrate import Candidates, Hallucination, Rubric, ScriptedEngine, classifier
from magistrate.analysis.audit import CHECKS, Audit, Finding, Pair, effect, gravest_first
from magistrate.analysis.perturbations import (
    FUNCTION_WORDS,
    PERTURBATIONS,
    formatted,
    lengthened,
    noisy,
    options_swapped,
    padded,
    reasons_moved,
    shuffled,
    shuffled_by,
)
from magistrate.api.audit import Examination, audit_judge
from magistrate.datasets import load
from magistrate.errors import EngineError, InputError, SpecError
from magistrate.judges import Sentences, Windows, instance, registry
from magistrate.metrics.resampling import crossed_means, share_of
from magistrate.report.audit import groups, page, words
from magistrate.runs.limits import Limits
from magistrate.types import Abstention, Failure, Prompt, Sample, Span, Verdict
from terminal import Call

FAITHFULNESS: Any = instance("faithfulness")
ALONE = Limits(concurrency=1)
QUICKSTART = list(load("quickstart"))
SAMPLE = Sample(
    id="kettle",
    output='The kettle boils in six minutes. It is "safe" to leave it, since it turns itself off.',
    context=("The kettle boils water in six minutes.", "It turns itself off. It holds 1.7 litres of water."),
    label="faithful",
    spans=(Span(0, 3),),
)
TEXTS = st.text(st.sampled_from("The cat, that sat with 12 'dogs'. \n\n\"Æ日本\u202e\x00<b>&"), max_size=200)
SAMPLES = st.builds(
    Sample,
    id=st.text(max_size=3),
    output=TEXTS,
    context=st.lists(TEXTS, max_size=3).map(tuple),
    label=st.sampled_from(["faithful", None]),
    spans=st.just((Span(0, 1),)),
)


def plain_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


# --- edits ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(SAMPLES, st.integers(0, 3))
def test_edits_are_functions_of_sample_and_seed_and_keep_what_is_not_theirs(
    sample: Sample, seed: int
) -> None:
    for name, edit in {**PERTURBATIONS, "lengthened": lengthened}.items():
        changed = edit(sample, seed)
        assert changed == edit(sample, seed)
        assert (changed.id, changed.label, changed.input) == (sample.id, sample.label, sample.input)
        if changed.output != sample.output:
            assert changed.spans == () and changed.context == sample.context, name
        else:
            assert changed.spans == sample.spans


@settings(max_examples=60, deadline=None)
@given(SAMPLES)
def test_formatting_keeps_every_word_in_its_place(sample: Sample) -> None:
    assert plain_words(formatted(sample, 0).output or "") == plain_words(sample.output or "")


def test_formatting_is_markdown() -> None:
    text = formatted(SAMPLE, 0).output or ""
    assert re.fullmatch(r"- the .*\*\*\w+\*\*.*\n\n- it .*\*\*\w+\*\*.*\n", text), text


@settings(max_examples=60, deadline=None)
@given(SAMPLES)
def test_shuffling_loses_nothing_and_says_what_was_shuffled(sample: Sample) -> None:
    changed, by = shuffled(sample, 0), shuffled_by(sample)
    if by is None:
        assert changed == sample
    else:
        assert changed.context != sample.context
        assert Counter(plain_words(" ".join(changed.context))) == Counter(
            plain_words(" ".join(sample.context))
        )
    if by == "texts":
        assert Counter(changed.context) == Counter(sample.context)


@pytest.mark.parametrize(
    ("context", "by", "found"),
    [
        (("A b.", "C d."), "texts", ("C d.", "A b.")),
        (("A b. E f.\n\nC d.",), "paragraphs", ("C d.\n\nA b. E f.",)),
        (("It is late. Go home.",), "sentences", ("Go home. It is late.",)),
        (("It is late.", "It is late."), None, ("It is late.", "It is late.")),
        (("", "It is late. Go home."), "sentences", ("", "Go home. It is late.")),
        ((), None, ()),
    ],
)
def test_what_is_shuffled(context: tuple[str, ...], by: str | None, found: tuple[str, ...]) -> None:
    sample = replace(SAMPLE, context=context)
    assert (shuffled_by(sample), shuffled(sample, 0).context) == (by, found)


@pytest.mark.parametrize("sample", QUICKSTART[:20], ids=lambda each: each.id)
def test_noise_changes_letters_of_function_words_only(sample: Sample) -> None:
    before, after = (
        plain_words(sample.output or ""),
        plain_words((noisy(sample, 1).output or "").replace("’", "'")),
    )
    assert len(before) == len(after)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert all(a in FUNCTION_WORDS and sorted(a) == sorted(b) for a, b in changed)


def test_noise_is_noise_and_another_seed_gives_another() -> None:
    found = {noisy(SAMPLE, seed).output for seed in range(20)}
    assert len(found) > 3 and all("“safe”" in (text or "") for text in found)
    assert not FUNCTION_WORDS & {"not", "no", "never", "without", "all", "some", "more", "before", "after"}


def test_padding_adds_true_sentences_that_the_output_has_not() -> None:
    text = padded(SAMPLE, 0).output or ""
    assert text.startswith(SAMPLE.output or "?")
    added = text.removeprefix(f"{SAMPLE.output}\n")
    assert len(added) >= len(SAMPLE.output or "") / 2
    rest = added
    for sentence in (
        "The kettle boils water in six minutes.",
        "It turns itself off.",
        "It holds 1.7 litres of water.",
    ):
        rest = rest.replace(sentence, "", 1)
    assert rest.strip() == ""
    control = lengthened(SAMPLE, 0).output or ""
    assert control.startswith(SAMPLE.output or "?") and abs(len(control) - len(text)) < 12
    said = replace(SAMPLE, context=("It turns itself off now.",), output="Yes. It turns itself off now.")
    assert padded(said, 0) == said == lengthened(said, 0)


# --- forms of a judge -----------------------------------------------------------------------------


def test_labels_are_swapped_inside_whatever_wraps_them() -> None:
    for judge in (FAITHFULNESS, Sentences(FAITHFULNESS), Windows(Sentences(FAITHFULNESS))):
        swapped: Any = options_swapped(judge)
        assert type(swapped) is type(judge) and options_swapped(swapped) == judge != swapped
        assert swapped.info.name == judge.info.name
    for other in (Hallucination(), Rubric(), Candidates()):
        assert "no list of answers" in str(options_swapped(other))


def test_reasons_move_where_a_judge_has_an_option_for_it() -> None:
    found: dict[str, Any] = {}
    for judge in (FAITHFULNESS, Hallucination(), Rubric(), Candidates(), Sentences(FAITHFULNESS)):
        after, before = reasons_moved(judge)  # type: ignore[misc]
        found[judge.info.name] = (registry.spelled(after), registry.spelled(before))
    assert found == {
        "faithfulness": ("faithfulness", "faithfulness:explain=before"),
        "hallucination": ("hallucination:order=score_first", "hallucination"),
        "rubric": ("rubric", "rubric:order=reasoning_first"),
        "candidates": ("candidates:order=quote_first", "candidates"),
        "sentences": ("sentences:of=faithfulness@2", "sentences:of=(faithfulness@2:explain=before)"),
    }
    assert "prior cannot be combined with explain=before" in str(
        reasons_moved(registry.judge("faithfulness:prior=empty_context"))
    )
    assert "not supported with several categories" in str(reasons_moved(instance("moderation")))


# --- figures --------------------------------------------------------------------------------------


def verdict(score: float, judge: str = "j") -> Verdict:
    return Verdict("a", judge, "hallucinated" if score >= 0.5 else "faithful", score)


def pairs_of(flips: Any, *, contexts: Any = None) -> list[Pair]:
    """One pair a flip; `contexts` are numbers of their contexts, each its own without them."""
    numbers = range(len(flips)) if contexts is None else contexts
    return [
        Pair(Sample(str(at), "x", (f"context {number}",)), "x", verdict(0.2), verdict(0.8 if flip else 0.2))
        for at, (flip, number) in enumerate(zip(flips, numbers, strict=True))
    ]


@pytest.mark.parametrize(("hits", "n"), [(0, 40), (3, 40), (20, 40), (40, 40), (1, 1)])
def test_a_share_of_independent_pairs_has_the_wilson_interval(hits: int, n: int) -> None:
    found = effect(pairs_of([at < hits for at in range(n)])).flipped
    low, high = proportion_confint(hits, n, method="wilson")
    assert found.value == hits / n
    assert found.low == pytest.approx(min(low, hits / n), abs=0.012)
    assert found.high == pytest.approx(max(high, hits / n), abs=0.012)


def test_pairs_of_one_context_count_as_one_where_they_always_flip_together() -> None:
    contexts = [at // 10 for at in range(400)]
    found = effect(pairs_of([number % 4 == 0 for number in contexts], contexts=contexts))
    low, high = proportion_confint(10, 40, method="wilson")
    assert (found.pairs, found.contexts) == (400, 40)
    assert (found.flipped.low, found.flipped.high) == pytest.approx((low, high), abs=0.02)
    never = effect(pairs_of([False] * 400, contexts=contexts)).flipped
    assert never.high == pytest.approx(proportion_confint(0, 40, method="wilson")[1])


def test_a_mean_of_one_change_has_the_interval_of_the_bootstrap_in_scipy() -> None:
    scores = np.random.default_rng(3).uniform(0, 1, 60)
    pairs = [
        Pair(Sample(str(at), "x"), "x", verdict(0.5), verdict(float(score)))
        for at, score in enumerate(scores)
    ]
    found = effect(pairs).moved
    peer = bootstrap(
        (scores - 0.5,), np.mean, n_resamples=4000, method="percentile", rng=1
    ).confidence_interval
    assert found.value == pytest.approx(float((scores - 0.5).mean()))
    assert (found.low, found.high) == pytest.approx((peer.low, peer.high), abs=0.015)


def test_crossed_draws_have_the_variance_of_both_samples() -> None:
    # Additive rows and columns: the pigeonhole bootstrap's variance is that of the two means, plus the small
    # product term that Owen (2007), section 3, bounds.
    random = np.random.default_rng(0)
    a, b = random.normal(0, 1, 50), random.normal(0, 2, 20)
    rows, columns = (each.ravel() for each in np.meshgrid(np.arange(50), np.arange(20), indexing="ij"))
    drawn = crossed_means((a[rows] + b[columns])[:, None], rows, columns, draws=6000)
    assert drawn.var() == pytest.approx(a.var() / 50 + b.var() / 20, rel=0.08)
    one = crossed_means(a[rows][:, None], rows, np.zeros(1000, int), draws=6000)
    assert one.var() == pytest.approx(a.var() / 50, rel=0.08)
    assert (drawn == crossed_means((a[rows] + b[columns])[:, None], rows, columns, draws=6000)).all()
    with pytest.raises(InputError, match="values must be"):
        crossed_means([1.0, 2.0], [0, 1], [0, 1])
    assert share_of([], drawn[:, 0], 0).value is None


def test_what_has_no_verdict_is_counted_and_is_no_flip() -> None:
    failure = Failure("a", "j", "timeout", "slow")
    abstention = Abstention("a", "j", "over_length", "long")
    sample = Sample("a", "x")
    pairs = [
        Pair(sample, "x", verdict(0.2), failure, verdict(0.2)),
        Pair(sample, "x", verdict(0.2), verdict(0.9), abstention),
        Pair(sample, "x", failure, verdict(0.9), verdict(0.9)),
    ]
    lost = effect(pairs, unchanged=2)
    assert (lost.trials, lost.pairs, lost.unjudged, lost.unchanged, lost.n_lost) == (3, 0, 1, 2, 3)
    assert (lost.failures, lost.abstentions, lost.flips) == ({"timeout": 1}, {"over_length": 1}, {})
    assert lost.flipped.value is None and lost.gravity == -1
    assert "no pair has a verdict" in told(Finding("noise", lost))
    kept = effect([*pairs, Pair(sample, "x", verdict(0.2), verdict(0.9), verdict(0.1))])
    assert (kept.pairs, kept.flips, kept.gravity) == (1, {"faithful -> hallucinated": 1}, 1.0)
    assert kept.moved.value == pytest.approx(0.7) and kept.moved_under_control.value == pytest.approx(-0.1)  # type: ignore[union-attr]


def test_gravest_first_is_by_what_goes_beyond_the_control() -> None:
    half = effect(pairs_of([True, False]))
    controlled = [replace(pair, control=pair.changed) for pair in pairs_of([True, True])]
    findings = [
        Finding("options_swapped", None, "none"),
        Finding("padding", effect(controlled)),
        Finding("noise", half),
        Finding("repeated", effect([])),
    ]
    assert [each.check for each in gravest_first(findings)] == [
        "noise",
        "padding",
        "repeated",
        "options_swapped",
    ]


# --- an audit on a script -------------------------------------------------------------------------


def easily_led(prompt: Prompt) -> Any:
    """A script that says faithful of several lines that are no list, and hallucinated of all else."""
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    if "break" in output:
        return EngineError("broken")
    if "\n" in output.strip() and not output.startswith("-"):
        return {"faithful": 0.9, "hallucinated": 0.1}
    return {"faithful": 0.2, "hallucinated": 0.8}


ROWS = [
    {
        "id": f"s{number}",
        "output": f"The bridge number {number} is old, and that is all there is.",
        "context": [f"Bridge {number} was built in {1900 + number}.", "It crosses the river twice a day."],
        "label": "hallucinated",
    }
    for number in range(12)
]


def audited(engine: ScriptedEngine, rows: Any = ROWS, judge: Any = "faithfulness", **options: Any) -> Audit:
    return audit_judge(judge, rows, model=engine, **options)


def found_of(audit: Audit) -> dict[str, Finding]:
    return {finding.name: finding for finding in audit.findings}


def told(finding: Finding) -> str:
    return words(finding, audited(ScriptedEngine(easily_led), ROWS[:1], checks=["repeated"]))


def test_an_audit_finds_what_the_script_does_and_nothing_else() -> None:
    engine = ScriptedEngine(easily_led)
    audit = audited(engine, checks=["padding", "formatting", "noise", "repeated", "options_swapped"])
    shares = {
        name: finding.effect.flipped.value for name, finding in found_of(audit).items() if finding.effect
    }
    assert shares == {
        "padding": 1.0,
        "formatting": 0.0,
        "noise": 0.0,
        "repeated": 0.0,
        "options_swapped": 0.0,
    }
    padding = found_of(audit)["padding"].effect
    assert padding is not None and padding.under_control is not None and padding.under_control.value == 1.0
    assert padding.flips == {"hallucinated -> faithful": 12} and padding.gravity == 0.0
    assert (audit.n_judged, audit.n_planned, audit.complete) == (12 * 7, 12 * 7, True)
    assert len(engine.prompts) == 12 * 7  # as it is, again, swapped, padded, lengthened, formatted, noise
    assert audit.digest == load(ROWS).digest and "n=12" in audit.recipe and "faithfulness@" in audit.recipe
    assert "12 of 12 labels flip (12 hallucinated to faithful); 12 flip with harmless words" in words(
        found_of(audit)["padding"], audit
    )
    assert "towards faithful" in words(found_of(audit)["padding"], audit)


def test_hostile_texts_are_tried_in_both_places_beside_their_controls() -> None:
    audit = audited(ScriptedEngine(easily_led), checks=["hostile"], attacks=9)
    output, context = (found_of(audit)[f"hostile {where}"].effect for where in ("output", "context"))
    assert output is not None and context is not None
    assert (output.trials, context.trials, output.changes, len(audit.attacks)) == (108, 108, 9, 9)
    assert (context.flipped.value, context.moved.value) == (0.0, 0.0)
    assert output.flipped.value and output.under_control and output.under_control.value


def test_a_script_that_answers_differently_each_time_is_seen() -> None:
    def fickle(prompt: Prompt) -> Any:
        return {"faithful": 1.0} if len(engine.prompts) % 2 else {"hallucinated": 1.0}

    engine = ScriptedEngine(fickle, can=ScriptedEngine([]).info.can | {"repeatable"}, name="fickle")
    audit = audited(engine, ROWS[:4], checks=["repeated"], limits=ALONE)
    (finding,) = audit.findings
    assert finding.effect is not None and finding.effect.flipped.value == 1.0 and audit.repeatable
    assert "The engine promises the same answer" in words(finding, audit)


def test_what_does_not_apply_says_why_and_what_changes_nothing_is_counted() -> None:
    tone = classifier(
        "tone", "Polite?\n{{ output }}\n{{ reply }}", {"polite": 0, "rude": 1}, inputs=("output",)
    )
    engine = ScriptedEngine(lambda prompt: {"polite": 0.9, "rude": 0.1}, can=frozenset({"choose"}))
    audit = audited(engine, ROWS[:2], tone)
    assert {finding.name for finding in audit.findings if finding.effect is None} == {
        "padding",
        "contexts_shuffled",
        "reasons",
    }
    assert "does not offer" in str(found_of(audit)["reasons"].not_applicable)
    assert found_of(audit)["padding"].not_applicable == "tone does not read the context"
    assert "hostile output" in found_of(audit) and "hostile context" not in found_of(audit)
    bare = [{"output": "x", "context": "one"}, ROWS[0]]
    found = found_of(audited(ScriptedEngine(easily_led), bare, checks=["contexts_shuffled"]))[
        "contexts_shuffled"
    ]
    assert found.effect is not None and (found.effect.unchanged, found.effect.trials) == (1, 1)
    assert found.note == "1 by texts"
    alone = found_of(audited(ScriptedEngine(easily_led), bare[:1], checks=["contexts_shuffled"]))[
        "contexts_shuffled"
    ]
    assert alone.not_applicable == "it changes no sample"


def test_what_cannot_be_audited_is_refused() -> None:
    engine = ScriptedEngine(easily_led)
    with pytest.raises(SpecError, match="unknown check 'nois'; known: repeated"):
        audited(engine, checks=["nois"])
    with pytest.raises(SpecError, match="attacks must be 1 to"):
        audited(engine, attacks=0)
    assert engine.prompts == []


def moving(score: float, spread: float, n: int) -> Audit:
    """An audit of one check under which scores move by `score`, more or less."""
    pairs = [
        Pair(
            replace(SAMPLE, id=str(at), context=(f"{at}",)),
            "noise",
            Verdict(str(at), "j", "hallucinated", 0.5),
            Verdict(str(at), "j", "hallucinated", 0.5 + score + (spread if at % 2 else -spread)),
        )
        for at in range(n)
    ]
    audit = audited(ScriptedEngine(easily_led), ROWS[:1], checks=["repeated"])
    return replace(audit, findings=(Finding("noise", effect(pairs)),))


@pytest.mark.parametrize(
    ("score", "spread", "n", "said"),
    [
        (-0.1, 0.01, 20, "on average, towards faithful."),
        (-0.1, 0.0, 20, "on average, towards faithful."),
        (-0.02, 0.3, 20, "on average, which may be chance."),
        (-0.1, 0.01, 3, "change by -.10 on average."),
    ],
)
def test_a_direction_is_told_only_where_it_is_known(score: float, spread: float, n: int, said: str) -> None:
    audit = moving(score, spread, n)
    assert said in words(audit.findings[0], audit)


def test_what_may_well_flip_is_told_apart_from_faults() -> None:
    audit = audited(ScriptedEngine(easily_led), ROWS[:2], Rubric(), checks=["reasons", "noise"])
    faults, others = groups(audit)
    assert [each.name for each in faults[1]] == ["noise"] and [each.name for each in others[1]] == ["reasons"]
    text = page(audit)
    assert text.index(faults[0]) < text.index("<h3>noise") < text.index(others[0]) < text.index("<h3>reasons")
    assert [heading for heading, _ in groups(replace(audit, findings=tuple(others[1])))] == [others[0]]


def test_failures_of_the_engine_are_seen_in_the_audit() -> None:
    rows = [
        {**row, "output": f"{row['output']} break"} if number < 3 else row for number, row in enumerate(ROWS)
    ]
    audit = audited(ScriptedEngine(easily_led), rows, checks=["repeated"])
    (finding,) = audit.findings
    assert finding.effect is not None
    assert (finding.effect.pairs, finding.effect.failures, finding.effect.unjudged) == (
        9,
        {"engine_error": 3},
        3,
    )
    assert "3 of 12 pairs are not counted: 3 failed (engine_error); 3 without a verdict" in words(
        finding, audit
    )


def test_json_holds_everything_and_no_nan() -> None:
    data = json.loads(json.dumps(audited(ScriptedEngine(easily_led), ROWS[:1]).to_dict(), allow_nan=False))
    assert {each["check"] for each in data["findings"]} == set(CHECKS)
    assert data["complete"] is True and data["n_samples"] == 1


def test_the_page_is_one_file_without_a_script_and_everything_foreign_is_escaped() -> None:
    evil = "<script>alert('x')</script>"
    audit = replace(
        audited(ScriptedEngine(easily_led), ROWS[:3]), judge=evil, dataset=evil, recipe=f"judge={evil}"
    )
    text = page(audit)
    assert "<script" not in text and html.escape(evil, quote=False)[:8] in text
    assert not re.search(r"(src|href|url)\s*[=(]", text)
    for finding in audit.findings:
        assert f"<h3>{finding.name}</h3>" in text
    assert text.count("<svg") == sum(bool(each.effect and each.effect.pairs) for each in audit.findings)
    assert "Not complete" not in text and "Not complete" in page(replace(audit, n_judged=1))


def test_an_interrupted_examination_answers_what_it_has() -> None:
    async def interrupted() -> Examination:
        engine = ScriptedEngine(easily_led, delay=0.01)
        examination = Examination(FAITHFULNESS, engine, load(ROWS), limits=ALONE)
        task = asyncio.ensure_future(examination.go())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return examination

    audit = asyncio.run(interrupted()).result()
    assert not audit.complete and 1 <= audit.n_judged < audit.n_planned
    assert sum(each.effect.trials for each in audit.findings if each.effect) >= 1
    assert math.isfinite(audit.seconds)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    engine = ScriptedEngine(easily_led, name="script")
    monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: engine)
    return engine


def test_the_command_prints_one_page_writes_another_and_refuses_to_replace_it(
    call: Call, scripted: ScriptedEngine, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    command = ("audit", "faithfulness", "--data", "rows.jsonl", "--limit", 3, "--html", "page.html")
    done = call(*command)
    assert done.code == 0 and "wrote page.html" in done.err
    assert done.width <= 80 and "audit of faithfulness" in done.out and "recipe" in done.out
    assert [name for name in CHECKS if name not in done.out] == []
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    asked = len(scripted.prompts)
    again = call(*command)
    assert again.code == 2 and "--force" in again.err and len(scripted.prompts) == asked
    assert call(*command, "--force", "--json").data["n_samples"] == 3
    assert call(*command[:-1], "no/where.html").code == 2
    assert call("audit", "faithfulness", "--data", "rows.jsonl", "--check", "nois").code == 2
    row = '{"output": "break", "context": "x"}\n'
    broken = call("audit", "faithfulness", "--data", "-", "--check", "repeated", stdin=row)
    assert broken.code == 3 and "nothing can be said" in broken.err
    gone = call("audit", "faithfulness", "--data", "-", stdin=row)
    assert gone.code == 3 and "of 35 judgements were made" in gone.err and "20 times in a row" in gone.err


@pytest.mark.full
def test_ctrl_c_says_what_was_done(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from magistrate import cli, ScriptedEngine\n"
        "from magistrate.judges import registry\n"
        "asked = []\n"
        "def answer(prompt):\n"
        "    asked.append(prompt)\n"
        "    if len(asked) == 5: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return {'faithful': 1.0}\n"
        "engine = ScriptedEngine(answer, delay=0.3, name='slow')\n"
        "registry.engine_for = lambda *a, **o: engine\n"
        "sys.argv = ['magistrate', 'audit', 'faithfulness', '--data', 'quickstart', '--concurrency', '2']\n"
        "cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert re.search(r"interrupted: \d+ of \d+ judgements were made; none of them is stored", done.stderr)
    assert "not complete" in done.stdout
