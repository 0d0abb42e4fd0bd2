"""The examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import magistrate

SOURCE = Path(magistrate.__file__).parent
WITH_EXAMPLES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


def test_every_example_of_a_docstring_prints_what_it_says() -> None:
    assert len(WITH_EXAMPLES) > 40
    wrong = []
    for path in WITH_EXAMPLES:
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        if found.failed or not found.attempted:
            wrong.append(f"{name}: {found.failed} of {found.attempted} examples fail")
    assert not wrong, "\n".join(wrong)
