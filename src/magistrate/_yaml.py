"""Read YAML files safely and validate them against a model; errors contain the line and the key.

`SCHEMAS` names the kinds of files; the package holds a JSON Schema of each, for editors.
"""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from magistrate.errors import SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from ruamel.yaml.error import YAMLError

    Model = TypeVar("Model", bound=BaseModel)

LARGEST = 200_000  # bytes of a file, and number of values after its aliases are expanded
DEEPEST = 60  # nesting depth; the parser recurses

Key = tuple[str | int, ...]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = {
    "run": "a run file: magistrate run --spec",
    "rules": "rules for monitoring: magistrate watch run --rules",
    "judge": "a judge of your own: magistrate judges new",
    "steps": "criteria and steps of geval: magistrate judges steps",
    "recipe": "a mixture of training data: magistrate train detector --recipe",
}

STANDARD = "tag:yaml.org,2002:"
DIGITS = re.compile(r"[-+]?[0-9][0-9_]*")
BRACES = re.compile(r"^\s*(- |[^#'\"]*:\s+)\{[{%]")
QUOTE_BRACES = "a text that starts with { must be in quotes, or on separate lines below 'key: |'"
TOO_MUCH = "values are nested too deep or too many; check its aliases (*name)"


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML 1.2 file: plain values, and the line of each key (`yes` and `no` are strings).

    `texts` maps the keys of block texts (`|`) to the line of the text's first line.
    """

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Key, int] = field(repr=False)
    texts: Mapping[Key, int] = field(default_factory=dict, repr=False)

    def error(self, key: Key, message: str, *, row: int | None = None) -> SpecError:
        """Return an error about a key, with the file and the line of the key or of its nearest parent.

        `row` is the line within the text at the key, counted from 1, if known.
        """
        place = key
        while place and place not in self.lines:
            place = place[:-1]
        line = self.lines.get(place)
        if row is not None and key in self.texts:
            line = self.texts[key] + row - 1
        where = f", {'.'.join(map(str, key))}" if key else ""
        told = f"{self.name}{f', line {line}' if line else ''}{where}: {message}"
        return SpecError(" ".join(told.splitlines()))  # a key may contain line breaks

    def read_as(self, model: type[Model]) -> Model:
        """Validate the values as `model`. Raises `SpecError` with line and key, and suggests known keys."""
        from pydantic import ValidationError

        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            # Report a mistyped key before the key that is missing because of it.
            first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
            raise self.error(*_explained(first, model)) from None


def read_document(path: Path) -> Document:
    """Read the YAML file at `path`. Raises `SpecError` if it cannot be read or is not a mapping."""
    try:
        if path.is_dir():
            raise SpecError(f"cannot read {path}: it is a folder")
        if path.exists() and not path.is_file():
            raise SpecError(f"cannot read {path}: it is not a regular file")
        if (size := path.stat().st_size) > LARGEST:
            raise SpecError(f"{path} has {size:,} bytes; at most {LARGEST:,} are allowed")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(
            f"{path.name}, line {line}: not UTF-8 text: byte 0x{data[error.start]:02x}; save it as UTF-8"
        ) from None
    return parse_document(text, path.name)


def schema_path(name: str) -> Path:
    """Return the file with the JSON Schema of a kind of YAML files, one of `SCHEMAS`."""
    return Path(__file__).with_name("schemas") / f"{name}.schema.json"


def editor_line(name: str, folder: Path) -> str:
    """Return the comment by which editors find the schema of a YAML file in `folder`, with its line break.

    It is empty unless the package is installed below the working directory, as in a project's `.venv`: a
    path to another place of this machine would lead nowhere on others.
    """
    path = schema_path(name)
    if not path.is_relative_to(Path.cwd()):
        return ""
    found = Path(os.path.relpath(path, folder)).as_posix()
    return "" if " " in found else f"# yaml-language-server: $schema={found}\n"


def parse_document(text: str, name: str) -> Document:
    """Parse a YAML text; `name` is its name in messages."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.nodes import MappingNode

    yaml: Any = YAML(typ="safe", pure=True)
    yaml.max_depth = DEEPEST
    yaml.composer.warn_double_anchors = False  # an anchor may be redefined
    try:
        root = yaml.compose(text)
    except YAMLError as error:
        raise SpecError(_syntax(error, text, name)) from None
    except RecursionError:
        raise SpecError(f"{name}: {TOO_MUCH}") from None
    reader = _Reader(name)
    if not isinstance(root, MappingNode):
        found = None if root is None else reader.plain(root, (), 0)
        kind = {list: "a list", type(None): "empty"}.get(type(found), "a single value")
        raise SpecError(
            f"{name}, line {reader.lines.get((), 1)}: must be lines of 'key: value', but is {kind}"
        )
    values = reader.plain(root, (), 0)
    return Document(name, values, reader.lines, reader.texts)


def dump_document(values: Mapping[str, Any]) -> str:
    """Return plain values as the text of a YAML file, in their order."""
    from ruamel.yaml import YAML

    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    text = io.StringIO()
    yaml.dump(dict(values), text)
    return text.getvalue()


@dataclass(slots=True)
class _Reader:
    """Converts the parser's nodes to plain values and records their lines."""

    name: str
    lines: dict[Key, int] = field(default_factory=dict)
    texts: dict[Key, int] = field(default_factory=dict)
    seen: int = 0

    def plain(self, node: Any, key: Key, depth: int) -> Any:
        self.seen += 1
        self.lines.setdefault(key, node.start_mark.line + 1)
        if depth > DEEPEST or self.seen > LARGEST:
            raise self._error(node, (), TOO_MUCH)
        kind = str(node.tag).removeprefix(STANDARD)
        if kind == "map":
            return self._mapping(node, key, depth)
        if kind == "seq":
            return [self.plain(each, (*key, index), depth + 1) for index, each in enumerate(node.value)]
        if not isinstance(node.value, str) or kind not in SCALARS:
            tag = f"!!{kind}" if str(node.tag).startswith(STANDARD) else kind
            raise self._error(node, key, f"tags such as {tag} are not supported; remove it")
        if node.style == "|":
            self.texts[key] = node.start_mark.line + 2
        return _scalar(kind, node.value)

    def _mapping(self, node: Any, key: Key, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in node.value:
            if not isinstance(name.value, str):
                raise self._error(name, key, f"a key must be a word; {QUOTE_BRACES}")
            if str(name.tag) == f"{STANDARD}merge":
                raise self._error(name, key, "<< is not supported; write the keys out")
            inner = (*key, name.value)
            if name.value in found:
                raise self._error(name, inner, f"is given twice, first on line {self.lines[inner]}")
            self.lines[inner] = name.start_mark.line + 1
            found[name.value] = self.plain(value, inner, depth + 1)
        return found

    def _error(self, node: Any, key: Key, message: str) -> SpecError:
        return Document(self.name, {}, {key: node.start_mark.line + 1}).error(key, message)


SCALARS = ("str", "int", "float", "bool", "null", "timestamp", "value")


def _scalar(kind: str, text: str) -> Any:
    """Return the value of a scalar; the text itself if it has no known value."""
    try:
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() in ("true", "yes", "on", "y")
        if kind == "int":
            return int(text) if DIGITS.fullmatch(text) else int(text, 0)
        if kind == "float":
            return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text
    return text


# --- error messages -----------------------------------------------------------------------------


def _syntax(error: YAMLError, text: str, name: str) -> str:
    """Explain why a text is not YAML, with the line and, for common mistakes, advice."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    rows = text.splitlines() or [""]
    if mark is None:
        at = int(getattr(error, "position", 0))
        line = text.count("\n", 0, at) + 1
        return f"{name}, line {line}: character {text[at : at + 1]!r} is not allowed in YAML"
    number = min(mark.line + 1, len(rows))
    problem = str(getattr(error, "problem", None) or error)
    begun = getattr(error, "context_mark", None)
    since = f"the part that starts on line {begun.line + 1}" if begun is not None else "the part before it"
    advice = next((words for part, words in ADVICE.items() if part in problem), "")
    if BRACES.match(rows[number - 1]):
        advice = QUOTE_BRACES
    return f"{name}, line {number}: not YAML: " + (
        advice.replace("{since}", since) or problem.partition("\n")[0]
    )


ADVICE = {
    "'\\t' that cannot start": "indent lines with spaces, not with tabs",
    "that cannot start any token": "a text that starts with this character must be in quotes",
    "mapping values are not allowed": "unexpected colon: a text that contains ': ' must be in quotes, and a "
    "key must be indented like its neighbours",
    "undefined alias": "*name refers to nothing; a text that starts with * must be in quotes",
    "another document": "a second document starts here; only one is allowed",
    "unexpected end of stream": "the file ends inside {since}: a quote is not closed",
    "expected ',' or": "a [ or { is not closed, or a comma is missing, in {since}",
    "expected <block end>": "this does not belong to {since}: check quotes and indentation",
    "maximum depth": TOO_MUCH,
}


def _explained(error: Any, model: type[BaseModel]) -> tuple[Key, str]:
    """Return the key of a validation error, and the message for it."""
    key, kind, context = tuple(error["loc"]), str(error["type"]), error.get("ctx", {})
    if kind == "extra_forbidden":
        return key, _unknown(key, model)
    if kind == "missing":
        return key, "is missing"
    if kind == "value_error":
        return key, str(context["error"])
    given = error["input"]
    words = MUST.get(kind)
    if words is None:
        return key, f"{error['msg'][:1].lower()}{error['msg'][1:]}; got {_shown(given)}"
    advice = "; put it in quotes" if kind == "string_type" and isinstance(given, int | float) else ""
    return key, f"must be {words.format(**context)}; got {_shown(given)}{advice}"


MUST = {
    "string_type": "text",
    "string_too_short": "a non-empty text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list, such as [one, two]",
    "tuple_type": "a list, such as [0, 1]",
    "dict_type": "lines of 'key: value' below it",
    "model_type": "lines of 'key: value' below it",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    if isinstance(value, dict):
        return "keys with values"
    return f"{value!r:.80}"


def _unknown(key: Key, model: type[BaseModel]) -> str:
    """Return the message for an unknown key, which suggests the nearest one, here or one level down."""
    for step in key[:-1]:
        known = {info.alias or name: info for name, info in model.model_fields.items()}
        # The name of an entry, such as a label's, is no field: its value still belongs to the same model.
        model = next(iter(_within(known[str(step)].annotation)), model) if step in known else model
    places: dict[str, str] = {}
    for name, info in model.model_fields.items():
        for inner in _within(info.annotation)[:1]:
            places |= {each: f"{info.alias or name}.{each}" for each in inner.model_fields}
    here = [info.alias or name for name, info in model.model_fields.items()]
    places |= {name: name for name in here}
    near = difflib.get_close_matches(str(key[-1]), places, n=1, cutoff=0.7)
    meant = f"did you mean {places[near[0]]!r}? " if near else ""
    return f"unknown key; {meant}known: {', '.join(here)}"


def _within(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in a field's type."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return [annotation]
    return [found for part in get_args(annotation) for found in _within(part)]
