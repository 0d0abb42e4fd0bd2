"""What is written under a constraint is always complete and within its budget, whatever the model wants."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desk import Desk
from magistrate.constraints import Constraint, Lark, constraint
from magistrate.engines.base import Sampling
from magistrate.engines.embedded.verbs import Decoder
from magistrate.errors import ConstraintError

UNLIMITED = 1000


def closed(**properties: Any) -> dict[str, Any]:
    optional = [name for name in properties if name.startswith("maybe")]
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def string(least: int, most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": least, "maxLength": most}


def number(least: float, most: float, step: float) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most, "multipleOf": step}


def several(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


REASONS, SCORE = several(string(1, 160), 1, 3), number(0, 1, 0.01)
VERDICT = closed(reasons=REASONS, score=SCORE)
NULL = {"type": "null"}
SHAPES: dict[str, Any] = {
    "verdict": VERDICT,
    "score first": closed(score=SCORE, reasons=REASONS),
    "nested lists": several(several(number(-50, 5000, 1), 2, 4), 1, 3),
    "enumerations": closed(
        label={"enum": ["faithful", 'partly "so"', 7, None]}, also={"enum": ["x", "xa", "xab"]}
    ),
    "optional": closed(
        a={"anyOf": [string(0, 40), NULL]}, maybe={"type": "boolean"}, maybe_too=string(5, 30)
    ),
    "a long string": closed(text=string(0, 2000)),
    "a string at least so long": closed(text=string(30, 60), n=number(10, 20, 1)),
    "patterns": closed(
        code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,6}$"},
        hex={"type": "string", "pattern": "^[b-f]{1,40}$"},
    ),
    "a number": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "claims": several(
        closed(kind={"enum": ["no", "yes"]}, quote={"anyOf": [NULL, string(1, 80)]}, sure=SCORE), 1, 4
    ),
    "quotes": constraint(
        several(
            closed(
                said={"type": "string", "x-quote": {"of": "output"}, "maxLength": 40},
                given={"anyOf": [NULL, {"type": "string", "x-quote": {"of": "text", "unit": "sentences"}}]},
                maybe={"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
                sum={"type": "string", "x-lark": 'start: NUMBER ("+" NUMBER){0,9}\nNUMBER: /[1-9]{1,9}/'},
            ),
            1,
            3,
        )
    ).over(
        output="It opens at ten,\n<|im_end|> as 我喜欢 say.", text=["The doors open at nine. Good.", "No?"]
    ),
    "a line": re.compile("[^\r\n]{1,280}"),
    "a sentence": re.compile(r"[^\r\n]{20,280}\."),
    "a date": re.compile(r"\d{4}-(0[1-9]|1[0-2])-\d\d"),
    "choices": ["yes", "yes, but", "no", "<|im_end|>", "<|im_end|> x"],
    "a grammar": Lark(
        'start: term (("+"|"*") term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[1-9][0-9]{0,3}/'
    ),
    "a grammar around JSON": Lark(
        'start: "Verdict: " object "."\nobject: %json {"type": "object", "properties": {"why": {"type": '
        '"string", "maxLength": 100}, "n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": '
        '["why", "n"], "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}'
    ),
}


# --- always complete, never over budget -------------------------------------------------------------


def check(desk: Desk, shape: Constraint, sampling: Sampling) -> Decoder:
    """Write, and hold what was written to the laws; a greedy text is compared to one without a budget."""
    decoder = desk.write(shape, sampling)
    assert decoder.finished and len(decoder.tokens) <= sampling.max_tokens
    text = desk.text(decoder.tokens)
    shape.parse(text)
    assert desk.chat.decode(decoder.tokens) == text
    if sampling.temperature == 0:
        free = desk.write(shape, Sampling(UNLIMITED))
        assert not free.steered or len(free.tokens) == UNLIMITED
        assert decoder.steered == (decoder.tokens != free.tokens)
    return decoder


@pytest.mark.full
@pytest.mark.parametrize("name", SHAPES)
def test_every_text_is_complete_under_every_budget_that_is_accepted(desk: Desk, name: str) -> None:
    shape = constraint(SHAPES[name])
    least = desk.least(shape)
    for budget in [*range(least, least + 18), *range(least + 18, least + 100, 16)]:
        check(desk, shape, Sampling(budget))
        check(desk, shape, Sampling(budget, temperature=2.0, seed=budget))


texts = st.builds(string, st.integers(0, 6), st.integers(6, 60))
leaves = st.one_of(
    texts,
    st.builds(number, st.integers(-20, 0), st.integers(0, 3000), st.sampled_from([0.01, 0.5, 1])),
    st.just({"type": "boolean"}),
    st.just({"enum": ["low", "lower", 3, None, "é\n"]}),
    st.builds(lambda text: {"anyOf": [NULL, text]}, texts),
)
schemas = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.builds(several, parts, st.integers(0, 2), st.integers(2, 4)),
        st.dictionaries(st.sampled_from(["a", "maybe", "maybe b", "die Gründe"]), parts, min_size=1).map(
            lambda properties: closed(**properties)
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(schemas, st.integers(0, 60), st.sampled_from([0.0, 0.7, 3.0]), st.integers(0, 999))
def test_any_schema_is_completed(
    desk: Desk, schema: dict[str, Any], extra: int, temperature: float, seed: int
) -> None:
    shape = constraint(schema)
    check(desk, shape, Sampling(desk.least(shape) + extra, temperature, seed=seed))


def test_a_budget_that_is_too_small_is_an_error_before_anything_is_written(desk: Desk) -> None:
    shape = constraint(VERDICT)
    decoder = Decoder(desk.chat, desk.masks.matcher(shape), Sampling(desk.least(shape) - 1))
    with pytest.raises(ConstraintError, match="allow more tokens"):
        decoder.begin()
    assert decoder.tokens == []


# --- what the model still decides -------------------------------------------------------------------


def test_the_score_stays_the_models_own_in_every_budget_that_has_room_for_it(desk: Desk) -> None:
    shape = constraint(VERDICT)
    least = desk.least(shape)
    for budget in range(least + 3, least + 60):  # "0" is one token, "0.85" are four
        endless = f'{{"reasons":["{"because it is so " * 9}"],"score":0.85}}'
        decoder = desk.write(shape, Sampling(budget), stubborn(desk, "because it is so ", "0.85"))
        value = shape.parse(desk.text(decoder.tokens))
        assert value["score"] == 0.85 and endless.startswith(f'{{"reasons":["{value["reasons"][0][:4]}')
        assert decoder.steered and len(decoder.tokens) > budget - 20


def stubborn(desk: Desk, reason: str, score: str) -> Callable[[list[int]], np.ndarray]:
    """A model that repeats `reason` for ever and, once made to stop, wants `score`."""

    def logits(tokens: list[int]) -> np.ndarray:
        text = desk.text(tokens)
        _, marker, written = text.partition('"score":')
        row = desk.rows[0].copy()
        row[desk.chat.encode(score[len(written) :] or "}" if marker else reason).tokens[0]] += 50
        return row

    return logits


def test_tight_budgets_do_not_fix_a_number(desk: Desk) -> None:
    shape = constraint(VERDICT)
    budget = desk.least(shape) + 3
    scores = Counter(
        shape.parse(desk.text(desk.write(shape, Sampling(budget, 2.0, seed=seed)).tokens))["score"]
        for seed in range(60)
    )
    assert len(scores) > 10


@pytest.mark.parametrize("name", ["a line", "a long string"])
def test_free_text_is_cut_and_not_changed(desk: Desk, name: str) -> None:
    shape = constraint(SHAPES[name])

    def free_text(budget: int) -> str:
        value = shape.parse(
            desk.text(desk.write(shape, Sampling(budget), desk.wants(opening + "so " * 60)).tokens)
        )
        return value["text"] if isinstance(value, dict) else value

    opening = '{"text":"' if name == "a long string" else ""
    for budget in range(desk.least(shape), 60):
        assert ("so " * 60).startswith(free_text(budget))
    assert len(free_text(50)) >= 75  # at most the slack is lost


def test_a_token_that_moves_the_end_out_of_reach_is_taken_back(desk: Desk) -> None:
    shape = constraint(closed(why=string(0, 200), maybe={"const": "no end of words " * 20}))
    wanted = '{"why":"' + "so " * 9 + '","maybe":"' + "no end of words " * 20 + '"}'
    needed = len(desk.write(shape, Sampling(UNLIMITED), desk.wants(wanted)).tokens)
    for budget in (desk.least(shape), 20, 40, 60, needed - 1):
        decoder = desk.write(shape, Sampling(budget), desk.wants(wanted))
        assert decoder.steered and "maybe" not in shape.parse(desk.text(decoder.tokens))
    decoder = desk.write(shape, Sampling(needed), desk.wants(wanted))
    assert desk.text(decoder.tokens) == wanted


def test_what_only_looks_like_a_special_token_is_written_as_text(desk: Desk) -> None:
    for text in ("<|im_end|><|im_start|>system", "é<|im_end|>中", "a <|im_end|>", "<|im_end|>\U0001f600"):
        decoder = desk.write(constraint([text]), Sampling(40))
        assert desk.text(decoder.tokens) == text
        decoder = desk.write(constraint([text, "中" + text]), Sampling(40), desk.wants("中" + text))
        assert desk.text(decoder.tokens) == "中" + text
    only = desk.write(constraint(["faithful, as far as it goes"]), Sampling(40))
    assert only.forced_count == len(only.tokens) and not only.steered


def test_a_grammar_that_cannot_be_compiled_is_a_constraint_error(desk: Desk) -> None:
    for text in ("start: nowhere", "start: /(/", ""):
        with pytest.raises(ConstraintError, match="cannot be compiled"):
            desk.masks.matcher(constraint(Lark(text)))


# --- sampling ---------------------------------------------------------------------------------------

PROBABILITIES = np.array([0.5, 0.25, 0.12, 0.06, 0.04, 0.03])


class Ends:
    ends = (99,)


def drawn(n: int = 400, **options: Any) -> Counter[int]:
    logits = np.log(PROBABILITIES).astype(np.float32)
    decoder = Decoder(Ends(), None, Sampling(max_tokens=n, **options))
    while not decoder.done:
        decoder.write(logits)
    return Counter(decoder.tokens)


def test_temperature_draws_from_the_models_distribution() -> None:
    counts = drawn(4000, temperature=1.0)
    assert np.array([counts[token] for token in range(6)]) / 4000 == pytest.approx(PROBABILITIES, abs=0.03)
    sharper = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    counts = drawn(4000, temperature=0.5)
    assert np.array([counts[token] for token in range(6)]) / 4000 == pytest.approx(sharper, abs=0.03)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"temperature": 0.0}, {0}),
        ({"temperature": 1.0, "top_p": 1e-9}, {0}),
        ({"temperature": 1e-300}, {0}),
        ({"temperature": 1.0, "min_p": 0.999}, {0}),
        ({"temperature": 1.0, "min_p": 0.2}, {0, 1, 2}),
        ({"temperature": 1.0, "top_p": 0.8}, {0, 1, 2}),
        ({"temperature": 1.0, "top_p": 0.8, "min_p": 0.4}, {0, 1}),
        ({"temperature": 1.0, "top_p": 1.0}, set(range(6))),
    ],
)
def test_top_p_and_min_p_keep_what_they_promise(options: dict[str, float], kept: set[int]) -> None:
    assert set(drawn(**options)) == kept


def test_a_seed_fixes_what_is_drawn(desk: Desk) -> None:
    shape = constraint(VERDICT)
    drafts = [desk.write(shape, Sampling(60, 1.0, seed=seed)).tokens for seed in (1, 2, 1)]
    assert drafts[0] == drafts[2] != drafts[1]


# --- the trace --------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [14, 20, 60, 900])
def test_a_trace_tells_the_text_step_by_step(desk: Desk, budget: int) -> None:
    shape = constraint(VERDICT)
    decoder = desk.write(
        shape, Sampling(budget, trace=True), desk.wants('{"reasons":["so it is, so it is"],"score":1}')
    )
    assert len(decoder.trace) == len(decoder.tokens)
    assert sum(step.forced for step in decoder.trace) == decoder.forced_count
    texts = [step.text for step in decoder.trace] + [desk.text(decoder.tokens)]
    assert all(
        before + step.chosen == after
        for step, (before, after) in zip(decoder.trace, pairwise(texts), strict=True)
    )
    for step in decoder.trace:
        assert 0 <= step.removed_mass <= 1
        if not step.forced:
            probabilities = [probability for _, probability in step.wanted]
            assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) <= 1
    opened = next(step for step in decoder.trace if step.text == '{"reasons":["')
    assert opened.wanted[0][0] == opened.chosen == "so" and opened.removed_mass < 0.01
    masked = [step for step in decoder.trace if not step.forced and step.wanted[0][0] != step.chosen]
    assert bool(masked) == decoder.steered
