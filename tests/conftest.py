"""What all tests share: the embedded model, loaded once, and Ctrl-C as a person at a terminal has it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from desk import Desk
from magistrate.engines import catalog
from magistrate.engines.local.engine import LocalEngine
from postgres import Server, a_server

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs deaf to Ctrl-C, and the programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The folder of the default model, pulled the first time."""
    return catalog.pull(catalog.default())


@pytest.fixture(scope="session")
def engine(model_folder: Path) -> Iterator[LocalEngine]:
    """One engine on the default model; its weights are loaded by the first question."""
    local = LocalEngine(model_folder)
    yield local
    local.close()


@pytest.fixture(scope="session")
def desk(model_folder: Path) -> Desk:
    """The default model's tokenizer and masks, without its weights."""
    return Desk(model_folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One PostgreSQL server for all tests that need one."""
    with a_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store can be made: once a path, once the URL of an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "new" / "folder" / "runs.db")
    server: Server = request.getfixturevalue("postgres")
    return server.new_database()
