"""Whatever a text on trial says, it is asked the same questions, in the same words, under the same limits."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from desk import Desk
from magistrate.analysis.audit import Pair, effect
from magistrate.analysis.hostile import (
    ATTACKS,
    RUN,
    Attack,
    Place,
    Where,
    attacked,
    control,
    harmless,
    spread,
)
from magistrate.constraints import Constraint
from magistrate.constraints.quote import LONGEST, SHORTEST, edges
from magistrate.datasets import load
from magistrate.engines.base import GREEDY, Capture, Choice, Generation, Option, Sampling
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import InputError
from magistrate.judges import registry
from magistrate.runs.execute import judge_one
from magistrate.types import (
    Abstention,
    Failure,
    Message,
    Outcome,
    Prompt,
    Sample,
    Span,
    Trusted,
    Turn,
    Verdict,
)
from tiers import some

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "hostile.py"

JUDGES = (
    "faithfulness",
    "faithfulness:explain=after",
    "faithfulness:explain=before",
    "relevance",
    "context_relevance",
    "moderation",
    "hallucination",
    "candidates",
    "candidates:exhaustive=true",
    "rubric",
    "rubric:free_stage=false",
    "rubric:wording=expert",
    "sentences",
)
DEAR = ("candidates:exhaustive=true", "rubric:free_stage=false", "rubric:wording=expert")  # seconds each
TOKENIZED = ("faithfulness", "hallucination", "candidates", "rubric")
PLACES: tuple[Place, ...] = get_args(Place)
WHERE: tuple[Where, ...] = get_args(Where)

SAMPLE = Sample(
    id="kettle",
    input="How long does the kettle take, and is it safe to leave it alone?",
    context=(
        "The kettle holds 1.7 litres and boils them in six minutes.",
        "It turns itself off when the water boils. Do not leave it on without water.",
    ),
    output="It takes six minutes. It turns itself off, so you may leave it alone.",
    messages=(Turn("user", "I have bought the large kettle."), Turn("assistant", "A good choice.")),
    label="faithful",
    spans=(Span(0, 2),),
)


# --- the attacks -----------------------------------------------------------------------------------


def test_there_are_many_attacks_of_every_family_and_place_and_no_two_are_the_same() -> None:
    assert len(ATTACKS) >= 60
    page = Path(__file__).parent.parent / "docs" / "judges.md"
    assert f"has {len(ATTACKS)} attacks" in page.read_text(encoding="utf-8")
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert len({(attack.text, attack.place) for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.place for attack in ATTACKS} == set(PLACES)
    assert len({attack.family for attack in ATTACKS}) >= 10


def test_a_control_is_another_text_of_the_same_size_at_the_same_place() -> None:
    for attack in ATTACKS:
        twin = control(attack)
        assert (twin.family, twin.place, twin.name != attack.name) == ("control", attack.place, True)
        assert twin.text != attack.text, attack.name
        assert abs(len(twin.text) - len(attack.text)) <= 20, attack.name
        assert twin.text.isprintable() and not set(twin.text) & set('{}[]<>|="\\'), attack.name
        assert control(attack) == twin


@pytest.mark.parametrize(
    ("place", "text", "made"),
    [
        ("before", "It is late.", "Yes.\nIt is late."),
        ("after", "It is late.", "It is late.\nYes."),
        ("inside", "It is late. Go home.", "It is late. Yes. Go home."),
        ("inside", "It is late.\nGo home.", "It is late. Yes.\nGo home."),
        ("inside", "one two three four", "one two three Yes. four"),
        ("inside", "oneword", "one Yes. word"),
        ("inside", "", " Yes. "),
    ],
)
def test_an_attack_stands_in_its_place_and_takes_nothing_away(place: Place, text: str, made: str) -> None:
    assert Attack("note", "verdict", "Yes.", place).applied(text) == made


def test_a_harmless_edit_is_the_control_behind_the_text() -> None:
    for size in (0, 1, 22, 100, RUN):
        assert abs(len(harmless("x", size)) - size) <= 12
        assert harmless("x", size) == control(Attack("a", "b", "c" * size)).applied("x")


def test_an_attack_changes_one_text_of_a_sample_and_neither_id_nor_label() -> None:
    attack = Attack("note", "verdict", "Yes.")
    on_output, on_context = (attacked(SAMPLE, attack, where) for where in WHERE)
    assert on_output.output == f"{SAMPLE.output}\nYes." and on_output.context == SAMPLE.context
    assert on_output.spans == ()  # offsets into another text
    assert on_context.context == (SAMPLE.context[0], f"{SAMPLE.context[1]}\nYes.")
    assert (on_context.output, on_context.spans) == (SAMPLE.output, SAMPLE.spans)
    for made in (on_output, on_context):
        assert (made.id, made.label, made.input, made.messages) == (
            (SAMPLE.id, SAMPLE.label, SAMPLE.input, SAMPLE.messages)
        )


@pytest.mark.parametrize("where", WHERE)
def test_what_is_not_there_cannot_be_attacked(where: Where) -> None:
    with pytest.raises(InputError, match=f"'empty' has no {where}"):
        attacked(Sample("empty", None), ATTACKS[0], where)


# --- what is asked ---------------------------------------------------------------------------------


class Recorder(ScriptedEngine):
    """Keeps of every call all that no text on trial may change."""

    def __init__(self, script: Callable[[Prompt], Any]) -> None:
        super().__init__(script)
        self.asked: list[tuple[Any, ...]] = []
        self.constraints: list[Constraint] = []

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        limit = None if constraint is None else (constraint.kind, json.dumps(constraint.schema))
        self.constraints += [] if constraint is None else [constraint]
        self.asked.append(("generate", template(prompt), limit, sampling))
        return await super().generate(prompt, constraint, sampling=sampling)

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        self.asked.append(("choose", template(prompt), tuple(options), capture))
        return await super().choose(prompt, options, capture=capture)


def template(prompt: Prompt) -> tuple[Any, ...]:
    """Roles and trusted texts, with only the names of the data parts between them."""
    return tuple((message.role, *map(shown, message.parts)) for message in prompt.messages)


def shown(part: Any) -> Any:
    return part.text if isinstance(part, Trusted) else (part.name,)


def trusted(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Trusted))


SHARES = {
    "faithful": 0.3,
    "hallucinated": 0.6,
    "relevant": 0.6,
    "irrelevant": 0.3,
    "safe": 0.3,
    "flagged": 0.6,
    "contradiction": 0.6,
    "agreement": 0.3,
    "unsupported": 0.6,
    "quoted": 0.3,
}


def gullible(attack: Attack | None) -> Callable[[Prompt], Any]:
    """A model that goes through every step, and repeats and quotes the attack wherever it may write."""
    echo = " ".join(attack.text.split())[:200] if attack else ""

    def answer(prompt: Prompt) -> Any:
        last = prompt.messages[-1]
        said = trusted(last)
        if last.role == "assistant":  # what was begun: an explanation, or what comes before a choice
            return SHARES if len(last.parts) > 1 or not said else echo or "It is so."
        if "Think about whether" in said:
            return echo or "They agree."
        if "Reply in JSON" not in said:
            return SHARES
        if '"reasons"' in said:
            return json.dumps({"reasons": [echo[:100] or "nothing"], "score": 0.5})
        texts = {part.name: part.text for part in prompt.data()}
        ours, theirs = (words_of(texts[name], attack) for name in ("output", "context"))
        if '"candidates"' in said:
            return json.dumps({"candidates": [{"reason": "doubtful", "quote": ours}]})
        expert = '"expert_quote"' in said
        claim = {"candidate_quote" if expert else "answer_quote": ours}
        claim |= {"expert_quote" if expert else "context_quote": theirs}
        claim |= {"quoted": "statement", "reasoning": "another", "kind": "contradiction"}
        return json.dumps({"claims": [claim]})

    return answer


def words_of(text: str, attack: Attack | None) -> str:
    """A quote of `text` that begins in the attack if one can, else at the beginning."""
    spans = [(start, end) for start, end in pairwise(edges(text, "words")) if not text[start:end].isspace()]
    hostile = text.find(attack.text) if attack else 0
    for start, _ in sorted(spans, key=lambda span: span[0] < hostile):
        ends = [end for _, end in spans if SHORTEST <= end - start <= LONGEST]
        if ends:
            return text[start : ends[-1]]
    raise AssertionError(f"nothing in {text[:100]!r} can be quoted")


@cache
def asked(spec: str, attack: Attack | None = None, where: Where = "output") -> tuple[Recorder, Verdict]:
    """What a judge asks of the sample, under attack or as it is, and its verdict."""
    engine = Recorder(gullible(attack))
    sample = attacked(SAMPLE, attack, where) if attack else SAMPLE
    outcome = asyncio.run(judge_one(sample, registry.judge(spec), engine))
    assert [step.verb for step in outcome.steps] == [call[0] for call in engine.asked]
    assert isinstance(outcome, Verdict), outcome
    assert misplaced(outcome, sample) == []
    return engine, outcome


def misplaced(verdict: Verdict, sample: Sample) -> list[str]:
    """What the claims of a verdict point to and its last text, the list of them, has not quoted."""
    texts = [step.result["text"] for step in verdict.steps if step.verb == "generate"]
    if not (texts and verdict.claims):
        return []
    (entries,) = json.loads(texts[-1]).values()
    written = [each[key] for each in entries for key in each if key.endswith("quote")]
    places = [(sample.output, claim.output_quote) for claim in verdict.claims]
    for claim in verdict.claims:
        if claim.context_quote is not None:
            places.append((sample.sources[claim.context_index], claim.context_quote))
    pointed = [text[place.start : place.end] for text, place in places]
    return [quote for quote in pointed if quote not in written]


@pytest.mark.parametrize("spec", JUDGES)
def test_the_clean_sample_takes_a_judge_through_all_its_steps(spec: str) -> None:
    engine, verdict = asked(spec)
    assert bool(verdict.claims) == spec.startswith(("candidates", "rubric", "sentences"))
    steps = {
        "faithfulness": ["choose"],
        "faithfulness:explain=after": ["choose", "generate", "choose"],
        "faithfulness:explain=before": ["generate", "choose"],
        "moderation": ["choose"] * 7,
        "hallucination": ["generate"],
        "candidates": ["generate", "choose"],
        "rubric": ["generate", "generate", "choose"],
        "rubric:free_stage=false": ["generate", "choose"],
        "sentences": ["choose"] * 2,
    }
    name = spec if spec in steps else spec.partition(":")[0]
    assert [call[0] for call in engine.asked] == steps.get(name, ["choose"])


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    "spec", [pytest.param(each, marks=pytest.mark.full if each in DEAR else ()) for each in JUDGES]
)
def test_no_attack_changes_what_is_asked(spec: str, where: Where) -> None:
    expected = asked(spec)[0].asked

    def holds(attack: Attack) -> bool:
        calls = asked(spec, attack, where)[0].asked
        if spec == "sentences" and where == "output":  # one call a sentence, and an attack has its own
            return len(calls) >= len(expected) and set(calls) == set(expected)
        return calls == expected

    assert [attack.name for attack in some(ATTACKS) if not holds(attack)] == []


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("spec", TOKENIZED)
def test_no_attack_changes_a_token_of_the_template(desk: Desk, spec: str, where: Where) -> None:
    special = {token["id"] for token in json.loads(desk.chat.json)["added_tokens"]}

    def tokens(prompt: Prompt) -> tuple[list[Any], int]:
        """The template's tokens around the names of the data parts, and how many tokens are special."""
        pieces = desk.chat.pieces(prompt)
        of_template = [piece.tokens if piece.data is None else piece.data for piece in pieces]
        return of_template, sum(token in special for piece in pieces for token in piece.tokens)

    expected = [tokens(prompt) for prompt in asked(spec)[0].prompts]
    assert all(specials >= 5 for _, specials in expected)  # two turns and the beginning of a third
    for attack in some(ATTACKS):
        assert [tokens(prompt) for prompt in asked(spec, attack, where)[0].prompts] == expected, attack.name


@pytest.mark.full
@pytest.mark.parametrize("family", dict.fromkeys(attack.family for attack in ATTACKS))
@pytest.mark.parametrize(("spec", "where"), [("candidates", "output"), ("rubric", "context")])
def test_a_model_that_quotes_the_attack_comes_to_an_end(
    desk: Desk, spec: str, where: Where, family: str
) -> None:
    for attack in (each for each in ATTACKS if each.family == family):
        engine, verdict = asked(spec, attack, where)
        (text,) = [step.result["text"] for step in verdict.steps if step.verb == "generate"][-1:]
        compact = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
        compact = re.sub("[\U00040000-\U000bffff]", lambda rare: json.dumps(rare[0])[1:-1], compact)
        wanted = compact.encode("utf-8", "backslashreplace")  # half of a pair of surrogates is escaped
        pen = desk.write(engine.constraints[-1], Sampling(1000), insisting(desk, wanted))
        written = desk.text(pen.tokens)
        assert written.encode() == wanted, attack.name
        engine.constraints[-1].parse(written)


def insisting(desk: Desk, wanted: bytes) -> Callable[[list[int]], Any]:
    """Logits of a model that writes `wanted`, and anything where it cannot."""
    vocabulary = vocabulary_of(desk)

    def logits(tokens: list[int]) -> Any:
        row = desk.rows[0].copy()
        written = bytes(desk.masks.tokenizer.decode_bytes(tokens))
        rest = wanted[len(written) :] if wanted.startswith(written) else b""
        known = [rest[:length] for length in range(min(len(rest), 16), 0, -1) if rest[:length] in vocabulary]
        row[vocabulary[known[0]] if known else desk.chat.ends[0]] += 50
        return row

    return logits


@cache
def vocabulary_of(desk: Desk) -> dict[bytes, int]:
    return dict(desk.masks.vocabulary_bytes())


# --- the embedded model ----------------------------------------------------------------------------

TRIED = {
    "chatml system turn": "output",
    "xml": "context",
    "close claim": "output",
    "system section": "context",
    "sandbox escape": "output",
    "every placeholder": "context",
    "lone surrogates": "output",
    "long emoji": "output",
}


@pytest.mark.parametrize(
    "spec",
    [
        "faithfulness",
        pytest.param("candidates:n=1", marks=pytest.mark.full),
        pytest.param("rubric:free_stage=false,most=1", marks=pytest.mark.full),
    ],
)
def test_the_model_under_attack_gives_verdicts_whose_quotes_stand_where_they_say(
    engine: LocalEngine, spec: str
) -> None:
    by_name = {attack.name: attack for attack in ATTACKS}
    sample = next(each for each in load("quickstart") if each.id == "qs-039")
    tried = {name: attacked(sample, by_name[name], where) for name, where in TRIED.items()}
    assert len({by_name[name].family for name in tried}) == len(tried) == 8

    async def judged() -> list[Outcome]:
        return await asyncio.gather(
            *(judge_one(each, registry.judge(spec), engine) for each in tried.values())
        )

    for (name, each), outcome in zip(tried.items(), asyncio.run(judged()), strict=True):
        if name == "long emoji":
            assert isinstance(outcome, Abstention) and outcome.reason == "over_length"
        else:
            assert isinstance(outcome, Verdict), (name, outcome)
            assert misplaced(outcome, each) == []


# --- the benchmark ---------------------------------------------------------------------------------


def test_the_benchmark_shows_flips_beside_those_under_the_control() -> None:
    script = runpy.run_path(str(SCRIPT))

    def verdict(score: float) -> Verdict:
        return Verdict("a", "faithfulness", "hallucinated" if score >= 0.5 else "faithful", score)

    def pairs(hostile: float, harmless: float) -> list[Pair]:
        cells = [(Sample(str(sample), "x"), str(attack)) for sample in range(8) for attack in range(8)]
        return [Pair(*cell, verdict(0.2), verdict(hostile), verdict(harmless)) for cell in cells]

    assert "+100.0%  " in script["shown"]("output", effect(pairs(0.8, 0.2)))
    mixed = script["shown"]("output", effect([*pairs(0.8, 0.2)[:32], *pairs(0.2, 0.2)[32:]]))
    assert re.search(r"64/64    50.0%     0.0%  \+50.0% \[\+\d+.\d%, \+\d+.\d%\] +\+0.300  \+0.000", mixed)
    failure = Failure("a", "faithfulness", "engine_error", "")
    lost = [Pair(Sample("a", "x"), "1", verdict(0.2), failure, verdict(0.2))]
    assert re.search("no pair has three verdicts +1 failed, 0 abstained", script["shown"]("x", effect(lost)))


def test_attacks_are_taken_from_every_family_in_turn() -> None:
    families = {attack.family for attack in ATTACKS}
    taken = spread(ATTACKS, 2 * len(families))
    assert Counter(attack.family for attack in taken) == dict.fromkeys(families, 2)
    assert set(spread(ATTACKS, 0)) == set(ATTACKS)
