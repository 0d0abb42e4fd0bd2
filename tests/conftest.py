"""What all tests share: the embedded model, loaded once, and Ctrl-C as a person at a terminal has it."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from desk import Desk
from magistrate.cli import main
from magistrate.engines import catalog
from magistrate.engines.local.engine import LocalEngine
from postgres import Server, a_server
from terminal import Call, Done

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own for everything that Magistrate writes, and the place where the user is."""
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MAGISTRATE_DATA_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def call(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line in this process."""

    def called(*words: object, stdin: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["magistrate", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        printed = capsys.readouterr()
        return Done(ended.value.code, printed.out, printed.err)

    return called
