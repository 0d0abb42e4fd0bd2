"""Built-in judges without a class of their own: the YAML files in `judges/builtin`, and plain wrappers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from magistrate.errors import SpecError
from magistrate.judges.base import Judge
from magistrate.judges.definitions import judge_from_package
from magistrate.judges.passages import Passages
from magistrate.judges.sentences import Sentences
from magistrate.judges.windows import Windows

FILES = ("context_relevance", "faithfulness", "moderation", "relevance")
WRAPPERS: dict[str, Callable[[Judge], Judge]] = {
    "passages": Passages,
    "sentences": Sentences,
    "windows": Windows,
}


@cache
def instance(name: str) -> Judge:
    """Return a built-in judge: the one in `judges/builtin/NAME.yaml`, or a wrapper around `faithfulness`."""
    if name in WRAPPERS:
        return WRAPPERS[name](instance("faithfulness"))
    if name not in FILES:
        raise SpecError(f"the package has no judge {name!r}; known: {', '.join((*FILES, *WRAPPERS))}")
    return judge_from_package("magistrate.judges", f"builtin/{name}.yaml")


def __getattr__(name: str) -> Judge:
    if name not in FILES and name not in WRAPPERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return instance(name)
