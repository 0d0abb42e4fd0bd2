"""Scheduler, block pool and prefix cache, on a model that is a function of what its cache holds."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.engines.base import GREEDY, Sampling
from magistrate.engines.embedded import verbs
from magistrate.engines.embedded.backend import Row, RowOutput, do_nothing
from magistrate.engines.embedded.prefix_cache import (
    BLOCK,
    BlockPool,
    CachedSequence,
    OutOfBlocks,
    PrefixCache,
    blocks_for,
)
from magistrate.engines.embedded.scheduler import (
    SPARE_BLOCKS,
    STEP_TOKENS,
    ForwardRequest,
    Prefilled,
    Program,
    Scheduler,
)
from magistrate.engines.embedded.verbs import Decoder, log_softmax
from magistrate.errors import (
    ConstraintError,
    EngineBusy,
    EngineError,
    EngineGone,
    ModelError,
    OverLength,
)
from tiers import tries

VOCABULARY = 12
WAIT = 20  # seconds after which a test takes a request to hang


def logits_after(tokens: list[int]) -> np.ndarray:
    """What the model says after `tokens`: float32 `[VOCABULARY]`, another for every text."""
    return np.random.default_rng(zlib.crc32(bytes(tokens))).normal(0, 2, VOCABULARY).astype(np.float32)


class PaperModel:
    """Writes tokens into the blocks it is told to and answers by what it reads back from them.

    `before(step, rows)` is called first and may raise; what it had prefilled to write is garbage then.
    `fresh` is the same model loaded anew, with the count of steps going on.
    """

    def __init__(self, blocks: int, before: Callable[[int, list[Row]], None] = lambda step, rows: None):
        self.vocabulary = VOCABULARY
        self.blocks = blocks
        self.pool = BlockPool(blocks, self._copy)
        self.prefixes = PrefixCache(self.pool)
        self.cells = np.zeros((blocks, BLOCK), np.uint8)
        self.seconds = 0.0
        self.forwards: list[list[int]] = []
        self._before = before

    def fresh(self) -> PaperModel:
        again = PaperModel(self.blocks, self._before)
        again.forwards = self.forwards
        return again

    def _copy(self, source: int, target: int) -> None:
        self.cells[target] = self.cells[source]

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = do_nothing) -> list[RowOutput]:
        for row in rows:
            self.pool.extend(row.sequence, len(row.tokens))
        written = [self._write(row, [255] * len(row.tokens)) for row in rows]
        self._before(len(self.forwards), rows)
        self.forwards.append([len(row.tokens) for row in rows])
        meanwhile()
        answers = []
        for row, start in zip(rows, written, strict=True):
            self._write(row, row.tokens)
            row.sequence.length = start + len(row.tokens)
            text = [int(self.cells[row.sequence.blocks[at // BLOCK], at % BLOCK]) for at in range(start)]
            logits = [logits_after(text + row.tokens[: index + 1]) for index in row.wanted]
            answers.append(RowOutput(np.array(logits).reshape(len(row.wanted), VOCABULARY), None))
        return answers

    def _write(self, row: Row, tokens: list[int]) -> int:
        start = row.sequence.length
        for at, token in enumerate(tokens, start):
            self.cells[row.sequence.blocks[at // BLOCK], at % BLOCK] = token
        return start


class TokenNames:
    ends = (0,)


# --- requests, and what each must answer ----------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    verb: str
    paths: list[tuple[int, ...]] = field(default_factory=list)
    text: tuple[int, ...] = ()
    sampling: Sampling = GREEDY

    def begin(self, prefilled: Prefilled) -> Program:
        if self.verb == "choose":
            return verbs.choose(prefilled, self.paths)
        if self.verb == "likelihood":
            return verbs.likelihood(prefilled, self.text)
        if self.verb == "generate":
            return verbs.generate(prefilled, Decoder(TokenNames(), None, self.sampling))
        return self._wrong(prefilled)

    def _wrong(self, prefilled: Prefilled) -> Generator[ForwardRequest, Any, None]:
        branch = prefilled.backend.pool.fork(prefilled.sequence, 1)
        try:
            yield ForwardRequest([Row(branch, [1, 2], range(1))])
            raise ConstraintError("this program is wrong")
        finally:
            prefilled.backend.pool.drop(branch)

    @property
    def blocks(self) -> int:
        if self.verb == "choose":
            return verbs.blocks_to_choose(len(self.prompt), self.paths)
        return blocks_for(len(self.prompt) + len(self.text) + self.sampling.max_tokens)

    def answer(self) -> Any:
        """By the model's function alone, without blocks, batches and caches."""
        if self.verb == "choose":
            return [sum(self.logprobs(path)) for path in self.paths]
        if self.verb == "likelihood":
            return self.logprobs(self.text)
        tokens: list[int] = []
        decoder = Decoder(TokenNames(), None, self.sampling)
        while not decoder.done:
            decoder.write(logits_after(self.prompt + tokens))
            tokens = list(decoder.tokens)
        return tokens

    def logprobs(self, text: tuple[int, ...]) -> list[float]:
        return [
            float(log_softmax(logits_after(self.prompt + list(text[:at])))[token])
            for at, token in enumerate(text)
        ]

    def check(self, result: Any) -> None:
        if self.verb == "generate":
            assert list(result.tokens) == self.answer()
        else:
            assert list(result[0]) == pytest.approx(self.answer(), abs=1e-6)


tokens = st.integers(1, VOCABULARY - 1)
STEMS = [[(7 * at + stem) % (VOCABULARY - 1) + 1 for at in range(400)] for stem in range(2)]


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    """A request whose prompt may share its beginning with others."""
    stem = draw(st.sampled_from(STEMS))
    prompt = stem[: draw(st.integers(0, 130))] + draw(st.lists(tokens, min_size=2, max_size=5))
    verb = draw(st.sampled_from(["choose", "likelihood", "generate", "generate", "wrong"]))
    if verb == "choose":
        paths = st.lists(tokens, min_size=1, max_size=4).map(tuple)
        return Asked(prompt, verb, paths=draw(st.lists(paths, min_size=2, max_size=9)))
    if verb == "likelihood":
        return Asked(prompt, verb, text=tuple(draw(st.lists(tokens, min_size=1, max_size=40))))
    temperature = draw(st.sampled_from([0.0, 1.0]))
    most = draw(st.integers(1, 70))
    return Asked(prompt, verb, sampling=Sampling(most, temperature, seed=draw(st.integers(0, 99))))


@dataclass(frozen=True)
class Scenario:
    requests: list[Asked]
    blocks: int
    active: int
    cancelled: dict[int, int]  # request -> the forward before which it is cancelled
    failing: set[int]  # forwards that raise


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    requests = draw(st.lists(asked(), min_size=1, max_size=8))
    steps = st.integers(0, 12)
    return Scenario(
        requests,
        draw(st.integers(4, 24)),
        draw(st.integers(1, 6)),
        draw(st.dictionaries(st.integers(0, len(requests) - 1), steps, max_size=3)),
        draw(st.sets(steps, max_size=2)),
    )


@settings(max_examples=tries(150), deadline=None)
@given(scenarios())
def test_whatever_is_in_flight_every_request_gets_its_own_answer(scenario: Scenario) -> None:
    futures: list[Future[Any]] = []
    submitted = threading.Event()

    def before(step: int, rows: list[Row]) -> None:
        submitted.wait(WAIT)
        for index, when in scenario.cancelled.items():
            if when == step:
                futures[index].cancel()
        if step in scenario.failing and step not in failed:
            failed.add(step)
            raise RuntimeError("the accelerator caught fire")

    failed: set[int] = set()
    models = [PaperModel(scenario.blocks, before)]

    def load() -> PaperModel:
        models.append(models[-1].fresh())
        return models[-1]

    scheduler = Scheduler(load, scenario.active)
    futures += [submit(scheduler, each) for each in scenario.requests]
    submitted.set()
    for index, (request, future) in enumerate(zip(scenario.requests, futures, strict=True)):
        if future.cancelled() or (index in scenario.cancelled and _wait(future)):
            continue
        error = future.exception(WAIT)
        if isinstance(error, EngineError):
            assert failed and "caught fire" in str(error)
            assert not isinstance(error, EngineGone) or len(failed) == 2
        elif request.blocks + SPARE_BLOCKS > scenario.blocks:
            assert isinstance(error, OverLength)
        elif request.verb == "wrong":
            assert isinstance(error, ConstraintError)
        else:
            request.check(future.result())
    after = Asked(STEMS[0][:40], "likelihood", text=(1, 2, 3), sampling=Sampling(1))
    if after.blocks + SPARE_BLOCKS <= scenario.blocks:
        for _ in range(3):  # a failure of the scenario may still be to come
            try:
                after.check(ask(scheduler, after))
                break
            except EngineGone as error:
                assert len(failed) == 2 and "did not help" in str(error)
                break
            except EngineError as error:
                assert failed and "caught fire" in str(error)
        else:
            raise AssertionError("the engine does not recover")
    scheduler.close()
    assert_nothing_leaked(models[-1])


def _wait(future: Future[Any]) -> bool:
    """Wait for a future that may be cancelled; True where it was."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(WAIT), "a request hangs"
    return future.cancelled()


def assert_nothing_leaked(model: PaperModel) -> None:
    if model.pool.evict is None:
        return
    while model.pool.evict():
        pass
    assert model.pool.free == model.pool.total


def submit(scheduler: Scheduler, request: Asked) -> Future[Any]:
    return scheduler.submit(request.prompt, request.begin, request.blocks)


def ask(scheduler: Scheduler, request: Asked) -> Any:
    return submit(scheduler, request).result(WAIT)


# --- blocks -----------------------------------------------------------------------------------------

operations = st.tuples(
    st.sampled_from(["extend", "extend", "fork", "truncate", "drop"]), st.integers(0, 5), st.integers(0, 90)
)


@settings(max_examples=tries(200), deadline=None)
@given(st.integers(1, 14), st.lists(operations, max_size=40))
def test_a_pool_keeps_every_text_apart_and_counts_every_block(
    total: int, steps: list[tuple[str, int, int]]
) -> None:
    cells = np.zeros((total, BLOCK), np.int64)
    pool = BlockPool(total, lambda source, target: cells.__setitem__(target, cells[source]))
    held: list[tuple[CachedSequence, list[int]]] = []
    number = 0

    def give_up() -> bool:
        if len(held) > 4:
            pool.drop(held.pop(0)[0])
            return True
        return False

    pool.evict = give_up
    for verb, index, amount in steps:
        if not held or (verb == "extend" and index == 0):
            held.append((CachedSequence(), []))
        at = index % len(held)
        sequence, text = held[at]
        if verb == "fork":
            length = min(amount, len(text))
            held.append((pool.fork(sequence, length), text[:length]))
        elif verb == "truncate":
            length = min(amount, len(text))
            pool.truncate(sequence, length)
            del text[length:]
        elif verb == "drop":
            pool.drop(sequence)
            held.pop(at)
        else:
            held.append(held.pop(at))  # used last, so given up last
            try:
                pool.extend(sequence, amount)
            except OutOfBlocks:
                amount = 0
            for _ in range(amount):
                number += 1
                cells[sequence.blocks[sequence.length // BLOCK], sequence.length % BLOCK] = number
                sequence.length += 1
                text.append(number)
        for each, expected in held:
            found = [int(cells[each.blocks[place // BLOCK], place % BLOCK]) for place in range(each.length)]
            assert found == expected
    for sequence, _ in held:
        pool.drop(sequence)
        pool.drop(sequence)
    assert pool.free == total


def test_a_block_whose_other_owner_is_evicted_during_the_copy_is_not_lost() -> None:
    pool = BlockPool(2, lambda source, target: None)
    writer = CachedSequence()
    pool.extend(writer, 5)
    writer.length = 5
    remembered = pool.fork(writer, 5)
    other = CachedSequence()
    pool.extend(other, 1)

    def evict() -> bool:
        pool.drop(other)
        pool.drop(remembered)
        return True

    pool.evict = evict
    pool.extend(writer, 1)
    pool.drop(writer)
    assert pool.free == 2


# --- memory -----------------------------------------------------------------------------------------


def test_a_request_larger_than_the_pool_is_over_length_and_the_next_is_served() -> None:
    scheduler = Scheduler(lambda: PaperModel(6), 4)
    with pytest.raises(OverLength, match="128 tokens"):
        ask(scheduler, Asked(STEMS[0][:300], "generate"))
    small = Asked(STEMS[0][:20], "generate", sampling=Sampling(10))
    small.check(ask(scheduler, small))
    scheduler.close()


def test_many_long_options_fit_the_memory_that_was_set_aside_for_them() -> None:
    paths = [(first, second, 3) for first in range(1, 11) for second in range(1, 11)]
    request = Asked(STEMS[0][:33], "choose", paths=paths)
    model = PaperModel(request.blocks + SPARE_BLOCKS)
    scheduler = Scheduler(lambda: model, 4)
    request.check(ask(scheduler, request))
    scheduler.close()
    assert_nothing_leaked(model)


def test_a_program_that_takes_more_than_it_said_harms_nobody_later() -> None:
    models = [PaperModel(8)]
    scheduler = Scheduler(lambda: models.append(models[-1].fresh()) or models[-1], 4)
    first = Asked(STEMS[0][:60], "likelihood", text=(1, 2, 3), sampling=Sampling(1))
    first.check(ask(scheduler, first))
    greedy = Asked(STEMS[1][:400], "likelihood", text=(1,))
    with pytest.raises(EngineError, match="all 8 blocks"):
        scheduler.submit(greedy.prompt, greedy.begin, 1).result(WAIT)
    first.check(ask(scheduler, first))
    scheduler.close()
    assert_nothing_leaked(models[-1])


def test_equal_beginnings_are_read_once() -> None:
    model = PaperModel(40)
    scheduler = Scheduler(lambda: model, 4)
    prompt = STEMS[0][:200]
    first, second = (
        Asked([*prompt, 1, 2], "likelihood", text=(5,)),
        Asked([*prompt, 2, 1], "choose", [(1,), (2,)]),
    )
    assert ask(scheduler, first)[1].cached == 0
    totals, usage, _ = ask(scheduler, second)
    assert usage.cached == 200 and totals == pytest.approx(second.answer())
    assert model.forwards == [[202], [2]]
    scheduler.close()


def test_equal_beginnings_are_read_once_also_by_who_comes_at_the_same_time() -> None:
    submitted = threading.Event()
    model = PaperModel(400, lambda step, rows: submitted.wait(WAIT) and None)
    scheduler = Scheduler(lambda: model, 64)
    stem = STEMS[0][:250]
    requests = [Asked([*stem, *path], "choose", [(1,), (2,)]) for path in np.ndindex(8, 8)]
    other = Asked(STEMS[1][:20], "generate", sampling=Sampling(3))
    futures = [submit(scheduler, each) for each in (*requests, other)]
    submitted.set()
    for request, future in zip((*requests, other), futures, strict=True):
        request.check(future.result(WAIT))
    scheduler.close()
    assert sum(map(sum, model.forwards)) < 252 + 63 * 5 + 30
    # Who shares nothing with it does not wait for the long prompt.
    assert len(model.forwards[0]) == 2 or len(model.forwards[1]) > 60
    assert_nothing_leaked(model)


def test_who_shares_blocks_shares_the_memory_set_aside_for_them() -> None:
    # Sixteen prompts of 250 tokens take 128 blocks, but they share 7 of their 8.
    model = PaperModel(60)
    scheduler = Scheduler(lambda: model, 16)
    stem = STEMS[0][:250]
    first = Asked([*stem, 1, 1], "choose", [(1,), (2,)])
    first.check(ask(scheduler, first))
    requests = [Asked([*stem, *path], "choose", [(1,), (2,)]) for path in np.ndindex(3, 5)]
    for request, future in [(each, submit(scheduler, each)) for each in requests]:
        request.check(future.result(WAIT))
    scheduler.close()
    assert max(map(len, model.forwards)) >= 8
    assert_nothing_leaked(model)


# --- failures ---------------------------------------------------------------------------------------


class Panic(BaseException):
    """What a compiled library raises when it panics."""


@pytest.mark.parametrize("error", [ConstraintError("no such grammar"), Panic("out of bounds")])
@pytest.mark.parametrize("late", [False, True])
def test_a_program_that_raises_fails_alone(error: BaseException, late: bool) -> None:
    model = PaperModel(40)
    scheduler = Scheduler(lambda: model, 4)

    def begin(prefilled: Prefilled) -> Program:
        def program() -> Program:
            branch = prefilled.backend.pool.fork(prefilled.sequence, 2)
            try:
                yield ForwardRequest([Row(branch, [1, 2, 3], range(1))])
                raise error
            finally:
                prefilled.backend.pool.drop(branch)

        if late:
            return program()
        raise error

    beside = Asked(STEMS[0][:20], "generate", sampling=Sampling(30))
    good, bad = submit(scheduler, beside), scheduler.submit([1, 2, 3], begin, 1)
    raised = bad.exception(WAIT)
    if isinstance(error, Exception):
        assert raised is error
    else:
        assert isinstance(raised, EngineError) and "out of bounds" in str(raised)
    beside.check(good.result(WAIT))
    scheduler.close()
    assert_nothing_leaked(model)


@pytest.mark.parametrize("error", [RuntimeError("the accelerator caught fire"), MemoryError()])
def test_a_forward_that_raises_fails_what_is_active_and_the_engine_starts_again(
    error: BaseException,
) -> None:
    def before(step: int, rows: list[Row]) -> None:
        if step == 2 and not raised:
            raised.append(len(rows))
            raise error

    raised: list[int] = []
    models = [PaperModel(40, before)]
    scheduler = Scheduler(lambda: models.append(models[-1].fresh()) or models[-1], 2)
    known = Asked(STEMS[0][:60], "likelihood", text=(1, 2), sampling=Sampling(1))
    known.check(ask(scheduler, known))
    longer = [Asked(STEMS[0][:60] + [end] * 9, "generate", sampling=Sampling(9)) for end in (1, 2, 3)]
    *active, waiting = [submit(scheduler, each) for each in longer]
    for future in active:
        assert "a forward pass of the model failed" in str(future.exception(WAIT))
    longer[-1].check(waiting.result(WAIT))  # it had not prefilled, so nothing of it was lost
    for request in (known, *longer):
        request.check(ask(scheduler, request))
    scheduler.close()
    assert raised == [2] and len(models) == 3  # the first of the list was never loaded
    assert_nothing_leaked(models[-1])


def test_an_engine_that_fails_again_before_it_answers_is_gone_and_says_why() -> None:
    loads = []

    def before(step: int, rows: list[Row]) -> None:
        raise RuntimeError("out of luck")

    def load() -> PaperModel:
        loads.append(1)
        return PaperModel(40, before)

    scheduler = Scheduler(load, 1)
    request = Asked(STEMS[0][:20], "generate")
    first, second, third = [submit(scheduler, request) for _ in range(3)]
    assert not isinstance(first.exception(WAIT), EngineGone)
    assert not isinstance(second.exception(WAIT), EngineGone)
    assert isinstance(third.exception(WAIT), EngineGone)
    with pytest.raises(EngineGone, match=r"out of luck.*the restart did not help"):
        submit(scheduler, request)
    assert len(loads) == 2
    scheduler.close()


def test_no_more_wait_for_an_answer_than_may() -> None:
    computing = threading.Event()
    scheduler = Scheduler(lambda: PaperModel(40, lambda step, rows: computing.wait(WAIT) and None), 1, 3)
    request = Asked(STEMS[0][:20], "generate", sampling=Sampling(5))
    futures = [submit(scheduler, request) for _ in range(3)]
    with pytest.raises(EngineBusy, match="3 requests are already waiting"):
        submit(scheduler, request)
    futures.pop().cancel()
    futures.append(submit(scheduler, request))
    computing.set()
    for future in futures:
        request.check(future.result(WAIT))
    request.check(ask(scheduler, request))
    scheduler.close()


def test_a_load_that_fails_answers_all_who_wait_and_is_tried_again() -> None:
    waiting, loads = threading.Event(), []

    def load() -> PaperModel:
        loads.append(1)
        if len(loads) == 1:
            waiting.wait(WAIT)
            raise ModelError("the weights are damaged")
        if len(loads) == 2:
            raise MemoryError
        return PaperModel(40)

    scheduler = Scheduler(load, 4)
    request = Asked(STEMS[0][:20], "generate", sampling=Sampling(5))
    futures = [submit(scheduler, request) for _ in range(3)]
    waiting.set()
    assert all(isinstance(future.exception(WAIT), ModelError) for future in futures)
    with pytest.raises(EngineError, match="loading the model failed: MemoryError"):
        ask(scheduler, request)
    request.check(ask(scheduler, request))
    assert len(loads) == 3
    scheduler.close()


def test_after_a_failed_load_nobody_is_forgotten_however_close_the_next_call_comes() -> None:
    def load() -> PaperModel:
        raise ModelError("never")

    scheduler = Scheduler(load, 4)
    request = Asked(STEMS[0][:20], "generate")
    answered: Counter[str] = Counter()

    def hurry() -> None:
        for _ in range(150):
            error = submit(scheduler, request).exception(WAIT)
            answered[type(error).__name__] += 1

    threads = [threading.Thread(target=hurry) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answered == {"ModelError": 600}


def test_nothing_hangs_when_the_engine_is_closed() -> None:
    computing, closing = threading.Event(), threading.Event()

    def before(step: int, rows: list[Row]) -> None:
        computing.set()
        closing.wait(WAIT)

    model = PaperModel(40, before)
    scheduler = Scheduler(lambda: model, 2)
    request = Asked(STEMS[0][:20], "generate", sampling=Sampling(50))
    futures = [submit(scheduler, request) for _ in range(5)]
    assert computing.wait(WAIT)
    closer = threading.Thread(target=scheduler.close)
    closer.start()
    closing.set()
    assert all(isinstance(future.exception(WAIT), EngineGone) for future in futures)
    closer.join(WAIT)
    scheduler.close()
    with pytest.raises(EngineGone):
        submit(scheduler, request)
    assert_nothing_leaked(model)
    Scheduler(lambda: model, 2).close()


# --- turns ------------------------------------------------------------------------------------------


def test_cancelling_a_task_frees_its_blocks_before_the_next_forward() -> None:
    held: list[int] = []
    cancelled = threading.Event()

    def before(step: int, rows: list[Row]) -> None:
        held.append(sum(blocks_for(row.sequence.length) for row in rows))
        if step == 3:
            loop.call_soon_threadsafe(task.cancel)
            assert cancelled.wait(WAIT)

    model = PaperModel(20, before)
    scheduler = Scheduler(lambda: model, 4)
    endless = Asked(STEMS[0][:100], "generate", sampling=Sampling(400, 1.0, seed=5))
    large = Asked(STEMS[1][:400], "likelihood", text=(1,), sampling=Sampling(1))

    async def both() -> Any:
        nonlocal task, loop
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(asyncio.wrap_future(submit(scheduler, endless)))
        task.add_done_callback(lambda _: cancelled.set())
        waits = asyncio.wrap_future(submit(scheduler, large))  # needs what the first holds
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.wait_for(waits, WAIT)

    loop: asyncio.AbstractEventLoop
    task: asyncio.Future[Any]
    large.check(asyncio.run(both()))
    scheduler.close()
    assert_nothing_leaked(model)


def test_long_prompts_do_not_hold_up_who_is_writing() -> None:
    submitted = threading.Event()
    model = PaperModel(400, lambda step, rows: submitted.wait(WAIT) and None)
    scheduler = Scheduler(lambda: model, 16)
    writer = Asked(STEMS[0][:20], "generate", sampling=Sampling(12, 1.0, seed=3))
    assert len(writer.answer()) == 12
    readers = [Asked([stem] * 700, "likelihood", text=(1, 2), sampling=Sampling(1)) for stem in range(1, 9)]
    futures = [submit(scheduler, each) for each in (writer, *readers)]
    submitted.set()
    for request, future in zip((writer, *readers), futures, strict=True):
        request.check(future.result(WAIT))
    scheduler.close()
    assert max(map(sum, model.forwards)) <= STEP_TOKENS
    writing = [step for step, sizes in enumerate(model.forwards) if 1 in sizes]
    assert len(writing) == 11  # the last token of twelve is not read
    assert max(np.diff(writing)) == 1
    assert len(model.forwards) < 20  # two prompts are read at a time


def test_everybodys_turn_comes_also_of_who_wants_more_than_a_step() -> None:
    submitted = threading.Event()
    model = PaperModel(400, lambda step, rows: submitted.wait(WAIT) and None)
    scheduler = Scheduler(lambda: model, 16)
    drawn = (Asked(STEMS[0][:20], "generate", sampling=Sampling(40, 1.0, seed=seed)) for seed in range(99))
    writers = [writer for writer in drawn if len(writer.answer()) > 20][:2]
    paths = [(*path, 3, 4, 5, 6) for path in np.ndindex(11, 11)]
    large = Asked(STEMS[0][:20], "choose", paths=paths)
    futures = [submit(scheduler, each) for each in (*writers, large)]
    submitted.set()
    for request, future in zip((*writers, large), futures, strict=True):
        request.check(future.result(WAIT))
    scheduler.close()
    (turn,) = [step for step, sizes in enumerate(model.forwards) if sum(sizes) > STEP_TOKENS]
    assert turn < 6
