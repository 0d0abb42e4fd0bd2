"""Convert a row of any file into a `Sample`, using the field names of common tools.

Nothing is lost. A column that is not a known field goes into the sample's metadata. So does the raw value
of a field that contains more than a sample can hold (a span with a comment, a document with a URL).
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from magistrate._text import PLACE
from magistrate.datasets.fields import PART_OF, UnknownLabel, field_of, label_of, plain
from magistrate.datasets.rows import RowError, kind_of
from magistrate.types import HALLUCINATED, Sample, Span, Turn

KIND_KEYS = ("kind", "label_type", "label", "type")
TEXT_KEYS = ("text", "content", "page_content")
LONGEST_LABEL = 200  # characters of an unknown label that a message shows
LONGEST_PRINTED = 1_000_000  # characters of a list or object as Python prints it; parsing takes much memory
MOST_MARKS = 100_000  # its brackets, commas, quotes and other marks
MARK = re.compile(r"[^\w\s]")
JSON_FIELDS = ("context", "spans", "messages", "alternatives", "metadata")


# --- accepted shapes of input values -------------------------------------------------------------


def _text_of(value: Any) -> Any:
    """Return the text of a document or message part given as an object; other values unchanged."""
    if isinstance(value, Mapping):
        for key in TEXT_KEYS:
            if isinstance(value.get(key), str):
                return value[key]
        raise ValueError(f"is an object without a text under {', '.join(TEXT_KEYS)}")
    return value


def _texts(value: Any) -> Any:
    if value is None or value == "":
        return ()
    if isinstance(value, str | Mapping):
        return (_text_of(value),)
    if isinstance(value, Iterable):
        return tuple(_text_of(item) for item in value)
    return value


def _listed(value: Any) -> Any:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else value


def _span(value: Any) -> Any:
    if isinstance(value, list | tuple):
        if len(value) not in (2, 3):
            raise ValueError("must be [start, end], [start, end, kind] or {start, end, kind}")
        return dict(zip(("start", "end", "kind"), value, strict=False))
    return value


def _content(value: Any) -> Any:
    if isinstance(value, list | tuple):
        parts = [_text_of(part) for part in value]
        if all(isinstance(part, str) for part in parts):
            return "".join(parts)
    return value


def _identifier(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class ForeignSpan(BaseModel):
    """A span as given in a file."""

    model_config = ConfigDict(strict=True)
    start: int = Field(ge=0)
    end: int
    kind: str | None = Field(None, validation_alias=AliasChoices(*KIND_KEYS))


class ForeignTurn(BaseModel):
    """A message as given in a file. `content` may be a list of text parts."""

    model_config = ConfigDict(strict=True)
    role: str
    text: Annotated[str | None, BeforeValidator(_content)] = Field(
        validation_alias=AliasChoices("content", "text")
    )


class ForeignRow(BaseModel):
    """The values of a row by canonical field name. The label is parsed separately, by `label_of`."""

    model_config = ConfigDict(strict=True, extra="forbid")
    id: Annotated[str | None, BeforeValidator(_identifier)] = None
    input: str | None = None
    output: str | None = None
    expected: str | None = None
    context: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ()
    alternatives: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ()
    spans: Annotated[
        tuple[Annotated[ForeignSpan, BeforeValidator(_span)], ...], BeforeValidator(_listed)
    ] = ()
    messages: Annotated[tuple[ForeignTurn, ...], BeforeValidator(_listed)] = ()


# --- from a row to a sample ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claimed:
    """A field, the column that it is read from, and its value."""

    field: str
    column: str
    value: Any


def to_sample(
    row: Mapping[str, Any],
    *,
    id: str,
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    need_output: bool = True,
    cells: bool = False,
    blank: Callable[[str, str], None] | None = None,
) -> Sample:
    """Convert `row` into a sample.

    `id` is used if the row has none. `mapping` (field -> column or dotted path) takes precedence over known
    names. `labels` gives the meaning of label values, see `check_labels`. `cells` marks the values as table
    cells: an empty one is missing, and lists and objects may be given as JSON. `blank` is called with the
    field and the column of each blank cell, if the mapping names the column or it gives the context or the
    output. Raises RowError with a short reason.
    """
    mapping = mapping or {}
    claimed, rest, blanks = _claim(row, mapping, cells)
    columns = {part: claim.column for part, claim in claimed.items()}
    metadata = _metadata(claimed.pop("metadata", None))
    label = _label(claimed.pop("label", None), labels)
    values = {part: claim.value for part, claim in claimed.items()}
    try:
        found = ForeignRow.model_validate(values)
    except ValidationError as error:
        raise RowError(_reason(error, columns)) from None
    messages = tuple(Turn(turn.role, turn.text or "") for turn in found.messages)
    said = Sample(id=found.id or id, output=found.output, messages=messages).answered()
    if said.output is None and need_output:
        if "output" in blanks:
            raise RowError(f"column {plain(blanks['output'])!r} with the output is blank")
        raise RowError(f"no output; {columns_of(row)}; give its column with --map output=COLUMN")
    for name, column in blanks.items():
        if blank is not None and (name in mapping or name in ("context", "output")):
            blank(name, column)
    spans = _spans(found, said.output or "", columns)
    for part in ("context", "spans", "messages"):
        if part in values and _says_more(part, values[part]):
            _keep(metadata, columns[part], values[part])
    for column, value in rest.items():
        _keep(metadata, column, value)
    return replace(
        said,
        context=found.context,
        input=found.input,
        expected=found.expected,
        alternatives=found.alternatives,
        label=label,
        spans=spans,
        metadata=metadata,
    )


def to_row(sample: Sample) -> dict[str, Any]:
    """Return the canonical row of a sample as plain JSON values. `to_sample` reads it back unchanged."""
    row: dict[str, Any] = {"id": sample.id}
    for name in ("input", "output", "expected", "label"):
        if getattr(sample, name) is not None:
            row[name] = getattr(sample, name)
    for name in ("context", "alternatives"):
        if getattr(sample, name):
            row[name] = list(getattr(sample, name))
    if sample.messages:
        row["messages"] = [{"role": turn.role, "content": turn.text} for turn in sample.messages]
    if sample.spans:
        row["spans"] = [{"start": s.start, "end": s.end, "kind": s.kind} for s in sample.spans]
    if sample.metadata:
        row["metadata"] = dict(sample.metadata)
    return row


def canonical(sample: Sample) -> bytes:
    """Return the canonical row as a line of UTF-8 JSON with sorted keys. RowError if it is not JSON."""
    try:
        text = json.dumps(to_row(sample), ensure_ascii=False, sort_keys=True, allow_nan=False)
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        raise RowError("contains half of a surrogate pair, which is not valid UTF-8") from None
    except (TypeError, ValueError) as error:
        raise RowError(f"contains a value that JSON cannot represent: {error}") from None


def _claim(
    row: Mapping[str, Any], mapping: Mapping[str, str], cells: bool
) -> tuple[dict[str, Claimed], dict[str, Any], dict[str, str]]:
    """Return the column that gives each part of the sample, the remaining columns, and the blank columns."""
    rest = dict(row)
    claimed: dict[str, Claimed] = {}
    blanks: dict[str, str] = {}
    for asked, path in mapping.items():
        value = at_path(row, path)
        rest = without_path(rest, path)
        if _blank(value):
            blanks[asked] = path
        if not _missing(value, cells):
            claimed[PART_OF[asked]] = Claimed(asked, path, opened_cell(asked, value) if cells else value)
    said = {PART_OF[field] for field in mapping}
    for column in list(rest):
        field = field_of(column)
        if field is None or PART_OF[field] in said:
            continue
        part, value = PART_OF[field], rest.pop(column)
        if _blank(value):
            blanks.setdefault(field, column)
        if _missing(value, cells):
            continue
        if part in claimed:
            first = claimed[part]
            raise RowError(
                f"columns {first.column!r} and {column!r} both give the {part}; choose one with --map "
                f"{first.field}={first.column} or --map {field}={column}"
            )
        claimed[part] = Claimed(field, column, opened_cell(field, value) if cells else value)
    return claimed, rest, {field: column for field, column in blanks.items() if _lacks(claimed, field)}


def _lacks(claimed: Mapping[str, Claimed], field: str) -> bool:
    """Return whether no other column supplies the value of a blank one."""
    return PART_OF[field] not in claimed or _blank(claimed[PART_OF[field]].value)


def _blank(value: Any) -> bool:
    """Return whether a value is missing or blank, in any file format."""
    return _missing(value, cells=True) or (isinstance(value, str) and not value.strip())


def _missing(value: Any, cells: bool) -> bool:
    # A missing cell of a data frame arrives as the number NaN.
    return value is None or (cells and value == "") or (isinstance(value, float) and math.isnan(value))


def at_path(row: Mapping[str, Any], path: str, option: str = "--map") -> Any:
    """Return the value at a column name or dotted path. Raises `RowError` that names `option` if absent."""
    if path in row:
        return row[path]
    value: Any = row
    for step in path.split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and PLACE.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            raise RowError(f"there is no column {path!r}, given by {option}; {columns_of(row)}")
    return value


def without_path(row: dict[str, Any], path: str) -> dict[str, Any]:
    """Return `row` without the value at `path`, and without objects that become empty."""
    head, _, tail = path.partition(".")
    if path in row or not tail:
        return {name: value for name, value in row.items() if name != path}
    inner = row.get(head)
    if not isinstance(inner, Mapping):
        return row
    left = without_path(dict(inner), tail)
    return {name: left if name == head else value for name, value in row.items() if name != head or left}


def opened_cell(field: str, cell: Any) -> Any:
    """Return a cell's value, parsed if it is a list or object written as JSON or by Python's print.

    What Python printed remains text if it is too large to be parsed.
    """
    text = cell.strip() if isinstance(cell, str) else ""
    if field not in JSON_FIELDS or text[:1] + text[-1:] not in ("[]", "{}"):
        return cell
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if len(text) > LONGEST_PRINTED or sum(1 for _ in MARK.finditer(text)) > MOST_MARKS:
            return cell
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return cell
    if field in ("context", "alternatives"):
        # A plain text may also look like "[1]" or "{…}".
        return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else cell
    return value


def _label(claim: Claimed | None, labels: Mapping[str, str] | None) -> str | None:
    if claim is None:
        return None
    try:
        return label_of(claim.field, claim.value, labels)
    except UnknownLabel as error:
        raise RowError(
            f"{plain(claim.column)} {error}", (claim.column, str(claim.value).strip()[:LONGEST_LABEL])
        ) from None


def _metadata(claim: Claimed | None) -> dict[str, Any]:
    if claim is None:
        return {}
    return dict(claim.value) if isinstance(claim.value, Mapping) else {claim.column: claim.value}


def _keep(metadata: dict[str, Any], name: str, value: Any) -> None:
    while name in metadata:
        if metadata[name] == value:
            return
        name += "~2"
    metadata[name] = value


def _spans(found: ForeignRow, output: str, columns: Mapping[str, str]) -> tuple[Span, ...]:
    for number, span in enumerate(found.spans):
        length = len(output)
        if not span.start <= span.end <= length:
            raise RowError(
                f"{plain(columns['spans'])}[{number}] is [{span.start}, {span.end}), outside the output's "
                f"{length} characters"
            )
    return tuple(Span(span.start, span.end, span.kind or HALLUCINATED) for span in found.spans)


def _says_more(part: str, value: Any) -> bool:
    """Return whether a raw value contains more than the sample's field can keep."""
    if isinstance(value, str):
        return False
    if part == "context":
        return isinstance(value, Mapping) or any(isinstance(item, Mapping) for item in value)
    keys = {"start", "end", *KIND_KEYS} if part == "spans" else {"role", "content", "text"}
    plain = (isinstance(item, list | tuple) or set(item) <= keys for item in value)
    return not all(plain) or any(
        isinstance(item, Mapping) and isinstance(item.get("content"), list) for item in value
    )


# --- error messages ---------------------------------------------------------------------------------------


def columns_of(row: Mapping[str, Any]) -> str:
    """Return the names of a row's columns, for an error message."""
    names = [plain(str(name), 40) for name in list(row)[:15]]
    more = f" and {len(row) - 15} more" if len(row) > 15 else ""
    return f"columns: {', '.join(names) or 'none'}{more}"


def _reason(error: ValidationError, columns: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    head, *tail = first["loc"]
    place = plain(columns.get(str(head), str(head)))
    place += "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in tail)
    got = kind_of(first["input"])
    match first["type"]:
        case "value_error":
            return f"{place} {first['ctx']['error']}"
        case "string_type":
            return f"{place} must be text, got {got}"
        case "int_type":
            return f"{place} must be a whole number, got {got}"
        case "tuple_type":
            shape = "text or a list of texts" if head in ("context", "alternatives") else "a list"
            return f"{place} must be {shape}, got {got}"
        case "missing":
            return f"{place} is missing"
        case _:
            return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}"
