"""YAML files that people write: read safely, checked against a model, explained by line and key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from magistrate.errors import SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

LARGEST = 1_000_000  # bytes of a file, and values in it once its aliases are written out

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML 1.2 file: plain values, and on which line each key stands (`yes` and `no` are words there)."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[Key, int] = field(repr=False)

    def error(self, key: Key, message: str) -> SpecError:
        """What is wrong at a key, with the file and the line of it or of what it is in."""
        place = key
        while place and place not in self.lines:
            place = place[:-1]
        line = f", line {self.lines[place]}" if place else ""
        where = f", {'.'.join(map(str, key))}" if key else ""
        return SpecError(f"{self.name}{line}{where}: {message}")

    def read_as(self, model: type[Model]) -> Model:
        """The values as `model`. Raises `SpecError` with line, key and, for an unknown key, the nearest."""
        from pydantic import ValidationError

        try:
            return model.model_validate(self.values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise self.error(*_explained(first, model)) from None


def read_document(path: Path) -> Document:
    """The YAML file at `path`. Raises `SpecError` where it cannot be read or is no mapping."""
    try:
        if path.stat().st_size > LARGEST:
            raise SpecError(f"{path} is larger than {LARGEST:,} bytes; that is no file a person writes")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text: {error}") from None
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from None
    return parse_document(text, path.name)


def parse_document(text: str, name: str) -> Document:
    """The document that `text` is; `name` is what messages call it."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        loaded = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise SpecError(f"{name}{line}: {error.problem or error.context}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"{name}: {error}") from None
    if not isinstance(loaded, Mapping):
        raise SpecError(f"{name} must be 'key: value' lines, and is {_kind(loaded)}")
    reader = _Reader(name)
    return Document(name, reader.plain(loaded, (), 0), reader.lines)


@dataclass(slots=True)
class _Reader:
    """Turns what the parser made into plain values and notes where each key stood."""

    name: str
    lines: dict[Key, int] = field(default_factory=dict)
    seen: int = 0

    def plain(self, value: Any, key: Key, depth: int) -> Any:
        self.seen += 1
        if depth > 100 or self.seen > LARGEST:
            raise SpecError(f"{self.name}: values are nested too deep or too many; check its aliases (*name)")
        if isinstance(value, Mapping):
            return {
                self._note(value, each, key): self.plain(value[each], (*key, _word(each)), depth + 1)
                for each in value
            }
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            return [self._item(value, index, key, depth) for index in range(len(value))]
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
        return value if value is None else str(value)

    def _note(self, mapping: Any, each: Any, key: Key) -> str:
        word = _word(each)
        self.lines[(*key, word)] = mapping.lc.key(each)[0] + 1
        return word

    def _item(self, several: Any, index: int, key: Key, depth: int) -> Any:
        self.lines[(*key, index)] = several.lc.item(index)[0] + 1
        return self.plain(several[index], (*key, index), depth + 1)


def _word(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _explained(error: Any, model: type[BaseModel]) -> tuple[Key, str]:
    """The key that a validation error is about, and what to say of it."""
    key = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        known = [each.alias or name for name, each in model.model_fields.items()] if len(key) == 1 else []
        near = difflib.get_close_matches(str(key[-1]), known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        listed = f"known: {', '.join(known)}" if known else ""
        return key, f"unknown key; {meant}{listed}".rstrip("; ")
    if error["type"] == "missing":
        return key, "is missing"
    if error["type"] == "value_error":
        return key, str(error["ctx"]["error"])
    return key, f"{error['msg'][:1].lower()}{error['msg'][1:]}; got {error['input']!r:.80}"


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    return "a list" if isinstance(value, list) else "a single value"
