"""Which tests run when.

`make test-all` runs every test. `make test` runs those without the mark `full`, and a fourteenth of the cases
of matrices with it, marked `today`: others in the morning and in the afternoon, so that a week shows all.
Which they are follows from the date, or from the number in MAGISTRATE_TEST_DAY, which is printed.

    @pytest.mark.full   what takes long: a whole matrix, a second database, a browser, chaos
    @pytest.mark.alone  what measures time or needs the whole machine: no other test runs meanwhile
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis
import pytest

DAY = "MAGISTRATE_TEST_DAY"
DAYS = 14
LEFT = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = 0
    now = datetime.now()
    half_days = 2 * now.toordinal() + (now.hour >= 12)
    os.environ.setdefault(DAY, str(half_days))  # all processes have the same one


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What a whole file is marked for is dear for all of its tests, and so is a single test.
    full = [item for item in items if hasattr(item, "callspec") and item.get_closest_marker("full")]
    cases = [item for item in full if not is_marked(item.getparent(pytest.Module))]
    for item in cases[int(os.environ[DAY]) % DAYS :: DAYS]:
        item.add_marker("today")


def tries(most: int) -> int:
    """How many examples of a hypothesis are tried: `most` of every test, fewer where tests are chosen."""
    return most * hypothesis.settings.default.max_examples // 100


def some(cases: Sequence[Any]) -> Sequence[Any]:
    """All cases of a loop; where tests are chosen, a fifth of them, another one each half day."""
    chosen = tries(100) < 100
    return cases[int(os.environ[DAY]) % 5 :: 5] if chosen else cases


def is_marked(module: pytest.Module | None) -> bool:
    return module is not None and any(mark.name == "full" for mark in module.own_markers)


# --- what is left out is counted ----------------------------------------------------------------


def pytest_deselected(items: list[pytest.Item]) -> None:
    for config in {item.config for item in items}:
        config.stash[LEFT] += len(items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash[LEFT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of pytest-xdist leaves out the same tests."""
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.markexpr:
        terminalreporter.write_line(
            f"{config.stash[LEFT]} tests were left to `make test-all`; "
            f"the same ones again: {DAY}={os.environ[DAY]} make test"
        )


# --- some run alone -----------------------------------------------------------------------------

DOOR, ROOM = Path(__file__), Path(__file__).with_name("conftest.py")  # any two files that all processes see


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with ExitStack() as held:
        if hasattr(item.config, "workerinput"):  # there are other processes
            alone = item.get_closest_marker("alone") is not None
            # Who waits to be alone stands in the door: nobody else comes in meanwhile.
            with locked(DOOR, exclusive=True):
                held.enter_context(locked(ROOM, exclusive=alone))
        return (yield)


@contextmanager
def locked(path: Path, *, exclusive: bool) -> Iterator[None]:
    """A file that one process holds, or that several share."""
    import fcntl

    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # also for children that were forked meanwhile
