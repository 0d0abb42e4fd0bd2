"""The embedded model, loaded once for all tests that ask it something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magistrate.engines import catalog
from magistrate.engines.local.engine import LocalEngine


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
