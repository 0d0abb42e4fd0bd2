"""The shape of the code: layers point one way, nothing goes in circles, and importing it is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import magistrate

ROOT = Path(magistrate.__file__).parent
PACKAGE = "magistrate"

# From the bottom up: a module imports from its own layer and from earlier ones only.
LAYERS = (
    ("errors", "_version"),
    ("_paths", "_logging"),
    ("_text",),
    ("_yaml",),
    ("types",),
    ("_fork", "_work", "_lazy"),
    ("_async",),
    ("metrics",),
    ("constraints",),
    ("datasets",),
    ("engines",),
    ("features",),
    ("detectors",),
    ("judges",),
    ("store",),
    ("analysis",),
    ("training",),
    ("report",),
    ("runs",),
    ("watch",),
    ("labels",),
    ("api",),
    ("testing",),
    ("server",),
    ("integrations",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# The package's face names everything for type checkers and imports nothing else, so it has no layer.
FACE = PACKAGE

MOST_IMPORT_SECONDS = 0.150


@dataclass(frozen=True, slots=True)
class Import:
    """`source` imports `target`, both full module names; `eager` if it happens when `source` is imported."""

    source: str
    target: str
    line: int
    eager: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
PACKAGES = {module_name(path) for path in ROOT.rglob("__init__.py")}


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a module, read once for all that look at it."""
    return ast.parse(source)


def imports(
    sources: Mapping[str, str], packages: set[str], within: Set[str] = frozenset({PACKAGE})
) -> list[Import]:
    """Every import of these packages' modules, wherever it stands: in functions and for types only, too."""
    found: list[Import] = []
    for name, source in sources.items():
        for node, eager in _import_nodes(parsed(source), True):
            for target in _targets(node, name, name in packages, sources):
                if target.split(".")[0] in within:
                    found.append(Import(name, target, node.lineno, eager))
    return found


def _import_nodes(node: ast.AST, eager: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, eager
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            for part in child.body:
                yield from _import_nodes(ast.Module([part], []), False)
            for part in child.orelse:
                yield from _import_nodes(ast.Module([part], []), eager)
        else:
            later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _import_nodes(child, eager and not later)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _targets(
    node: ast.Import | ast.ImportFrom, source: str, is_package: bool, modules: Container[str]
) -> Iterator[str]:
    """The modules that a statement names: `from a import b` is `a.b` where that is a module, else `a`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parts = source.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        base = ".".join([*parts, *([node.module] if node.module else [])])
    for alias in node.names:
        yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else FACE


def upward(found: list[Import]) -> list[str]:
    """Imports that break the order of layers, in words."""
    return [
        f"{each.source}:{each.line} imports {each.target}"
        for each in found
        if each.source != FACE
        and (each.target == FACE or LEVEL[layer(each.source)] < LEVEL[layer(each.target)])
    ]


def cycles(found: list[Import]) -> list[tuple[str, ...]]:
    """Groups of modules that import each other when they are imported (strongly connected components)."""
    graph: dict[str, set[str]] = {}
    for each in found:
        if each.eager:
            graph.setdefault(each.source, set()).add(each.target)
    reach = {module: _reachable(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in reach[module] if module in reach.get(other, ())))
        for module in graph
        if module in reach[module]
    }
    return sorted(groups)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph.get(module, ())
    return seen


@cache
def own_imports() -> list[Import]:
    """Every import of the package, found by the first test that looks: other processes do not."""
    return imports(SOURCES, PACKAGES)


# --- the code ------------------------------------------------------------------------------------


def test_every_module_has_a_layer_and_every_layer_a_module() -> None:
    assert {layer(module) for module in SOURCES} - {FACE} == set(LEVEL)


def test_imports_point_down_also_those_for_types_and_in_functions() -> None:
    assert len(own_imports()) > 200  # the parser sees the code
    assert upward(own_imports()) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycles(own_imports()) == []


def test_executing_does_not_reach_the_store_by_any_way() -> None:
    graph: dict[str, set[str]] = {}
    for each in own_imports():
        graph.setdefault(each.source, set()).add(each.target)
    reached = _reachable(graph, f"{PACKAGE}.runs.execute")
    assert f"{PACKAGE}.engines.base" in reached
    assert not [module for module in reached if layer(module) == "store"]


def test_library_code_does_not_print_and_does_not_swallow_errors() -> None:
    lines = {module: prints(source) + swallows(source) for module, source in SOURCES.items()}
    assert {module: found for module, found in lines.items() if found} == {}


def prints(source: str) -> list[int]:
    """Lines that call `print`; a module that is run as a child process may, it speaks to its parent so."""
    if 'if __name__ == "__main__":' in source:
        return []
    return [
        node.lineno
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def swallows(source: str) -> list[int]:
    """Lines of handlers that catch whatever comes and do nothing about it."""
    return [
        node.lineno
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.ExceptHandler)
        and _catches_all(node.type)
        and all(map(_is_nothing, node.body))
    ]


def _catches_all(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or ast.unparse(each) in ("Exception", "BaseException") for each in kinds)


def _is_nothing(statement: ast.stmt) -> bool:
    is_ellipsis = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_ellipsis or isinstance(statement, ast.Pass | ast.Continue)


# --- what importing costs ------------------------------------------------------------------------


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    loaded = python(
        "import sys; before = set(sys.modules); import magistrate; print(*sorted(set(sys.modules) - before))"
    )
    top = {name.partition(".")[0] for name in loaded.split()}
    assert PACKAGE in top
    assert top - set(sys.stdlib_module_names) == {PACKAGE}


def loaded_by(*words: str) -> tuple[str, set[str]]:
    """Return what a command prints, and the packages that are loaded at its end."""
    said, _, loaded = python(
        f"import sys; sys.argv = {['magistrate', *words]}; import atexit, magistrate.cli\n"
        "try: magistrate.cli.main()\n"
        "except SystemExit as end: assert end.code in (0, None), end.code\n"
        "print('LOADED', *sorted(sys.modules))"
    ).rpartition("LOADED")
    return said, {name.partition(".")[0] for name in loaded.split()}


def test_help_of_the_command_line_loads_no_engine_and_no_science() -> None:
    said, loaded = loaded_by("run", "--help")
    assert "Usage: magistrate run" in said
    heavy = {"torch", "openvino", "scipy", "sklearn", "pandas", "sqlalchemy", "llguidance", "numpy", "rich"}
    assert "click" in loaded
    assert loaded & (heavy | {"jsonschema", "jinja2", "pydantic", "tokenizers", "huggingface_hub"}) == set()


def test_a_first_verdict_loads_no_store_and_no_science(home: Path) -> None:
    said, loaded = loaded_by("judge", "--output", "It opens at ten.", "--context", "It opens at nine.")
    assert "hallucinated" in said and "onnxruntime" in loaded
    assert loaded & {"torch", "openvino", "scipy", "sklearn", "pandas", "sqlalchemy", "llguidance"} == set()


@pytest.mark.alone
def test_importing_the_package_takes_less_than_150_ms() -> None:
    def best(code: str) -> float:
        return min(_seconds([sys.executable, "-c", code]) for _ in range(5))

    taken = best("import magistrate") - best("pass")
    assert taken < MOST_IMPORT_SECONDS, f"{1000 * taken:.0f} ms"


def _seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - start


# --- the rules themselves see what they forbid ---------------------------------------------------

BREAKS = [
    "from magistrate.store import Store",
    "import magistrate.store.schema",
    "from magistrate import store",
    "from . import store",
    "from .store.schema import runs",
    "def late():\n    from magistrate.store import Store",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from magistrate.store import Store",
    "try:\n    import magistrate.store\nexcept ImportError:\n    raise",
    "import magistrate",
]


def test_the_order_is_seen_to_be_broken() -> None:
    for source in BREAKS:
        # Of the other modules only the names count here.
        sources = {**dict.fromkeys(SOURCES, ""), f"{PACKAGE}.types": source}
        (broken,) = upward(imports(sources, PACKAGES))
        assert broken.startswith(f"{PACKAGE}.types:"), source


def test_circles_are_seen_and_late_imports_make_none() -> None:
    three = {"a": "import b", "b": "from c import x", "c": "import a", "d": "import a"}
    assert cycles(imports_of(three)) == [("a", "b", "c")]
    late = {**three, "c": "def f():\n    import a", "b": "from typing import TYPE_CHECKING\nimport c"}
    assert cycles(imports_of(late)) == []


def imports_of(sources: dict[str, str]) -> list[Import]:
    return imports(sources, set(), set(sources))


def test_prints_and_swallowed_errors_are_seen() -> None:
    assert prints("def f():\n    print('x')") == [2]
    assert swallows("try:\n    f()\nexcept Exception:\n    pass") == [3]
    assert swallows("try:\n    f()\nexcept:\n    ...") == [3]
    assert swallows("try:\n    f()\nexcept (OSError, BaseException):\n    pass") == [3]
    assert swallows("try:\n    f()\nexcept OSError:\n    pass") == []
    assert swallows("try:\n    f()\nexcept Exception as error:\n    keep(error)") == []
