"""What was asked before is not asked again, and nothing that happens to its file changes a judgement."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate import _logging
from magistrate._paths import default_cache
from magistrate.cli import command as cli
from magistrate.constraints import constraint
from magistrate.constraints.schema import QUOTE
from magistrate.engines.base import Capture, Choice, EngineInfo, Generation, Likelihood, Option, Sampling
from magistrate.engines.cache import REUSED, Cached, CallCache, call_cache, call_key
from magistrate.engines.cache_file import Kept
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.errors import (
    CapabilityError,
    EngineError,
    EngineTimeout,
    InvalidOutput,
    SpecError,
    StoreError,
)
from magistrate.judges import instance
from magistrate.runs.execute import judge_one
from magistrate.types import Data, Message, Prompt, Sample, Trusted, Usage, Verdict
from privileges import unprivileged

REPEATABLE = EVERYTHING | {"repeatable"}
YES_NO = (Option("yes", ("yes", "Yes")), Option("no", ("no", "No")))
ASKED = Prompt((Message("user", (Trusted("Is it so? "), Data("It is.", "output"))),))
KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "cache.db"


@pytest.fixture
def cache(path: Path) -> Iterator[CallCache]:
    with CallCache.open(path) as opened:
        yield opened


@pytest.fixture
def told() -> Iterator[io.StringIO]:
    """What the log says, warnings only, as JSON lines."""
    page = io.StringIO()
    _logging.configure(verbose=False, json=True, stream=page)
    yield page
    for handler in logging.getLogger("magistrate").handlers[1:]:
        logging.getLogger("magistrate").removeHandler(handler)
    logging.getLogger("magistrate").setLevel(logging.NOTSET)


def events(page: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in page.getvalue().splitlines()]


def run(work: Any) -> Any:
    return asyncio.run(work)


INFO = EngineInfo("test", "tiny", "f" * 64, 1000, REPEATABLE)


@dataclass
class Answering:
    """An engine that answers everything with one answer and counts how often it is asked."""

    answer: Any
    asked: int = 0
    given: tuple[Any, ...] = ()
    info: EngineInfo = INFO

    async def count(self, prompt: Prompt) -> int:
        return 7

    async def _say(self, *given: Any, **more: Any) -> Any:
        self.asked += 1
        self.given = (*given, more)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    generate = choose = likelihood = _say


# --- exact answers -------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=()), max_size=20)
floats = st.floats(allow_nan=False)
usages = st.builds(Usage, *[st.integers(0, 10**9)] * 5)


def bits(number: float | None) -> bytes | None:
    return None if number is None else np.float64(number).tobytes()


@given(texts, st.sampled_from(["stop", "length"]), st.booleans(), st.lists(st.integers(0, 2**40)), usages)
def test_a_generation_comes_back_exactly(
    text: str, finish: Any, steered: bool, tokens: list[int], usage: Usage
) -> None:
    engine = Answering(Generation(text, text, finish, steered, tuple(tokens), usage))
    with tempfile.TemporaryDirectory() as folder, CallCache.open(Path(folder) / "c.db") as cache:
        cached = Cached(engine, cache)
        assert run(cached.generate(ASKED)) == engine.answer
        assert run(cached.generate(ASKED)) == replace(engine.answer, usage=REUSED)
        assert engine.asked == 1


@given(
    st.lists(st.tuples(texts, floats), min_size=2, max_size=5, unique_by=lambda pair: pair[0]),
    st.none() | floats,
    st.sampled_from(["exact", "top_k", "sampled", "label_only"]),
)
def test_a_choice_comes_back_to_the_bit_and_in_order(
    pairs: list[tuple[str, float]], mass: float | None, method: Any
) -> None:
    shares = None if method == "label_only" else dict(pairs)
    engine = Answering(Choice(pairs[1][0], shares, mass, method, Usage(1, 5)))
    options = [Option(label, (f"{number}",)) for number, (label, _) in enumerate(pairs)]
    with tempfile.TemporaryDirectory() as folder, CallCache.open(Path(folder) / "c.db") as cache:
        cached = Cached(engine, cache)
        assert run(cached.choose(ASKED, options)) == engine.answer
        again = run(cached.choose(ASKED, options))
    assert again == replace(engine.answer, usage=REUSED)
    assert bits(again.mass) == bits(mass)
    if shares is not None:
        assert list(again.probabilities) == list(shares)
        assert [bits(share) for share in again.probabilities.values()] == [bits(p) for _, p in pairs]
    assert engine.asked == 1


@given(texts, st.lists(st.tuples(st.integers(0, 2**31), floats, st.integers(0, 99), st.integers(0, 99))))
def test_a_likelihood_comes_back_to_the_bit(text: str, rows: list[tuple[int, float, int, int]]) -> None:
    logprobs = np.array([row[1] for row in rows], np.float64)
    spans = tuple((row[2], row[3]) for row in rows)
    engine = Answering(Likelihood(text, tuple(row[0] for row in rows), logprobs, spans, Usage(1, 5)))
    with tempfile.TemporaryDirectory() as folder, CallCache.open(Path(folder) / "c.db") as cache:
        cached = Cached(engine, cache)
        run(cached.likelihood(ASKED, text))
        again = run(cached.likelihood(ASKED, text))
    assert (again.text, again.tokens, again.offsets, again.usage) == (
        text,
        engine.answer.tokens,
        spans,
        REUSED,
    )
    assert again.logprobs.dtype == np.float64 and again.logprobs.tobytes() == logprobs.tobytes()
    assert engine.asked == 1


def test_a_value_is_made_anew_by_the_constraint_that_is_given(cache: CallCache) -> None:
    class Answer(Enum):
        YES = "yes"
        NO = "no"

    as_member, as_text = constraint(Answer), constraint(["yes", "no"])
    assert as_member.digest == as_text.digest  # the same may be written: the same text answers both
    engine = Answering(Generation("yes", Answer.YES, "stop"))
    cached = Cached(engine, cache)
    assert run(cached.generate(ASKED, as_member)).value is Answer.YES
    assert run(cached.generate(ASKED, as_text)).value == "yes"
    assert run(cached.generate(ASKED, as_member)).value is Answer.YES
    assert engine.asked == 1


def test_a_text_that_the_constraint_no_longer_accepts_is_asked_anew(cache: CallCache) -> None:
    strict = constraint(["yes", "no"])
    engine = Answering(Generation("perhaps", "perhaps", "stop"))
    cached = Cached(engine, cache)
    run(cached.generate(ASKED, strict))
    run(cached.generate(ASKED, strict))
    assert engine.asked == 2
    assert (cache.stats().hits, cache.stats().misses, cache.stats().unreadable) == (0, 2, 1)


# --- what is the same call -----------------------------------------------------------------------

FIRST = Message("user", (Trusted("a"), Data("b", "output")))
PROMPTS = [
    Prompt((FIRST,)),
    Prompt((replace(FIRST, role="system"),)),
    Prompt((Message("user", (Trusted("ab"),)),)),
    Prompt((Message("user", (Trusted("a"), Trusted("b"))),)),
    Prompt((Message("user", (Data("a", "output"), Data("b", "output"))),)),
    Prompt((Message("user", (Trusted("a"), Data("b", "context"))),)),
    Prompt((Message("user", (Data("a", "output"), Trusted("b"))),)),
    Prompt((Message("user", (Trusted("a"),)), Message("user", (Data("b", "output"),)))),
    Prompt((FIRST, Message("assistant", ()))),
    Prompt((Message("user", (Trusted('a"],["data","output","b'),)),)),
    Prompt((Message("user", (Trusted("\U0001f600"),)),)),
    Prompt((Message("user", (Trusted("\ud83d\ude00"),)),)),
    Prompt((Message("user", (Trusted(""),)),)),
    Prompt((Message("user", ()),)),
]
INFOS = [replace(INFO, **change) for change in ({}, {"fingerprint": "e" * 64}, {"model": "x"}, {"name": "y"})]


def test_every_difference_in_a_prompt_is_another_call() -> None:
    keys = [call_key(INFO, "choose", prompt, []) for prompt in PROMPTS]
    assert len(set(keys)) == len(PROMPTS)
    assert {len(key) for key in keys} == {32}
    assert keys == [call_key(INFO, "choose", prompt, []) for prompt in PROMPTS]


def test_another_engine_verb_or_argument_is_another_call() -> None:
    verbs = ("generate", "choose", "likelihood")
    keys = {call_key(info, verb, PROMPTS[0], rest) for info in INFOS for verb in verbs for rest in ("a", "b")}
    assert len(keys) == len(INFOS) * 3 * 2


@given(
    st.lists(st.tuples(st.booleans(), texts), max_size=4),
    st.lists(st.tuples(st.booleans(), texts), max_size=4),
)
def test_prompts_have_the_same_key_only_if_they_are_the_same(
    one: list[tuple[bool, str]], two: list[tuple[bool, str]]
) -> None:
    def prompt(parts: list[tuple[bool, str]]) -> Prompt:
        return Prompt((Message("user", tuple(Data(t) if data else Trusted(t) for data, t in parts)),))

    keys = [call_key(INFO, "choose", prompt(parts), []) for parts in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


CALLS = [
    ("generate", (ASKED,), {}),
    ("generate", (ASKED, constraint(["yes", "no"])), {}),
    ("generate", (ASKED, constraint(["no", "yes"])), {}),
    ("generate", (ASKED, constraint(re.compile("yes|no"))), {}),
    ("generate", (ASKED, constraint({"type": "integer", "minimum": 0, "maximum": 9})), {}),
    ("generate", (ASKED, constraint({"type": "number", "minimum": 0, "maximum": 9})), {}),
    *(
        ("generate", (ASKED,), {"sampling": Sampling(**change)})
        for change in (
            {"max_tokens": 9},
            {"temperature": 0.5},
            {"temperature": 0.5, "seed": 1},
            {"top_p": 0.5},
            {"min_p": 0.5},
        )
    ),
    ("choose", (ASKED, YES_NO), {}),
    ("choose", (ASKED, YES_NO[::-1]), {}),
    ("choose", (ASKED, (Option("yes", ("Yes", "yes")), YES_NO[1])), {}),
    ("choose", (ASKED, (Option("yea", ("yes", "Yes")), YES_NO[1])), {}),
    ("likelihood", (ASKED, "yes"), {}),
    ("likelihood", (ASKED, "no"), {}),
    ("likelihood", (ASKED, ""), {}),
]


def answer_to(verb: str, arguments: Sequence[Any]) -> Any:
    if verb == "generate":
        value = constraint_of(arguments)
        text = "5" if value is not None and value.kind == "json" else "yes"
        return Generation(text, text, "stop")
    if verb == "choose":
        labels = [option.label for option in arguments[1]]
        return Choice(labels[0], dict.fromkeys(labels, 0.5), 1.0, "exact")
    return Likelihood(arguments[1], (), np.zeros(0), ())


def constraint_of(arguments: Sequence[Any]) -> Any:
    return arguments[1] if len(arguments) > 1 else None


def test_each_of_these_calls_is_asked_once_and_no_two_are_the_same(cache: CallCache) -> None:
    engine = Answering(None)
    cached = Cached(engine, cache)
    for _ in range(2):
        for verb, arguments, more in CALLS:
            engine.answer = answer_to(verb, arguments)
            run(getattr(cached, verb)(*arguments, **more))
    assert engine.asked == len(CALLS)
    assert cache.stats().entries == cache.stats().hits == cache.stats().misses == len(CALLS)


def test_quotes_of_other_texts_are_another_constraint(cache: CallCache) -> None:
    shape = constraint({"type": "string", QUOTE: {"of": "context", "unit": "words"}, "maxLength": 20})
    one, two = shape.over(context="It is old."), shape.over(context="It is new.")
    engine = Answering(Generation('"It is"', "It is", "stop"))
    for each in (one, two, one):
        run(Cached(engine, cache).generate(ASKED, each))
    assert engine.asked == 2


# --- what is not kept ----------------------------------------------------------------------------

WISHES = [
    ("generate", (ASKED,), {"sampling": Sampling(trace=True)}),
    ("choose", (ASKED, YES_NO), {"capture": Capture()}),
    ("likelihood", (ASKED, "yes"), {"capture": Capture(top=2)}),
    ("choose", (ASKED, YES_NO), {"paths": "all"}),
    ("generate", (ASKED,), {"own": 1}),
    ("likelihood", (ASKED, "yes"), {"own": 1}),
]


@pytest.mark.parametrize(("verb", "arguments", "more"), WISHES)
def test_calls_that_look_inside_or_name_something_unknown_go_straight_through(
    verb: str, arguments: tuple[Any, ...], more: dict[str, Any], cache: CallCache
) -> None:
    engine = Answering(answer_to(verb, arguments))
    for _ in range(2):
        assert run(getattr(Cached(engine, cache), verb)(*arguments, **more)) is engine.answer
    assert engine.asked == 2
    assert more.items() <= engine.given[-1].items()
    assert cache.stats().entries == cache.stats().misses == 0


@pytest.mark.parametrize(
    "error", [EngineTimeout("slow"), InvalidOutput("bad", "x"), EngineError("x"), asyncio.CancelledError()]
)
def test_what_failed_is_not_kept(error: BaseException, cache: CallCache) -> None:
    engine = Answering(error)
    for verb, arguments in (
        ("generate", (ASKED,)),
        ("choose", (ASKED, YES_NO)),
        ("likelihood", (ASKED, "a")),
    ):
        with pytest.raises(type(error)):
            run(getattr(Cached(engine, cache), verb)(*arguments))
    assert cache.stats().entries == 0
    engine.answer = Generation("yes", "yes", "stop")
    assert run(Cached(engine, cache).generate(ASKED)) is engine.answer


def test_an_answer_without_plain_values_is_not_kept_and_still_an_answer(cache: CallCache) -> None:
    engine = Answering(Generation("yes", "yes", "stop", tokens=("?",)))  # type: ignore[arg-type]
    assert run(Cached(engine, cache).generate(ASKED)) is engine.answer
    assert (cache.stats().entries, cache.stats().not_kept) == (0, 1)


def test_a_generation_that_ended_by_its_budget_is_kept(cache: CallCache) -> None:
    engine = Answering(Generation("It is", "It is", "length"))
    cached = Cached(engine, cache)
    run(cached.generate(ASKED))
    assert run(cached.generate(ASKED)).finish == "length"
    assert engine.asked == 1


def test_only_engines_that_repeat_themselves_are_remembered(cache: CallCache) -> None:
    with pytest.raises(CapabilityError, match="a cache of calls needs repeatable, which engine 'scripted'"):
        Cached(ScriptedEngine(["a"]), cache)
    Cached(ScriptedEngine(["a"], can=REPEATABLE, name="a"), cache)
    forced = Cached(ScriptedEngine(["a", "b"]), cache, force=True)
    assert [run(forced.generate(ASKED)).text for _ in range(2)] == ["a", "a"]
    assert "repeatable" not in forced.info.can


def test_counting_is_the_engines(cache: CallCache) -> None:
    assert run(Cached(Answering(None), cache).count(ASKED)) == 7


# --- judgements ----------------------------------------------------------------------------------

SAMPLE = Sample("s", "It closes at six.", ("The museum closes at five.",), "When does it close?")


@pytest.mark.full
def test_a_verdict_from_the_cache_is_the_same_and_says_what_was_spent(
    engine: LocalEngine, cache: CallCache
) -> None:
    judge = instance("faithfulness")
    plain = run(judge_one(SAMPLE, judge, engine))
    cold = run(judge_one(SAMPLE, judge, Cached(engine, cache)))
    warm = run(judge_one(SAMPLE, judge, Cached(engine, cache)))
    for outcome in (plain, cold, warm):
        assert isinstance(outcome, Verdict)
    said = [
        (each.label, each.score, each.probability, each.mass, each.claims) for each in (plain, cold, warm)
    ]
    assert said[0] == said[1] == said[2]
    assert [step.result for step in cold.steps] == [step.result for step in warm.steps]
    assert cold.usage.reused == 0 and cold.usage.calls == len(cold.steps) > 0
    assert warm.usage == Usage(reused=len(cold.steps))
    assert [step.usage for step in warm.steps] == [REUSED] * len(cold.steps)


@pytest.mark.full
def test_what_a_model_writes_under_a_constraint_is_reused(engine: LocalEngine, cache: CallCache) -> None:
    shape = constraint(
        {
            "type": "object",
            "properties": {"n": {"enum": [1, 2]}},
            "required": ["n"],
            "additionalProperties": False,
        }
    )
    cached = Cached(engine, cache)
    first = run(cached.generate(ASKED, shape, sampling=Sampling(max_tokens=20)))
    again = run(cached.generate(ASKED, shape, sampling=Sampling(max_tokens=20)))
    assert again == replace(first, usage=REUSED)
    assert first.usage.calls == 1 and again.value["n"] in (1, 2)
    scored = [run(cached.likelihood(ASKED, "It is so.")) for _ in range(2)]
    assert scored[0].logprobs.tobytes() == scored[1].logprobs.tobytes()
    assert scored[1].usage == REUSED


# --- the file ------------------------------------------------------------------------------------


class Clock:
    """Seconds since 1970 that pass when they are told to."""

    now = datetime(2026, 11, 1, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.now


def test_what_one_keeps_others_find_also_later(path: Path) -> None:
    with CallCache.open(path) as one, CallCache.open(path) as two:
        one.put(KEY, b"value", "tiny")
        assert two.get(KEY) == b"value"
        assert two.get(OTHER) is None
        assert (two.stats().hits, two.stats().misses, one.stats().kept) == (1, 1, 1)
    assert one.get(KEY) is None  # closed
    with CallCache.open(path) as three:
        assert three.get(KEY) == b"value"


def test_the_usual_file_is_in_the_home_and_shared_by_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "cache.db"
    shared = call_cache()
    assert shared.path == tmp_path / "cache.db" and shared is call_cache() is call_cache(
        tmp_path / "cache.db"
    )
    shared.close()
    anew = call_cache()
    assert anew is not shared and anew.usable
    anew.close()


def test_a_value_that_the_disk_changed_is_a_miss_and_is_repaired(path: Path, told: io.StringIO) -> None:
    with CallCache.open(path) as cache:
        cache.put(KEY, b'{"p":0.125}', "tiny")
        cache.put(OTHER, b'{"p":0.625}', "tiny")
        with closing(sqlite3.connect(path)) as disk, disk:
            disk.execute("UPDATE calls SET value = ? WHERE key = ?", (b'{"p":0.925}', KEY))
            disk.execute("UPDATE calls SET value = 'text' WHERE key = ?", (OTHER,))
        assert cache.get(KEY) is cache.get(OTHER) is None
        assert cache.stats().unreadable == 2
        cache.put(KEY, b'{"p":0.125}', "tiny")
        assert cache.get(KEY) == b'{"p":0.125}'
    assert {each["event"] for each in events(told)} == {"cache.unreadable"}


def test_a_row_under_another_key_is_a_miss(path: Path) -> None:
    with CallCache.open(path) as cache:
        cache.put(KEY, b"of this key", "tiny")
        with closing(sqlite3.connect(path)) as disk, disk:
            disk.execute("UPDATE calls SET key = ?", (OTHER,))
        assert cache.get(OTHER) is None


def test_a_file_of_another_version_is_begun_anew(path: Path) -> None:
    with CallCache.open(path) as cache:
        cache.put(KEY, b"value", "tiny")
    with closing(sqlite3.connect(path)) as disk:
        disk.execute("PRAGMA user_version = 99")
    with CallCache.open(path) as cache:
        assert cache.trouble is None and cache.get(KEY) is None
        cache.put(KEY, b"new", "tiny")
        assert cache.get(KEY) == b"new"


def judged(cache: CallCache) -> str:
    """What a judgement says with this cache, asked twice; it must not know the difference."""
    engine = ScriptedEngine(lambda _: {"faithful": 0.75, "hallucinated": 0.25}, can=REPEATABLE, name="sure")
    verdicts = [run(judge_one(SAMPLE, instance("faithfulness"), Cached(engine, cache))) for _ in range(2)]
    assert all(isinstance(verdict, Verdict) and verdict.probability == 0.75 for verdict in verdicts)
    assert len(engine.prompts) == 2 - (cache.stats().hits > 0)
    return cache.trouble or ""


def lock(path: Path) -> sqlite3.Connection:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    return other


def test_without_a_usable_file_the_judgement_is_the_same_and_one_warning_says_why(
    tmp_path: Path, told: io.StringIO
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and long enough to be taken for one " * 200)
    foreign = tmp_path / "runs.db"
    with closing(sqlite3.connect(foreign)) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    for place, why in [
        (text, "damaged: file is not a database.*magistrate cache prune --all"),
        (tmp_path, "unable to open"),
        (text / "below" / "cache.db", "Not a directory|exists"),
        (foreign, "a database of another program and is not changed"),
    ]:
        told.seek(0)
        told.truncate()
        with CallCache.open(place) as cache:
            assert re.search(why, judged(cache)), cache.trouble
            assert cache.stats().entries == cache.stats().hits == 0
            assert cache.stats().troubles == 1 and cache.stats().trouble
            with pytest.raises(StoreError, match=re.escape(str(place))):
                cache.prune(everything=True)
        (warning,) = events(told)
        assert (warning["event"], warning["level"]) == ("cache.trouble", "warning")
        assert warning["effect"] == "it is not used"
    assert text.read_text().startswith("not a database")
    with closing(sqlite3.connect(foreign)) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]


@pytest.mark.full
def test_a_file_that_another_program_locks_is_gone_on_without(path: Path, told: io.StringIO) -> None:
    CallCache.open(path).close()
    with closing(lock(path)), CallCache.open(path) as cache:
        assert "locked" in judged(cache)
    (warning,) = events(told)
    assert "locked" in warning["reason"]


def test_while_another_program_writes_nothing_waits_and_later_it_is_kept(
    path: Path, told: io.StringIO
) -> None:
    clock = Clock()
    with CallCache.open(path, clock=clock) as cache:
        cache.put(KEY, b"before", "tiny")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(50):  # only the first of them waits
                cache.put(OTHER, b"now", "tiny")
            assert cache.get(KEY) == b"before"
            assert (cache.stats().not_kept, cache.stats().troubles) == (50, 1)
            other.execute("ROLLBACK")
        cache.put(OTHER, b"now", "tiny")
        assert cache.get(OTHER) is None
        clock.now += 2
        cache.put(OTHER, b"now", "tiny")
        assert cache.get(OTHER) == b"now"
        assert cache.trouble is None
    assert [each["effect"] for each in events(told)] == [
        "answers that could not be stored will be requested again"
    ]


def test_in_a_read_only_folder_it_goes_on() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.db"
        with CallCache.open(path) as cache:
            cache.put(KEY, b"value", "tiny")
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        with unprivileged(), CallCache.open(path) as cache:
            cache.put(OTHER, b"value", "tiny")
            assert judged(cache) or cache.stats().not_kept
        with unprivileged(), CallCache.open(Path(folder) / "new" / "cache.db") as cache:
            assert "Permission denied" in judged(cache)
        Path(folder).chmod(0o755)


PROGRAM = """
import os, resource, sys
from magistrate.engines.cache_file import CallCache
path, what = sys.argv[1:]
cache = CallCache.open(path)
key = lambda n: n.to_bytes(32, "big")
if what == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    for n in range(300):
        cache.put(key(n), bytes(5000), "tiny")
        assert cache.get(key(0)) == bytes(5000), n
    found = cache.stats()
    print(found.kept, found.not_kept, found.troubles, cache.usable)
elif what == "write":
    n = 0
    while True:
        cache.put(key(n), b"value %d " % n * 100, "tiny")
        n += 1
        print(n, flush=True)
else:
    sys.stdin.readline()
    start = int(what)
    for n in range(start, start + 200):
        cache.put(key(n), b"value %d " % n * 100, "tiny")
        cache.get(key(n // 2))
    print(cache.stats().troubles)
cache.close()
"""


def program(path: Path, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(path), what]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def number(n: int) -> bytes:
    return n.to_bytes(32, "big")


def test_a_full_disk_ends_the_keeping_and_not_the_run(path: Path) -> None:
    with program(path, "full") as writer:
        printed, _ = writer.communicate(timeout=100)
    assert writer.returncode == 0
    kept, not_kept, troubles, usable = printed.split()
    assert 0 < int(kept) < 300 and int(kept) + int(not_kept) == 300
    assert (troubles, usable) == ("1", "True")  # it is not tried again and again
    with CallCache.open(path) as cache:
        assert cache.stats().entries == int(kept)
        assert all(cache.get(number(n)) == bytes(5000) for n in range(int(kept)))


def test_kill_9_harms_nothing_that_was_kept(path: Path) -> None:
    with program(path, "write") as writer:
        assert writer.stdout is not None
        done = [int(next(writer.stdout)) for _ in range(500)]
        os.kill(writer.pid, signal.SIGKILL)
        done += [int(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(path)) as disk:
        assert disk.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with CallCache.open(path) as cache:
        assert cache.stats().entries >= done[-1]
        assert all(cache.get(number(n)) == b"value %d " % n * 100 for n in range(done[-1]))
        cache.put(KEY, b"more", "tiny")
        assert cache.get(KEY) == b"more"


def test_programs_that_make_and_fill_it_at_once_agree(path: Path) -> None:
    programs = [program(path, what) for what in ("0", "100", "0")]
    troubles = [int(each.communicate("go\n", timeout=100)[0]) for each in programs]
    assert [each.returncode for each in programs] == [0] * 3
    with CallCache.open(path) as cache:
        found = [cache.get(number(n)) for n in range(300)]
        for n, value in enumerate(found):
            assert value in (None, b"value %d " % n * 100)
        kept = sum(value is not None for value in found)
        # On a busy machine one may find the file locked and keep nothing, but it says so.
        assert cache.stats().unreadable == 0 and kept >= (200 if any(troubles) else 300), troubles


def test_threads_share_one_cache(cache: CallCache) -> None:
    wrong: list[int] = []

    def work(start: int) -> None:
        for n in range(start, start + 200):
            cache.put(number(n), b"%d" % n, "tiny")
            if cache.get(number(n)) != b"%d" % n:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert (cache.stats().entries, cache.stats().hits, cache.stats().troubles) == (500, 800, 0)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 40_000), st.binary(min_size=1, max_size=2000))
def test_whatever_bytes_are_written_over_the_file_no_wrong_value_comes_out(at: int, junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.db"
        with CallCache.open(path) as cache:
            for n in range(20):
                cache.put(number(n), b"value %d " % n * 200, "tiny")
        with path.open("r+b") as file:
            file.seek(min(at, path.stat().st_size))
            file.write(junk)
        with CallCache.open(path) as cache:
            for n in range(20):
                assert cache.get(number(n)) in (None, b"value %d " % n * 200)
            cache.put(KEY, b"more", "tiny")
            assert cache.get(KEY) in (None, b"more")
            assert cache.stats().entries >= 0


# --- how much, and less of it --------------------------------------------------------------------


def filled(path: Path, clock: Clock) -> CallCache:
    """Ten answers of 10 kB, one a day, by two models in turn."""
    cache = CallCache.open(path, clock=clock)
    for n in range(10):
        cache.put(number(n), bytes(10_000), ("tiny", "large")[n % 2])
        clock.now += 86_400
    return cache


def there(cache: CallCache) -> list[int]:
    return [n for n in range(10) if cache.get(number(n)) is not None]


def test_stats_say_what_there_is(path: Path) -> None:
    with filled(path, Clock()) as cache:
        found = cache.stats()
    assert found.entries == 10 and 100_000 < found.bytes < 110_000
    assert 0.9 < found.file_bytes / found.bytes < 6  # what was written last stands beside it once more
    assert found.oldest == datetime(2026, 11, 1, tzinfo=UTC)
    assert found.newest == datetime(2026, 11, 10, tzinfo=UTC)
    assert found.models.keys() == {"tiny", "large"} and found.models["tiny"].entries == 5


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ({"older_than": timedelta(days=3)}, [8, 9]),
        ({"older_than": timedelta(days=99)}, list(range(10))),
        ({"max_bytes": 45_000}, [6, 7, 8, 9]),
        ({"max_bytes": 0}, []),
        ({"model": "large"}, [0, 2, 4, 6, 8]),
        ({"model": "large", "max_bytes": 25_000}, [0, 2, 4, 6, 7, 8, 9]),
        ({"model": "large", "older_than": timedelta(days=3)}, [0, 2, 4, 6, 8, 9]),
        ({"model": "?"}, list(range(10))),
        ({"older_than": timedelta(days=6), "max_bytes": 25_000}, [8, 9]),
        ({"everything": True}, []),
    ],
)
def test_pruning_removes_what_was_not_used_for_longest(path: Path, asked: Any, left: list[int]) -> None:
    with filled(path, Clock()) as cache:
        removed = cache.prune(**asked)
        assert there(cache) == left
        assert removed.entries == 10 - len(left)
        assert removed.bytes == pytest.approx(10_200 * removed.entries, rel=0.01)
    assert path.stat().st_size < 11_500 * len(left) + 40_000  # the room is given back


def test_pruning_is_asked_for_in_words_that_mean_something(cache: CallCache) -> None:
    with pytest.raises(SpecError, match="choose what to remove"):
        cache.prune()
    with pytest.raises(SpecError, match="must not be negative"):
        cache.prune(max_bytes=-1)
    assert cache.prune(everything=True) == Kept(0, 0)


def test_what_is_used_stays(path: Path) -> None:
    clock = Clock()
    with filled(path, clock) as cache:
        assert cache.get(number(0)) is not None
    with CallCache.open(path, clock=clock) as cache:
        cache.prune(max_bytes=25_000)
        assert there(cache) == [0, 9]


def test_hits_write_nothing_until_there_are_many(path: Path) -> None:
    clock = Clock()
    with filled(path, clock) as cache, closing(sqlite3.connect(path)) as other:
        before = other.execute("PRAGMA data_version").fetchone()
        for n in range(10):
            cache.get(number(n))
        assert other.execute("PRAGMA data_version").fetchone() == before
        assert cache.stats().oldest == datetime.fromtimestamp(clock.now, UTC)
        assert other.execute("PRAGMA data_version").fetchone() != before


def test_a_file_beyond_its_bound_is_pruned_when_it_is_opened(path: Path) -> None:
    clock = Clock()
    filled(path, clock).close()
    with CallCache.open(path, clock=clock, most_bytes=60_000) as cache:
        assert there(cache) == [5, 6, 7, 8, 9]
    with CallCache.open(path, clock=clock) as cache:
        assert there(cache) == [5, 6, 7, 8, 9]


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def magistrate(*words: str) -> str:
    done = CliRunner().invoke(cli, ["cache", *words], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def test_the_command_says_what_there_is_and_removes_it(home: Path) -> None:
    assert "the cache is empty" in magistrate("stats")
    assert json.loads(magistrate("stats", "--json"))["entries"] == 0
    assert json.loads(magistrate("prune", "--all", "--json")) == {"entries": 0, "bytes": 0, "freed": 0}
    assert not home.exists()  # looking leaves no trace
    with CallCache.open() as cache:
        for n in range(4):
            cache.put(number(n), bytes(10_000), ("tiny", "large")[n % 2])
    shown = magistrate("stats")
    assert "4 answers" in shown and re.search(r"tiny +2 +20\.\d kB", shown)
    data = json.loads(magistrate("stats", "--json"))
    assert data["entries"] == 4 and data["models"]["large"]["entries"] == 2
    assert "removed 0 answers" in magistrate("prune", "--older-than", "30d")
    assert "removed 1 answer, about 10.2 kB" in magistrate("prune", "--max-size", "32KB")
    assert json.loads(magistrate("prune", "--model", "large", "--json"))["entries"] == 2
    assert "removed 1 answer," in magistrate("prune", "--all")


def test_a_damaged_file_is_said_and_can_be_removed(home: Path) -> None:
    home.mkdir()
    default_cache().write_bytes(b"not a database " * 1000)
    with pytest.raises(StoreError, match=r"is damaged.*prune --all"):
        magistrate("stats")
    with pytest.raises(StoreError, match="is damaged"):
        magistrate("prune", "--model", "tiny")
    assert "15.0 kB" in magistrate("prune", "--all")
    assert not default_cache().exists()


def test_a_file_that_is_found_damaged_late_can_be_removed(home: Path) -> None:
    with CallCache.open() as cache:
        for n in range(50):
            cache.put(number(n), bytes(3000), "tiny")
    with default_cache().open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xff" * 40 * 4096)
    assert "removed 0 answers, about " in magistrate("prune", "--all")
    assert not default_cache().exists()


def test_a_locked_file_is_not_pruned_and_that_is_said(home: Path) -> None:
    with CallCache.open() as cache:
        cache.put(KEY, b"value", "tiny")
        with closing(sqlite3.connect(default_cache(), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another program has locked it; wait"):
                magistrate("prune", "--all")
        assert cache.get(KEY) == b"value"


@pytest.mark.parametrize("column", ["used", "size", "model", "made"])
def test_rows_that_hold_what_nobody_wrote_raise_nothing_in_a_run(path: Path, column: str) -> None:
    with CallCache.open(path) as cache:
        cache.put(KEY, b"value", "tiny")
        with closing(sqlite3.connect(path)) as disk, disk:
            disk.execute(f"UPDATE calls SET {column} = ?", (b"\xff\xfe",))
        assert cache.get(KEY) == b"value"
        assert (cache.stats().entries, cache.damaged) in ((1, False), (0, True))
        engine = Answering(Generation("yes", "yes", "stop"))
        assert run(Cached(engine, cache).generate(ASKED)) is engine.answer


def test_a_model_whose_name_cannot_be_written_is_asked_every_time(cache: CallCache) -> None:
    engine = Answering(Generation("yes", "yes", "stop"), info=replace(INFO, model="lone \ud800"))
    for _ in range(2):
        assert run(Cached(engine, cache).generate(ASKED)) is engine.answer
    assert (cache.stats().not_kept, cache.trouble, cache.damaged) == (2, None, False)


def test_another_programs_file_is_not_removed(home: Path) -> None:
    home.mkdir()
    with closing(sqlite3.connect(default_cache())) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreError, match="is not changed"):
        magistrate("prune", "--all")
    assert default_cache().exists()


@pytest.mark.parametrize(
    "words",
    [["--older-than", "soon"], ["--older-than", "-3d"], ["--max-size", "5 parsecs"], ["--max-size", "-1"]],
)
def test_ages_and_sizes_that_are_none_are_refused(home: Path, words: list[str]) -> None:
    with pytest.raises(Exception, match="is written like"):
        magistrate("prune", *words)


def test_prune_wants_to_know_what(home: Path) -> None:
    with pytest.raises(SpecError, match="choose what to remove"):
        magistrate("prune")
    with pytest.raises(SpecError, match="cannot be combined with other options"):
        magistrate("prune", "--all", "--model", "tiny")
