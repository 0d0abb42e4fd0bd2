"""The pages of reference/, from the code: the Python API, run and rules files, the HTTP API, stores."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import magistrate
from docs import generate
from docs.generate import codes
from magistrate._version import __version__
from magistrate.runs import spec
from magistrate.store import schema as tables
from magistrate.watch import rules

Schema = Mapping[str, Any]

PACKAGE = Path(magistrate.__file__).parent
AREAS = {
    "api": "Functions",
    "types": "Samples and outcomes",
    "judges": "Judges",
    "engines": "Engines",
    "constraints": "Constraints",
    "datasets": "Data",
    "runs": "Limits",
    "errors": "Errors",
}
EXAMPLE = re.compile(r"```py(?:thon)?\n(.*?)```", re.DOTALL)


def pages(written: Mapping[str, str]) -> dict[str, str]:
    """The generated pages by their path, given those that people wrote."""
    return {
        "reference/python.md": python_page(),
        "reference/python-modules.md": modules_page(promised(written)),
        "reference/run-file.md": file_page("Run file", "magistrate run --spec FILE", spec.schema()),
        "reference/rules-file.md": file_page("Rules file", "magistrate serve --watch FILE", rules.schema()),
        "reference/http-api.md": http_page(openapi()),
        "reference/store-tables.md": store_page(),
    }


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table without the columns in which no row has anything."""
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    return generate.table(
        [columns[place] for place in kept], [[row[place] for place in kept] for row in rows]
    )


def generated(what: str) -> str:
    """The sentence that says where a page comes from."""
    return f"This page is written by `make docs` from {what} of Magistrate {__version__}."


# --- Python -----------------------------------------------------------------------------------------


def python_page() -> str:
    """The names of `magistrate` itself, by the part of the package that they come from."""
    by_area: dict[str, list[str]] = {area: [] for area in AREAS}
    for name in magistrate.__all__:
        if name != "__version__":
            by_area[magistrate._HOME_OF[name].split(".")[0]].append(name)
    lines = ["# Python API", "", generated("the docstrings"), ""]
    lines += ["`magistrate.__version__` is the version of the package.", ""]
    for area, names in by_area.items():
        lines += [
            f"## {AREAS[area]}",
            "",
            *(_documented("magistrate", name) for name in sorted(names, key=_rank)),
        ]
    return "\n".join(lines)


def _rank(name: str) -> tuple[bool, str, bool]:
    """Functions before classes, and what is awaited after the function that is not."""
    awaited = name.removeprefix("a") in magistrate.__all__
    return name[0].isupper(), name.removeprefix("a") if awaited else name, awaited


def promised(written: Mapping[str, str]) -> dict[str, set[str]]:
    """The names of inner modules that examples of the written pages use, by module."""
    found: dict[str, set[str]] = {}
    for text in written.values():
        for block in EXAMPLE.findall(text):
            for module, name in _used(ast.parse(block)):
                found.setdefault(module, set()).add(name)
    return {module: names for module, names in sorted(found.items()) if "._" not in module}


def _used(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The (module, name) pairs that an example imports; of an imported module, what is read from it."""
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("magistrate."):
            for name in (alias.name for alias in node.names):
                if (PACKAGE.parent / f"{node.module}.{name}".replace(".", "/")).with_suffix(".py").exists():
                    reads = (each for each in nodes if isinstance(each, ast.Attribute))
                    yield from (
                        (f"{node.module}.{name}", each.attr)
                        for each in reads
                        if ast.unparse(each.value) == name
                    )
                else:
                    yield str(node.module), name


def modules_page(names: Mapping[str, set[str]]) -> str:
    """The names that examples import from modules of the package."""
    lines = ["# Python modules", "", generated("the docstrings"), ""]
    lines += ["What the examples of these pages import beside the [names of the package](python.md).", ""]
    for module, each in names.items():
        lines += [f"## {module}", "", *(_documented(module, name) for name in sorted(each))]
    return "\n".join(lines)


def _documented(module: str, name: str) -> str:
    """The directive of autodoc for a name. What the package itself exports is only linked elsewhere."""
    exported = module != "magistrate" and name in magistrate.__all__
    if exported and getattr(import_module(module), name) is getattr(magistrate, name):
        return f"{{py:obj}}`magistrate.{name}`\n"
    # By the spelling, since modules of frameworks that are not installed cannot be imported to look.
    kind = "data" if name.isupper() else "class" if name[0].isupper() else "function"
    members = "   :members:\n" if kind == "class" else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: {module}.{name}\n{members}```\n"


# --- files ------------------------------------------------------------------------------------------


def file_page(title: str, command: str, schema: Schema) -> str:
    """A file that people write: a table of the keys of each part, named by where it stands in the file."""
    places = {"": schema}
    for place, part in places_of(schema, ""):
        places.setdefault(place, part)
    lines = [f"# {title}", "", generated("the JSON Schema"), f"`{command}` reads it.", ""]
    lines += [*_text(schema.get("description", "")), *_keys(schema, schema, "")]
    for place, part in places.items():
        if place:
            lines += [f"## {place}", "", *_text(part.get("description", "")), *_keys(part, schema, place)]
    return "\n".join(lines)


def places_of(schema: Schema, place: str, root: Schema | None = None) -> Iterator[tuple[str, Schema]]:
    """Every part that has keys of its own, with the place where it stands, such as `rules[].judges[]`."""
    root = schema if root is None else root
    for key, value in schema.get("properties", {}).items():
        for suffix, part in _parts(value, root):
            inner = f"{place}.{key}{suffix}".lstrip(".")
            yield inner, part
            yield from places_of(part, inner, root)


def _parts(value: Schema, root: Schema) -> Iterator[tuple[str, Schema]]:
    """The objects with named keys in a value, and how they are reached from it."""
    value = _resolved(value, root)
    if "properties" in value:
        yield "", value
    for each in value.get("anyOf", ()):
        yield from _parts(each, root)
    for suffix, inner in (("[]", value.get("items")), (".NAME", value.get("additionalProperties"))):
        if isinstance(inner, Mapping):
            yield from ((suffix + below, part) for below, part in _parts(inner, root))


def _resolved(value: Schema, root: Schema) -> Schema:
    if "$ref" not in value:
        return value
    found: Any = root
    for key in value["$ref"].removeprefix("#/").split("/"):
        found = found[key]
    return dict(found)


def _keys(part: Schema, root: Schema, place: str) -> list[str]:
    """The table of an object's keys. A key that has keys itself leads to their table."""
    rows = []
    for key, value in part.get("properties", {}).items():
        inner = [f"{place}.{key}{suffix}".lstrip(".") for suffix, _ in _parts(value, root)]
        name = f"[`{key}`](#{slug(inner[0])})" if inner else f"`{key}`"
        rows.append(
            [name, kind(value, root), _default(key, value, part), _one_line(value.get("description", ""))]
        )
    return [table(["key", "value", "default", "meaning"], rows), ""] if rows else []


def kind(value: Schema, root: Schema) -> str:
    """What a value may be, in words."""
    if "$ref" in value:
        return kind(_resolved(value, root), root)
    if several := value.get("anyOf") or value.get("oneOf"):
        return _one_of(kind(each, root) for each in several if each.get("type") != "null")
    if "enum" in value:
        return _one_of(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    match value.get("type"):
        case "array" if "prefixItems" in value:
            return "list of " + ", ".join(kind(each, root) for each in value["prefixItems"])
        case "array":
            return "list of " + kind(value.get("items", {}), root)
        case "object":
            inner = value.get("additionalProperties")
            if isinstance(inner, Mapping) and inner and _resolved(inner, root).get("type") != "object":
                return f"mapping to {kind(inner, root)}"
            return "mapping"
        case "string":
            return "text"
        case "boolean":
            return "true or false"
        case "integer" | "number" as number:
            return ("whole number" if number == "integer" else "number") + _bounds(value)
    return "anything"


def _one_of(words: Iterable[str]) -> str:
    """Several possibilities as a list. A whole number is left out beside any number."""
    several = dict.fromkeys(words)
    if "number" in several:
        several.pop("whole number", None)
    *others, last = several
    return f"{', '.join(others)} or {last}" if others else last


def _bounds(value: Schema) -> str:
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    told = [
        f"{sign} {value[key]:g}" for key, sign in words.items() if key in value and abs(value[key]) < 10**9
    ]
    return f" {', '.join(told)}" if told else ""


def _default(key: str, value: Schema, part: Schema) -> str:
    if key in part.get("required", ()):
        return "required"
    default = value.get("default")
    if default is None or default == "" or isinstance(default, Mapping):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(text: str) -> list[str]:
    return [inspect.cleandoc(text), ""] if text else []


# --- HTTP -------------------------------------------------------------------------------------------


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI document of `magistrate serve`, which it also serves at /api/openapi.json."""
    from magistrate.server.app import create_app
    from magistrate.server.settings import Settings

    return create_app(Settings(store="magistrate.db")).openapi()


def http_page(document: Schema) -> str:
    """Every operation with its parameters, body and answers; then the objects that these consist of."""
    lines = ["# HTTP API", "", generated("the OpenAPI document"), ""]
    lines += ["`magistrate serve` serves it, and the document itself at `/api/openapi.json`.", ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", "", *_text(operation.get("description", ""))]
            lines += _parameters(operation, document) + _bodies(operation, document)
    lines += ["## Objects", ""]
    for name, part in document["components"]["schemas"].items():
        lines += [f"### {name}", "", *_text(part.get("description", "")), *_fields(part, document)]
    return "\n".join(lines)


def _parameters(operation: Schema, document: Schema) -> list[str]:
    rows = [
        [
            f"`{each['name']}`",
            each["in"],
            kind(each["schema"], document),
            "required" if each.get("required") else _default("", each["schema"], {}),
            _one_line(each.get("description", "")),
        ]
        for each in operation.get("parameters", ())
    ]
    return [table(["parameter", "in", "value", "default", "meaning"], rows), ""] if rows else []


def _bodies(operation: Schema, document: Schema) -> list[str]:
    body = operation.get("requestBody")
    rows = [
        [status, _one_line(answer.get("description", "")), _content(answer, document)]
        for status, answer in operation["responses"].items()
    ]
    sent = [f"Body: {_content(body, document)}.", ""] if body else []
    return [*sent, table(["status", "when", "object"], rows), ""]


def _content(message: Schema, document: Schema) -> str:
    found = [_object(each.get("schema", {}), document) for each in message.get("content", {}).values()]
    return " or ".join(dict.fromkeys(found))


def _object(value: Schema, document: Schema) -> str:
    """What a value may be, with links to the objects in it."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{slug(name)})"
    if several := value.get("anyOf") or value.get("oneOf"):
        return _one_of(_object(each, document) for each in several if each.get("type") != "null")
    if value.get("type") == "array" and "items" in value:
        return "list of " + _object(value["items"], document)
    if value.get("type") == "object" and isinstance(inner := value.get("additionalProperties"), Mapping):
        return "mapping to " + _object(inner, document)
    return kind(value, document)


def _fields(part: Schema, document: Schema) -> list[str]:
    needed = part.get("required", ())
    rows = [
        [
            f"`{key}`",
            _object(value, document),
            "" if key in needed else "optional",
            _one_line(value.get("description", "")),
        ]
        for key, value in part.get("properties", {}).items()
    ]
    return [table(["field", "value", "", "meaning"], rows), ""] if rows else []


# --- the store --------------------------------------------------------------------------------------


def store_page() -> str:
    """Every table of a store, with what the comment above it in the code says."""
    source = Path(inspect.getfile(tables)).read_text(encoding="utf-8")
    comments = dict(re.findall(r"((?:^# .+\n)+)^\w+ = Table\(\n    \"(\w+)\"", source, re.MULTILINE))
    told = {name: " ".join(comment.replace("# ", "").split()) for comment, name in comments.items()}
    lines = ["# Tables of a store", "", generated("the schema"), ""]
    lines += [
        "Read a store by [Python](python.md) or the [HTTP API](http-api.md) where you can: tables change.",
        "",
    ]
    for name, found in tables.metadata.tables.items():
        lines += [f"## {name}", "", *([told[name], ""] if name in told else [])]
        rows = [[f"`{column.name}`", _type(column), *_rules(column)] for column in found.columns]
        lines += [table(["column", "type", "null", "key"], rows), ""]
        if indexes := sorted(index.name or "" for index in found.indexes):
            lines += [f"Indexes: {codes(indexes)}.", ""]
    return "\n".join(lines)


def _type(column: Any) -> str:
    return str(getattr(column.type, "impl", column.type)).lower().replace("_", " ")


def _rules(column: Any) -> list[str]:
    key = ["primary key"] if column.primary_key else []
    key += [f"→ [`{each.target_fullname}`](#{slug(each.column.table.name)})" for each in column.foreign_keys]
    return ["yes" if column.nullable else "no", ", ".join(key)]
