"""These tests need llama-cpp-python, which is compiled; `make test-llamacpp` brings it."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("llama_cpp") else ["test_*.py"]
