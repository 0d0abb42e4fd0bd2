"""The peers of the benchmark: what holds where none of their packages is installed."""

from __future__ import annotations

import re
import venv
from pathlib import Path

import pytest

from benchmarks.contenders.base import CONTENDERS, Weights, made
from benchmarks.contenders.process import Child
from magistrate.errors import EngineError

ROOT = Path(__file__).parent.parent
NOWHERE = Path("nowhere")
FIRST = {
    "outlines-transformers": "outlines",
    "phoenix-xllamacpp": "arize-phoenix-evals",
    "llama.cpp": "llama-cpp-python",
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has no package at all."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    return next(path for path in folder.glob("*/python*") if path.is_file())


def test_these_are_the_peers() -> None:
    assert {name for name, entry in CONTENDERS.items() if entry.peer} == set(FIRST)


@pytest.mark.parametrize("name", FIRST)
def test_a_missing_package_is_named(name: str, bare: Path) -> None:
    weights = Weights(NOWHERE, NOWHERE / "model.gguf", NOWHERE)
    with pytest.raises(EngineError, match=rf"^not installed: {re.escape(FIRST[name])}$"):
        Child(name, weights, 1, bare, 30)


@pytest.mark.parametrize("name", FIRST)
def test_a_peer_has_a_method_for_each_work_it_names(name: str) -> None:
    contender = made(CONTENDERS[name].target)
    assert contender.name == name
    assert {"verdict_only", "verdict_with_reasons", "prefill", "decode"} <= contender.works
    assert all(callable(getattr(contender, work)) for work in contender.works)


@pytest.mark.parametrize("name", FIRST)
def test_weights_without_a_gguf_are_refused(name: str) -> None:
    with pytest.raises(EngineError, match="needs the weights as a GGUF"):
        made(CONTENDERS[name].target).load(Weights(NOWHERE, None, NOWHERE), 1)


def test_what_is_installed_is_bounded_above() -> None:
    lines = (ROOT / "requirements-peers.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    compiled = re.search(
        r"^LLAMA_CPP := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert compiled is not None
    for requirement in (*wanted, compiled[1]):
        assert re.fullmatch(r"[a-z-]+(==[\d.]+|>=[\d.]+,<[\d.]+)", requirement), requirement
