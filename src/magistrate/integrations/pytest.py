"""Pytest plugin: a `judge` fixture, and a marker that runs a test once per sample of a data set.

Every pytest run loads it if the package is installed, so it imports only pytest until it is used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from magistrate.engines.base import Engine
    from magistrate.testing import Judging
    from magistrate.types import Sample

MARKER = "magistrate_dataset"
GROUP = "magistrate"
"""The group that pytest-xdist gives to one worker, with `--dist loadgroup`."""
ENGINE = "magistrate_engine"
JUDGING = "magistrate_judging"  # used by the fixture `judge`, unless a project defines its own `judge`
TOLD = 3  # number of unreadable rows in a message
TAKES = (
    "limit",
    "sample",
    "balance",
    "seed",
    "mapping",
    "labels",
    "view",
    "need_output",
)  # options of magistrate.load
HELP = (
    f"{MARKER}(source, *, {', '.join(TAKES)}): run the test once for each sample of "
    "a data set, as its argument 'sample'."
)
MAPPED = re.compile(r"--map (\w+)=([\w.]*)")
LABELS = re.compile(r"--labels (\S+=MEANING)")
OPTION = re.compile(r"--(?:(map)|(limit|sample|balance|seed|view|labels))\b")
OPTIONS = {
    "judge": "the judge of the fixture 'judge', such as auto, faithfulness or rubric:most=2",
    "model": "the model for this judge, if it needs one: a catalogue name, a GGUF file or an OpenVINO folder",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--magistrate-judge` and `--magistrate-model`, and the same settings of the ini file."""
    group = parser.getgroup("magistrate", "Magistrate: faithfulness of model outputs")
    for name, told in OPTIONS.items():
        parser.addini(f"magistrate_{name}", told, default="")
        group.addoption(f"--magistrate-{name}", metavar="NAME", default=None, help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", HELP)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create one test case per sample, for a test with the marker."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None:
        return
    name = metafunc.definition.nodeid
    if "sample" not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(
            f"{name}: a test with @pytest.mark.{MARKER} needs the argument 'sample'"
        )
    samples = _samples(metafunc, marker)
    from magistrate.testing import case_ids

    metafunc.parametrize("sample", samples, ids=case_ids(samples))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that use the engine into one group, so that pytest-xdist can run them in one process."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        used = {ENGINE, JUDGING}.intersection(getattr(item, "fixturenames", ()))
        asks = used or item.get_closest_marker(MARKER) is not None
        if asks and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(GROUP))


@pytest.fixture(scope="session")
def magistrate_engine(pytestconfig: pytest.Config) -> Engine:
    """The engine of `judge`, loaded once per process. To replace it, define your own in conftest.py."""
    from magistrate.judges import registry

    return registry.engine(_setting(pytestconfig, "model"))


@pytest.fixture(scope="session")
def magistrate_judging(request: pytest.FixtureRequest) -> Judging:
    """The selected judge, with an engine only if it uses one."""
    from magistrate.engines.none import NONE
    from magistrate.judges import registry
    from magistrate.testing import Judging

    named = registry.judge(_setting(request.config, "judge") or registry.DEFAULT_JUDGE)
    return Judging(named, request.getfixturevalue(ENGINE) if named.info.asks else NONE)


@pytest.fixture(scope="session")
def judge(magistrate_judging: Judging) -> Judging:
    """A judge with its engine: `judge(output, context=…)` returns a verdict, `judge.assert_faithful(…)`
    tests.
    """
    return magistrate_judging


def _setting(config: pytest.Config, name: str) -> str | None:
    """Return a setting from the command line, else from the ini file, else None."""
    given: str | None = config.getoption(f"--magistrate-{name}") or config.getini(f"magistrate_{name}")
    return given or None


def _samples(metafunc: pytest.Metafunc, marker: pytest.Mark) -> list[Sample]:
    """Return the samples of a marker. Unreadable rows abort the collection, so that no sample is missed."""
    from magistrate.datasets import load
    from magistrate.datasets.fields import near
    from magistrate.errors import MagistrateError

    name = metafunc.definition.nodeid
    if len(marker.args) != 1:
        raise pytest.Collector.CollectError(
            f"{name}: @pytest.mark.{MARKER} needs one data set, got {len(marker.args)}"
        )
    options: dict[str, Any] = dict(marker.kwargs)
    if wrong := [option for option in options if option not in TAKES]:
        raise pytest.Collector.CollectError(
            f"{name}: @pytest.mark.{MARKER} has no option {wrong[0]!r}{near(wrong[0], TAKES)}; "
            f"known: {', '.join(TAKES)}"
        )
    try:
        found = load(_place(marker.args[0], metafunc), **options)
        samples = list(found)
    except (MagistrateError, TypeError) as error:
        raise pytest.Collector.CollectError(f"{name}: {_in_marker(str(error))}") from None
    if found.problems:
        told = _in_marker("; ".join(str(problem) for problem in found.problems[:TOLD]))
        if any(problem.label for problem in found.problems):
            told += f"; {_in_marker(found.mend())}"
        raise pytest.Collector.CollectError(
            f"{name}: rows that cannot be read ({len(found.problems)}): {told}"
        )
    if not samples:
        raise pytest.Collector.CollectError(
            f"{name}: {found.name} has no samples, so nothing would be tested"
        )
    return samples


def _in_marker(message: str) -> str:
    """Rewrite command-line options in a message as arguments of the marker."""
    mapped = MAPPED.sub(lambda found: f'mapping={{"{found[1]}": "{found[2]}"}}', message)
    mapped = LABELS.sub(lambda found: f"labels={{{_pairs(found[1])}}}", mapped)
    return OPTION.sub(lambda found: "mapping" if found[1] else str(found[2]), mapped)


def _pairs(words: str) -> str:
    """Rewrite `ok=MEANING,bad=MEANING` as the items of a dict."""
    return ", ".join(": ".join(f'"{word}"' for word in pair.split("=", 1)) for pair in words.split(","))


def _place(source: Any, metafunc: pytest.Metafunc) -> Any:
    """Return the path of a file beside the test or in the root folder, or else `source` unchanged."""
    if isinstance(source, str | Path):
        for folder in (metafunc.definition.path.parent, metafunc.config.rootpath):
            if (folder / source).is_file():
                return folder / source
    return source
