"""What an extra brings is asked for where it is needed, and its absence names the line that installs it."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from magistrate import judge
from magistrate.constraints import Lark, check
from magistrate.datasets import load
from magistrate.detectors.hf_network import graph_of
from magistrate.errors import MissingExtra
from magistrate.report.judges import EXTRAS
from terminal import Call
from test_architecture import PACKAGES, SOURCES, imports

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
# Modules that only extras install, and the parts of the package that exist for such an extra.
EXTRA_MODULES = {"fastapi", "starlette", "uvicorn", "prometheus_client", "matplotlib", "scipy", "sklearn"}
EXTRA_MODULES |= {
    "llguidance",
    "openvino",
    "json_repair",
    "onnx",
    "threadpoolctl",
    "rapidfuzz",
    "sacrebleu",
    "tenacity",
    "pandas",
    "pyarrow",
    "torch",
    "statsmodels",
}
EXTRA_MODULES |= {"google", "grpc", "opentelemetry"}
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


def test_a_missing_package_names_its_extra(
    without: Callable[[str], None], call: Call, tmp_path: Path
) -> None:
    without("uvicorn")
    done = call("serve")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'magistrate[server]'" in done.err
    without("sacrebleu")
    with pytest.raises(MissingExtra, match=r"pip install 'magistrate\[reference\]'"):
        judge(output="a b", expected="a b", judge="bleu")
    without("rapidfuzz")
    for name in ("levenshtein", "rouge"):
        with pytest.raises(MissingExtra, match=r"pip install 'magistrate\[reference\]'"):
            judge(output="a b", expected="a b", judge=name)
    assert judge(output="a b", expected="a b", judge="rouge:of=rouge1").score == 1
    without("llguidance")
    with pytest.raises(MissingExtra, match=r"pip install 'magistrate\[local\]'"):
        check("a", Lark('start: "only this test compiles it"'))
    without("openvino")
    with pytest.raises(MissingExtra, match=r"pip install 'magistrate\[local\]'"):
        graph_of(tmp_path)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python reads Zstandard itself")
def test_a_packed_file_names_the_extra_that_unpacks_it(
    without: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl.zst").write_bytes(b"")
    without("backports")
    with pytest.raises(MissingExtra, match=r"pip install 'magistrate\[zstd\]'"):
        list(load(tmp_path / "rows.jsonl.zst"))


def test_the_base_is_small() -> None:
    assert len(PROJECT["dependencies"]) <= 15


def test_what_only_an_extra_installs_is_not_imported_with_a_module_of_the_base() -> None:
    wrong = [
        f"{each.source}:{each.line} imports {each.target}"
        for each in imports(SOURCES, PACKAGES, within=EXTRA_MODULES)
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
