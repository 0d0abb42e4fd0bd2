"""Files named `*_torch.py` need the extra `train`; CI runs them in an environment that has it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*_torch.py"]
