"""What tests share: the embedded model, a browser, pages to look at, and Ctrl-C as at a terminal."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import tiers
from desk import Desk
from magistrate._paths import models_dir
from magistrate.cli import main
from magistrate.engines import models
from magistrate.engines.embedded.engine import LocalEngine
from postgres import Server, a_server
from terminal import Call, Done

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from browsing import Visit
    from furnished import Furnished

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("every test", deadline=None)
hypothesis.settings.register_profile("some tests", deadline=None, max_examples=30)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(tiers)
    made = _home_of_tests()
    config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))
    os.environ["MAGISTRATE_HOME"] = str(made)
    hypothesis.settings.load_profile("some tests" if config.option.markexpr else "every test")


def _home_of_tests() -> Path:
    """Return a new home with the language models of the user's, and no detectors."""
    made = Path(tempfile.mkdtemp(prefix="magistrate-tests-"))
    (made / "models").mkdir()
    for each in models_dir().glob("*"):
        if each.is_dir() and not each.name.startswith(("detector-", "base-")):
            (made / "models" / each.name).symlink_to(each, target_is_directory=True)
    return made


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs deaf to Ctrl-C, and the programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The folder of the default model, pulled the first time."""
    return models.pull(models.default())


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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a new store can be made: once a path, once the URL of an empty database."""
    if request.param == "sqlite":
        yield str(tmp_path / "new" / "folder" / "runs.db")
        return
    server: Server = request.getfixturevalue("postgres")
    url = server.new_database()
    yield url
    server.drop(url)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own for everything that Magistrate writes, and the place where the user is."""
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MAGISTRATE_DATA_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture(autouse=True, scope="session")
def _closed_terminals_are_noticed() -> None:
    """Under `nohup` programs that tests start would ignore that their terminal was closed."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _routes_are_built_once() -> None:
    """FastAPI builds the routes of each application at its first request, for a fifth of a second; tests
    make hundreds of applications of the same routers."""
    if (routing := sys.modules.get("fastapi.routing")) is None:
        return
    build, built = routing._EffectiveRouteContext.from_api_route, dict[tuple[int, str], Any]()

    def once(*, original_route: Any, include_context: Any) -> Any:
        key = id(original_route), include_context.prefix
        if key not in built:  # what is built keeps its route, so no other one gets that id
            built[key] = build(original_route=original_route, include_context=include_context)
        return built[key]

    routing._EffectiveRouteContext.from_api_route = once


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser of one's own: while it is there, no event loop can be run in this thread."""
    from browsing import a_browser

    with a_browser() as opened:
        yield opened


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Open a page of a server; at the end no page has said anything or asked for anything elsewhere."""
    from browsing import WIDE, Visit

    visits: list[Visit] = []

    def opened(site: str, path: str = "/", *, expected: Sequence[int] = (), **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": WIDE, "height": 900}, **options})
        visits.append(Visit(context, site, path, expected))
        return visits[-1]

    yield opened
    for each in visits:
        each.page.context.close()
    assert [strange for each in visits for strange in each.strange] == []


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Furnished:
    """One store with something of everything, to look at and not to change."""
    from furnished import furnished

    return furnished(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def site(house: Furnished) -> Iterator[str]:
    """The address of the pages over it."""
    from browsing import pages_of

    with pages_of(house.place) as address:
        yield address
