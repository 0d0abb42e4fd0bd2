"""Files named `*_torch.py` need the extra `train`; CI runs them in an environment that has it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*_torch.py"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Networks this small are only slowed down by several threads, the more so beside other tests."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
