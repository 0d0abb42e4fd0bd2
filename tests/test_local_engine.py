"""The embedded engine on the default model: the same bits whatever else is asked, and exact probabilities."""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magistrate.constraints import Lark, constraint
from magistrate.engines.base import Capture, Option, Sampling
from magistrate.engines.embedded import verbs
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.errors import (
    CapabilityError,
    ConstraintError,
    EngineGone,
    EngineTimeout,
    ModelError,
    OverLength,
    SpecError,
)
from magistrate.judges import Hallucination
from magistrate.types import Data, Message, Prompt, Sample, Trusted
from processor import CLOSE, EXACT

YES_NO = (Option("yes", ("Yes", "yes", " Yes")), Option("no", ("No", "no", " No")))
LONGER = (Option("agrees", ("It is so", "Right")), Option("differs", ("It is not so at all", "Wrong")))
VERDICT = constraint(
    {
        "type": "object",
        "properties": {
            "reasons": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 80},
                "minItems": 1,
                "maxItems": 2,
            },
            "score": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
        },
        "required": ["reasons", "score"],
        "additionalProperties": False,
    }
)
ASKED = Prompt.of("Is the sky blue? Answer Yes or No.")


def prompt_of(engine: LocalEngine, tokens: int, ending: str = "") -> Prompt:
    """A prompt of exactly so many tokens; shorter ones are beginnings of longer ones up to the last turn."""
    words = ["The", "bridge", "over", "the", "river", "was", "closed", "for", "repairs", "in", "May", "."]

    def prompt(n: int) -> Prompt:
        text = " ".join(words[index % len(words)] for index in range(n)) + ending
        return Prompt((Message("user", (Trusted("Read: "), Data(text, "output"), Trusted("\nIs it true?"))),))

    n = tokens - len(engine.tokenizer.tokens(prompt(0)))
    found = prompt(n)
    assert len(engine.tokenizer.tokens(found)) == tokens
    return found


def bits(answer: Any) -> Any:
    """What an answer says, to the last bit; what it cost depends on what was cached."""
    if hasattr(answer, "logprobs"):
        return answer.tokens, answer.logprobs.tobytes()
    if hasattr(answer, "probabilities"):
        return tuple(answer.probabilities.items()), answer.mass
    return answer.tokens, answer.text, answer.steered, answer.trace


def numbers(answer: Any) -> list[float]:
    """The numbers of what was read: log-probabilities of a text, or probabilities of options."""
    return [*(answer.logprobs if hasattr(answer, "logprobs") else answer.probabilities.values())]


def gathered(asks: Sequence[Callable[[], Awaitable[Any]]], most: int) -> list[Any]:
    async def ask_all() -> list[Any]:
        slots = asyncio.Semaphore(most)

        async def one(ask: Callable[[], Awaitable[Any]]) -> Any:
            async with slots:
                return await ask()

        return await asyncio.gather(*map(one, asks))

    return asyncio.run(ask_all())


# --- the same bits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("company", [(16,), pytest.param((5, 16, 64), marks=pytest.mark.full)])
def test_answers_have_the_same_bits_alone_in_company_and_in_any_order(
    engine: LocalEngine, company: tuple[int, ...]
) -> None:
    def read(prompt: Prompt) -> list[Callable[[], Awaitable[Any]]]:
        return [
            lambda: engine.choose(prompt, YES_NO),
            lambda: engine.choose(prompt, LONGER),
            lambda: engine.likelihood(prompt, "Yes, it was closed"),
        ]

    def write(prompt: Prompt) -> list[Callable[[], Awaitable[Any]]]:
        return [
            lambda: engine.generate(prompt, sampling=Sampling(8, trace=True)),
            lambda: engine.generate(prompt, VERDICT, sampling=Sampling(19, trace=True)),
            lambda: engine.generate(prompt, VERDICT, sampling=Sampling(21, 1.0, seed=5, trace=True)),
        ]

    # Around the length of one chunk of reading, and where a beginning is shared within and at a block's edge.
    prompts = [prompt_of(engine, *which) for which in ((64,), (70,), (70, " !"), (256,), (257,), (258,))]
    every = [ask for prompt in prompts for ask in read(prompt)]
    if EXACT:  # else two likely tokens may change places, and with them all that is written behind
        every += [ask for prompt in (prompts[1], prompts[2], prompts[4]) for ask in write(prompt)]
    alone = gathered(every, 1)
    order = list(range(len(every)))
    for most in company:
        random.Random(most).shuffle(order)
        answers = gathered([every[index] for index in order], most)
        for index, answer in zip(order, answers, strict=True):
            if EXACT:
                assert bits(answer) == bits(alone[index])
            else:
                np.testing.assert_allclose(numbers(answer), numbers(alone[index]), rtol=0, atol=CLOSE)


def test_equal_texts_have_equal_probabilities_however_they_are_asked_for(engine: LocalEngine) -> None:
    async def ask() -> None:
        asked = prompt_of(engine, 100)
        whole = await engine.likelihood(asked, "Yes, it is so")
        shorter = await engine.likelihood(asked, "Yes,")
        single = await engine.likelihood(asked, "Yes")
        rest = await engine.likelihood(asked.continued(Data("Yes,", "begun")), " it is so")
        assert shorter.logprobs.tobytes() == whole.logprobs[:2].tobytes()
        assert single.logprobs.tobytes() == whole.logprobs[:1].tobytes()
        assert rest.logprobs.tobytes() == whole.logprobs[2:].tobytes()
        options = (Option("whole", ("Yes, it is so",)), Option("other", ("No", "No way at all")))
        choice = await engine.choose(asked, options)
        assert choice.mass * choice.probabilities["whole"] == pytest.approx(math.exp(whole.total), rel=1e-12)

    asyncio.run(ask())


def test_a_text_longer_than_a_chunk_is_read_like_its_beginning(engine: LocalEngine) -> None:
    async def ask() -> None:
        text = " ".join(["so it is"] * 86)
        long = await engine.likelihood(ASKED, text)
        assert len(long.tokens) == 258
        for words in (256, 257):
            part = await engine.likelihood(ASKED, " ".join(text.split()[:words]))
            np.testing.assert_allclose(
                part.logprobs, long.logprobs[:words], rtol=0, atol=0 if EXACT else CLOSE
            )

    asyncio.run(ask())


def test_a_seed_is_independent_of_who_else_is_drawn_for(engine: LocalEngine) -> None:
    def draw(seed: int, temperature: float = 1.0, **options: float) -> Callable[[], Awaitable[Any]]:
        return lambda: engine.generate(ASKED, sampling=Sampling(8, temperature, seed=seed, **options))

    alone = gathered([draw(1)], 1)[0]
    company = gathered([draw(7), draw(2), draw(1), draw(3), draw(1)], 5)
    assert company[2].tokens == company[4].tokens == alone.tokens
    assert len({answer.tokens for answer in company}) > 2
    greedy, *sharp = gathered(
        [draw(0, 0.0), draw(1, 1.0, top_p=1e-6), draw(2, 5.0, min_p=0.999), draw(3, 1e-6)], 4
    )
    assert {answer.tokens for answer in sharp} == {greedy.tokens}


# --- exact probabilities ----------------------------------------------------------------------------


def test_a_choice_sums_over_the_surfaces_of_each_option(engine: LocalEngine) -> None:
    async def ask() -> None:
        for prompt in (ASKED, prompt_of(engine, 90)):
            for options in (YES_NO, LONGER):
                choice = await engine.choose(prompt, options)
                single = {
                    option.label: [
                        math.exp((await engine.likelihood(prompt, each)).total) for each in option.surfaces
                    ]
                    for option in options
                }
                mass = sum(map(sum, single.values()))
                assert choice.method == "exact" and 0 < choice.mass <= 1
                assert choice.mass == pytest.approx(mass, rel=1e-5)
                assert sum(choice.probabilities.values()) == pytest.approx(1, abs=1e-12)
                for label, parts in single.items():
                    assert choice.probabilities[label] == pytest.approx(sum(parts) / mass, abs=1e-5)
                assert choice.best == max(choice.probabilities, key=choice.probabilities.__getitem__)
                assert choice.usage.prompt == len(engine.tokenizer.tokens(prompt))

    asyncio.run(ask())


def test_all_spellings_are_what_a_sum_over_every_tokenization_gives(engine: LocalEngine) -> None:
    vocabulary = {}
    for token in range(49152):
        if token not in engine.tokenizer.ends and (text := engine.tokenizer.show(token)).isalpha():
            vocabulary.setdefault(text, token)

    def spellings(text: str) -> list[tuple[int, ...]]:
        if not text:
            return [()]
        begins = [text[:end] for end in range(1, len(text) + 1) if text[:end] in vocabulary]
        return [(vocabulary[each], *rest) for each in begins for rest in spellings(text[len(each) :])]

    async def ask() -> None:
        options = (Option("true", ("true", "right")), Option("made up", ("wrong", "untrue")))
        # Every spelling as an option of its own, by the canonical way: it is a path like any other.
        found = await engine.choose(ASKED, options, paths="all")
        tokens = engine.tokenizer.tokens(ASKED)
        sums = []
        for option in options:
            flat = [path for surface in option.surfaces for path in spellings(surface)]
            weighed = await engine._run(
                tokens,
                lambda prefilled, flat=flat: verbs.choose(prefilled, flat),
                len(tokens) + 10,
                verbs.blocks_to_choose(len(tokens), flat),
            )
            assert len(flat) > 10
            sums.append(sum(math.exp(each) for each in weighed.totals))
        assert found.mass == pytest.approx(sum(sums), rel=1e-5)
        assert found.probabilities["true"] == pytest.approx(sums[0] / sum(sums), abs=1e-5)
        canonical = await engine.choose(ASKED, options)
        assert canonical.mass < found.mass
        assert canonical.probabilities["true"] == pytest.approx(found.probabilities["true"], abs=1e-2)

    asyncio.run(ask())


def test_a_text_that_begins_another_counts_in_every_spelling_only_where_it_ends(engine: LocalEngine) -> None:
    async def ask() -> None:
        begins = (Option("short", ("Yes",)), Option("long", ("Yesterday",)), Option("no", ("No",)))
        every = await engine.choose(ASKED, begins, paths="all")
        alone = await engine.choose(ASKED, (begins[0], begins[2]), paths="all")
        assert every.mass * every.probabilities["short"] < alone.mass * alone.probabilities["short"]
        assert every.mass * every.probabilities["no"] == pytest.approx(
            alone.mass * alone.probabilities["no"], rel=1e-5
        )

    asyncio.run(ask())


def test_what_is_captured_agrees_with_what_is_answered(engine: LocalEngine) -> None:
    async def ask() -> None:
        text = "Yes, it is so"
        for length in (1, 2, 5):
            part = " ".join(text.split()[:length])
            plain = await engine.likelihood(ASKED, part)
            scored = await engine.likelihood(ASKED, part, capture=Capture(top=4))
            assert scored.logprobs.tobytes() == plain.logprobs.tobytes() and plain.captured is None
            state = scored.captured
            assert state.top_tokens.shape == state.top_logprobs.shape == (len(plain.tokens) + 1, 4)
            assert (np.diff(state.top_logprobs) <= 0).all() and state.hidden is None
            assert ((state.entropies > 0) & (state.entropies < math.log(49152))).all()
            for token, logprob, top, best in zip(
                plain.tokens, plain.logprobs, state.top_tokens, state.top_logprobs, strict=False
            ):
                assert token not in top or best[list(top).index(token)] == pytest.approx(logprob, abs=1e-6)
        choice = await engine.choose(ASKED, YES_NO, capture=Capture(top=2))
        assert choice.captured.top_tokens.tolist() == [state.top_tokens[0, :2].tolist()]
        assert choice.captured.entropies[0] == state.entropies[0]
        assert (await engine.choose(ASKED, YES_NO)).captured is None
        with pytest.raises(CapabilityError, match="hidden_states=True"):
            await engine.likelihood(ASKED, text, capture=Capture(hidden=True))
        assert "hidden_states" not in engine.info.can and "capture" in engine.info.can

    asyncio.run(ask())


@pytest.mark.full
def test_hidden_states_lead_to_the_logits(model_folder: Path) -> None:
    engine = LocalEngine(model_folder, hidden_states=True)

    async def ask() -> None:
        assert "hidden_states" in engine.info.can
        text = "Yes, it is so"
        scored = await engine.likelihood(ASKED, text, capture=Capture(hidden=True))
        hidden = scored.captured.hidden
        assert hidden.shape == (len(scored.tokens) + 1, 31, 576) and hidden.dtype == np.float32
        assert np.isfinite(hidden).all() and scored.captured.top_tokens.shape == (len(hidden), 0)
        # The first is the embedding, a function of the token alone: "it" and "is" stand twice in this text.
        again = await engine.likelihood(ASKED, "No, it is", capture=Capture(hidden=True))
        assert (hidden[3, 0] == again.captured.hidden[3, 0]).all()
        assert (hidden[3, 1] != again.captured.hidden[3, 1]).any()
        longer = await engine.likelihood(ASKED, text + " indeed", capture=Capture(hidden=True))
        assert (longer.captured.hidden[: len(hidden)] == hidden).all()
        choice = await engine.choose(ASKED, YES_NO, capture=Capture(hidden=True))
        assert (choice.captured.hidden[0] == hidden[0]).all()

    asyncio.run(ask())
    engine.close()


def test_an_option_that_begins_another_counts_only_where_it_ends(engine: LocalEngine) -> None:
    async def ask() -> None:
        begins = (Option("short", ("Yes",)), Option("long", ("Yes, it is",)), Option("no", ("No",)))
        choice = await engine.choose(ASKED, begins)
        weights = {label: share * choice.mass for label, share in choice.probabilities.items()}
        alone, long, no = [
            math.exp((await engine.likelihood(ASKED, text)).total) for text in ("Yes", "Yes, it is", "No")
        ]
        assert weights["long"] == pytest.approx(long, rel=1e-9) and weights["no"] == pytest.approx(
            no, rel=1e-9
        )
        assert weights["short"] < alone - long  # what follows "Yes" is either the end or something else
        end = await engine.generate(ASKED.continued(Trusted("Yes")), sampling=Sampling(1, trace=True))
        shown = dict(end.trace[0].wanted) if end.trace else {}
        # Written tokens are computed by another kernel, so this agrees in size, not in the last digits.
        ending = shown.get("<|im_end|>", 0.0 if end.trace else 1.0)
        assert weights["short"] / alone == pytest.approx(ending, abs=0.2)

    asyncio.run(ask())


def test_options_that_are_the_same_tokens_are_refused(engine: LocalEngine) -> None:
    # This model's vocabulary has no token for U+0016, so that it reads nothing there.
    same = (Option("plain", ("Yes",)), Option("marked", ("Yes\x16",)), Option("no", ("No",)))
    with pytest.raises(SpecError, match="'plain' and 'marked' have surfaces with the same tokens"):
        asyncio.run(engine.choose(ASKED, same))
    with pytest.raises(SpecError, match="returns no tokens"):
        asyncio.run(engine.choose(ASKED, (Option("empty", ("\x16",)), Option("no", ("No",)))))

    async def twice_the_same_surface() -> None:
        once = await engine.choose(ASKED, YES_NO)
        doubled = (Option("yes", (*YES_NO[0].surfaces, "Yes\x16")), YES_NO[1])
        assert (await engine.choose(ASKED, doubled)).mass == once.mass

    asyncio.run(twice_the_same_surface())


def test_likelihood_says_which_characters_each_token_stands_for(engine: LocalEngine) -> None:
    text = " Ja, das «Größte» 😀 ist\n\nwahr."
    likelihood = asyncio.run(engine.likelihood(ASKED, text))
    assert len(likelihood.tokens) == len(likelihood.logprobs) == len(likelihood.offsets)
    assert likelihood.logprobs.dtype == float and (likelihood.logprobs < 0).all()
    assert likelihood.total == pytest.approx(likelihood.logprobs.sum())
    assert engine.tokenizer.decode(list(likelihood.tokens)) == likelihood.text == text
    covered = 0
    for start, end in likelihood.offsets:  # tokens that share a character overlap there
        assert start <= covered <= end
        covered = end
    assert covered == len(text) and text[slice(*likelihood.offsets[1])] == ","
    with pytest.raises(SpecError):
        asyncio.run(engine.likelihood(ASKED, ""))


# --- written text -----------------------------------------------------------------------------------


def test_a_verdict_is_complete_in_every_budget_and_its_cost_is_told(engine: LocalEngine) -> None:
    (call,) = Hallucination().plan(Sample("s", "The dog sat.", ("The cat sat.",)))
    prompt = call.prompt
    budgets = (14, 16, 20, 30, 200)
    answers = gathered(
        [
            lambda budget=budget: engine.generate(prompt, VERDICT, sampling=Sampling(budget))
            for budget in budgets
        ],
        5,
    )
    length = len(engine.tokenizer.tokens(prompt))
    for budget, answer in zip(budgets, answers, strict=True):
        assert answer.finish == "stop" and answer.value == VERDICT.parse(answer.text)
        assert answer.usage.generated == len(answer.tokens) <= budget
        assert 0 < answer.usage.forced < answer.usage.generated
        assert answer.usage.prompt == length
        assert answer.steered == (answer.tokens != answers[-1].tokens)
    again = asyncio.run(engine.generate(prompt, VERDICT, sampling=Sampling(14)))
    assert again.usage.cached == length and again.text == answers[0].text
    with pytest.raises(ConstraintError, match="allow more tokens"):
        asyncio.run(engine.generate(prompt, VERDICT, sampling=Sampling(13)))


def test_a_trace_adds_up_to_the_text(engine: LocalEngine) -> None:
    for shape, budget in ((VERDICT, 24), (None, 10)):
        answer = asyncio.run(engine.generate(ASKED, shape, sampling=Sampling(budget, trace=True)))
        texts = [step.text for step in answer.trace] + [answer.text]
        assert len(answer.trace) == len(answer.tokens) == answer.usage.generated
        assert all(
            text + step.chosen == after
            for step, (text, after) in zip(answer.trace, pairwise(texts), strict=True)
        )
        assert sum(step.forced for step in answer.trace) == answer.usage.forced
        assert all(0 <= step.removed_mass <= 1 for step in answer.trace)
        if shape is None:
            assert all(step.removed_mass == 0 and step.chosen == step.wanted[0][0] for step in answer.trace)


def test_free_text_ends_by_itself_or_at_its_budget(engine: LocalEngine) -> None:
    short = asyncio.run(engine.generate(ASKED, sampling=Sampling(1)))
    assert (short.finish, len(short.tokens), short.value) == ("length", 1, short.text)
    whole = asyncio.run(engine.generate(Prompt.of("Say only: ok"), sampling=Sampling(120)))
    assert whole.finish == "stop" and "<|im_end|>" not in whole.text
    begun = asyncio.run(
        engine.generate(ASKED.continued(Trusted("The colour of the sky is")), sampling=Sampling(4))
    )
    assert begun.text.startswith(" ")


def test_what_the_constraint_fixes_costs_no_forward(engine: LocalEngine) -> None:
    answer = asyncio.run(engine.generate(ASKED, constraint(["only this <|im_end|>"])))
    assert answer.value == answer.text == "only this <|im_end|>"
    assert answer.usage.forced == answer.usage.generated == len(answer.tokens)


# --- errors -----------------------------------------------------------------------------------------


def test_an_error_harms_nobody_else(engine: LocalEngine) -> None:
    async def ask() -> None:
        alone = await engine.choose(ASKED, YES_NO)
        long = Prompt((Message("user", (Data("so it is " * 4000, "output"),)),))
        writing = asyncio.create_task(engine.generate(prompt_of(engine, 80), sampling=Sampling(400)))
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(
            engine.generate(ASKED, constraint(Lark("start: nowhere"))),
            engine.generate(ASKED, VERDICT, sampling=Sampling(2)),
            engine.generate(ASKED, constraint({"type": "string"})),
            engine.choose(long, YES_NO),
            engine.choose(ASKED, YES_NO),
            return_exceptions=True,
        )
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert [type(answer) for answer in answers[:4]] == [ConstraintError] * 3 + [OverLength]
        assert "context window" in str(answers[3]) and bits(answers[4]) == bits(alone)
        assert bits(await engine.choose(ASKED, YES_NO)) == bits(alone)

    asyncio.run(ask())


def test_a_device_that_is_not_here_is_named_beside_those_that_are(model_folder: Path) -> None:
    engine = LocalEngine(model_folder, device="GPU.7")
    for _ in range(2):
        with pytest.raises(ModelError, match=r"'GPU\.7' does not exist; OpenVINO finds: .*CPU"):
            asyncio.run(engine.choose(ASKED, YES_NO))
    engine.close()
    for wrong in ({"threads": 0}, {"threads": -1}, {"most_active": 0}, {"cache_bytes": 0}):
        with pytest.raises(SpecError, match="at least 1"):
            LocalEngine(model_folder, **wrong)


@pytest.mark.full
def test_an_answer_that_takes_too_long_is_given_up(model_folder: Path) -> None:
    engine = LocalEngine(model_folder, timeout=0.01)
    with pytest.raises(EngineTimeout, match=r"0\.01 seconds"):
        asyncio.run(engine.choose(ASKED, YES_NO))
    engine.close()
    for wrong in (0, -1.0, math.nan):
        with pytest.raises(SpecError, match="more than 0 seconds"):
            LocalEngine(model_folder, timeout=wrong)


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_after_a_fork_the_engine_says_so_instead_of_hanging(model_folder: Path) -> None:
    code = """
import asyncio, os, sys
from magistrate.engines.base import Option
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.types import Prompt

engine = LocalEngine(sys.argv[1])
options = (Option("yes", ("Yes",)), Option("no", ("No",)))
asyncio.run(engine.choose(Prompt.of("Well?"), options))
child = os.fork()
if not child:
    try:
        asyncio.run(engine.choose(Prompt.of("Well?"), options))
    except Exception as error:
        print(type(error).__name__, str(error)[:23], flush=True)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(model_folder)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (0, "EngineGone this process was forked\n7\n")


def test_cores_are_no_more_than_a_container_pays_for(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    every = available_cores(quota)
    for text, cores in (
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", every),
        ("nonsense", every),
    ):
        quota.write_text(text)
        assert available_cores(quota) == cores
    quota.write_text(f"{every * 100000 + 900000} 100000")
    assert available_cores(quota) == every


def test_a_closed_engine_says_so(model_folder: Path) -> None:
    engine = LocalEngine(model_folder)
    assert engine.info.context_window == 8192 and len(engine.info.fingerprint) == 64
    engine.close()
    engine.close()
    with pytest.raises(EngineGone):
        asyncio.run(engine.choose(ASKED, YES_NO))


@pytest.mark.full
def test_one_thread_is_one_thread_and_no_telemetry_is_loaded(model_folder: Path) -> None:
    code = """
import asyncio, sys, time
from magistrate.constraints import constraint
from magistrate.engines.base import Option, Sampling
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.types import Prompt

engine = LocalEngine(sys.argv[1], threads=1)
options = (Option("yes", ("Yes",)), Option("no", ("No",)))

async def ask():
    await engine.choose(Prompt.of("Well?"), options)
    cpu, wall = time.process_time(), time.perf_counter()
    await engine.choose(Prompt.of("so it is " * 300), options)
    print((time.process_time() - cpu) / (time.perf_counter() - wall) < 1.3)
    await engine.generate(Prompt.of("Well?"), constraint(bool), sampling=Sampling(4))

asyncio.run(ask())
print([name for name in sys.modules if name.startswith(("openvino_telemetry", "torch"))])
asyncio.run(engine.choose(Prompt.of("Well?"), options))  # another loop, and no close: the exit must not hang
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(model_folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n[]\n", "")
