"""What an extra brings is asked for where it is needed, and its absence names the line that installs it."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from magistrate import judge
from magistrate.errors import MissingExtra
from magistrate.report.judges import EXTRAS
from terminal import Call
from test_architecture import PACKAGES, SOURCES, imports

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
# Modules that only extras install, and the parts of the package that exist for such an extra.
EXTRA_MODULES = {"fastapi", "starlette", "uvicorn", "prometheus_client", "matplotlib", "scipy", "sklearn"}
EXTRA_MODULES |= {"threadpoolctl", "sacrebleu", "tenacity", "pandas", "pyarrow", "torch", "statsmodels"}
PARTS = (
    "magistrate.server",
    "magistrate.training",
    "magistrate.integrations",
    "magistrate.detectors.hf_network",
)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretend that a module is not installed."""
    real = importlib.util.find_spec

    def hide(name: str) -> None:
        def found(module: str, *others: Any) -> Any:
            return None if module == name else real(module, *others)

        monkeypatch.setattr(importlib.util, "find_spec", found)

    return hide


def test_a_missing_package_names_its_extra(without: Callable[[str], None], call: Call) -> None:
    without("uvicorn")
    done = call("serve")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'magistrate[server]'" in done.err
    without("sacrebleu")
    with pytest.raises(MissingExtra, match=r"pip install 'magistrate\[reference\]'"):
        judge(output="a b", expected="a b", judge="bleu")


def test_what_only_an_extra_installs_is_not_imported_with_a_module_of_the_base() -> None:
    wrong = [
        f"{each.source}:{each.line} imports {each.target}"
        for name in sorted(EXTRA_MODULES)
        for each in imports(SOURCES, PACKAGES, within=name)
        if each.eager
        and not each.source.startswith(PARTS)
        and not each.source.startswith("magistrate.engines.")
    ]
    assert wrong == []


def test_every_extra_is_looked_for_by_doctor_and_all_its_packages_are_bounded() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS) | {"all", "train"} == set(extras)
    for lines in (PROJECT["dependencies"], *extras.values()):
        for requirement in map(Requirement, lines):
            assert (
                requirement.name == PROJECT["name"]
                or "<" in str(requirement.specifier)
                or "~=" in str(requirement.specifier)
            ), requirement
