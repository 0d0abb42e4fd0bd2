"""What people may rely on: the names, that each says what it is, and that type checkers see them."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import magistrate

FACE = Path(magistrate.__file__)
PACKAGES = sorted(
    each.name for each in pkgutil.walk_packages(magistrate.__path__, "magistrate.") if each.ispkg
)


def public(module: ModuleType) -> list[str]:
    return list(getattr(module, "__all__", []))


def order(name: str) -> tuple[bool, bool, str]:
    """Constants, then classes, then the rest, each by name: the linter's order of `__all__`."""
    return not name.isupper(), not name[0].isupper(), name


def undocumented(module: ModuleType) -> list[str]:
    """Public classes and functions without a docstring of their own."""
    found = []
    for name in public(module):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
            # A dataclass without a docstring is given its own signature as one.
            if not text or text.startswith(f"{name}("):
                found.append(name)
    return found


def test_the_public_names_are_sorted_and_each_is_there() -> None:
    assert magistrate.__all__ == sorted(set(magistrate.__all__), key=order)
    for name in magistrate.__all__:
        assert getattr(magistrate, name) is not None


def test_what_is_seen_is_what_is_public() -> None:
    assert dir(magistrate) == magistrate.__all__


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from magistrate import *", names)
    assert set(names) - {"__builtins__"} == set(magistrate.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'magistrate' has no attribute 'verdikt'"):
        magistrate.verdikt  # type: ignore[attr-defined]  # noqa: B018


def test_who_judges_without_naming_the_texts_is_told_their_names() -> None:
    words: Any = ("It rains.", "The sun shines.")
    for judged in (magistrate.judge, lambda *args, **more: asyncio.run(magistrate.ajudge(*args, **more))):
        with pytest.raises(TypeError, match=r"^judge\(\) takes its arguments by name, as in judge\(output="):
            judged(*words)
        with pytest.raises(TypeError, match=r"^judge\(\) has no argument 'text'; it takes output, context, "):
            judged(text="It rains.")


def test_every_public_name_says_what_it_is() -> None:
    assert magistrate.__doc__
    assert undocumented(magistrate) == []


def test_every_package_says_what_is_public() -> None:
    for name in PACKAGES:
        module = importlib.import_module(name)
        assert public(module) == sorted(set(public(module)), key=order), name
        assert [each for each in public(module) if not hasattr(module, each)] == [], name
        assert undocumented(module) == [], name
        assert module.__doc__ or not public(module), name


def test_the_packages_with_a_face_are_found() -> None:
    with_names = {name for name in PACKAGES if public(importlib.import_module(name))}
    assert {"magistrate.constraints", "magistrate.datasets", "magistrate.judges"} <= with_names


@dataclass
class Bare:
    x: int


class Said:
    """It says so."""


class Heir(Said):
    pass


def silent() -> None:
    pass


def test_undocumented_names_are_seen() -> None:
    module = ModuleType("probe")
    names = {"Bare": Bare, "Heir": Heir, "Said": Said, "silent": silent}
    module.__dict__.update(names, __all__=list(names))
    assert undocumented(module) == ["Bare", "Heir", "silent"]


# --- the same for type checkers ------------------------------------------------------------------


def names_for_type_checkers() -> dict[str, str]:
    """The names that the package's face imports under TYPE_CHECKING, and from where."""
    tree = ast.parse(FACE.read_text(encoding="utf-8"))
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name: str(node.module)
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_and_python_find_each_name_in_the_same_place() -> None:
    typed = names_for_type_checkers()
    assert set(typed) == set(magistrate.__all__) - {"__version__"}
    for name, home in typed.items():
        assert getattr(magistrate, name) is getattr(importlib.import_module(home), name)


@pytest.mark.full
def test_a_type_checker_knows_the_names_and_misses_those_that_are_not_there(tmp_path: Path) -> None:
    assert FACE.with_name("py.typed").is_file()
    program = tmp_path / "program.py"
    lines = ["import magistrate", *(f"magistrate.{name}" for name in magistrate.__all__)]
    good = len(lines)
    lines += ["magistrate.verdikt", "outcome: int = magistrate.judge(output='x')"]
    program.write_text("\n".join(lines) + "\n")
    options = ["--strict", "--no-color-output", "--no-error-summary", "--config-file="]
    options += ["--follow-imports=silent", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line.partition("program.py:")[2] for line in done.stdout.splitlines()]
    assert [line.partition(":")[0] for line in errors] == [str(good + 1), str(good + 2)], done.stdout
    assert 'no attribute "verdikt"' in errors[0]
    assert 'has type "Verdict | Failure | Abstention"' in errors[1]
