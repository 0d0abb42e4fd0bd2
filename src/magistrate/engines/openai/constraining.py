"""Constraints as servers take them: under which name, in which dialect, and how the answer reads back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from magistrate.constraints import Constraint, express
from magistrate.constraints import dialects as of
from magistrate.engines.openai.strict import bare_of, nulls_left_out, strict
from magistrate.errors import ConstraintError

Dialect = Literal["lark", "gbnf", "json_schema", "strict_schema", "regex"]


@dataclass(frozen=True, slots=True)
class Way:
    """A constraint's name on a server: `body` is what goes into the request for a payload."""

    name: str
    dialect: Dialect
    body: Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sent:
    """What a request has for a constraint. `undo` turns an answer into one that the constraint reads;
    `lost` is what the server will not hold to."""

    name: str
    body: Mapping[str, Any]
    undo: Callable[[str], str]
    lost: tuple[str, ...] = ()


def _response_format(schema: Any) -> dict[str, Any]:
    wrapped = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wrapped}}


# What the servers call it, from their own documents: vLLM `structured_outputs` (before it `guided_*`), SGLang
# `ebnf` and `regex`, llama.cpp `grammar`, NVIDIA NIM `nvext`, OpenAI and most others `response_format`.
# vLLM reads Lark only with the backend `guidance`, llama.cpp only where it is built with llguidance.
WAYS: tuple[Way, ...] = (
    Way("llguidance grammar", "lark", lambda text: {"grammar": f"%llguidance {{}}\n{text}"}),
    Way("structured_outputs.grammar, Lark", "lark", lambda text: {"structured_outputs": {"grammar": text}}),
    Way("guided_grammar, Lark", "lark", lambda text: {"guided_grammar": text}),
    Way("GBNF grammar", "gbnf", lambda text: {"grammar": text}),
    Way("structured_outputs.grammar", "gbnf", lambda text: {"structured_outputs": {"grammar": text}}),
    Way("guided_grammar", "gbnf", lambda text: {"guided_grammar": text}),
    Way("ebnf", "gbnf", lambda text: {"ebnf": text}),
    Way("response_format json_schema", "json_schema", _response_format),
    Way("structured_outputs.json", "json_schema", lambda schema: {"structured_outputs": {"json": schema}}),
    Way("guided_json", "json_schema", lambda schema: {"guided_json": schema}),
    Way("nvext.guided_json", "json_schema", lambda schema: {"nvext": {"guided_json": schema}}),
    Way("response_format json_schema, strict", "strict_schema", _response_format),
    Way("structured_outputs.regex", "regex", lambda text: {"structured_outputs": {"regex": text}}),
    Way("guided_regex", "regex", lambda text: {"guided_regex": text}),
    Way("regex", "regex", lambda text: {"regex": text}),
)
_DIALECTS: Mapping[str, of.Dialect] = {"lark": "lark", "gbnf": "gbnf", "regex": "regex"}
NATIVE = ("llguidance grammar", "GBNF grammar")  # those that llama.cpp's own requests take
NAMED = {way.name: way for way in WAYS}


def sendings(constraint: Constraint, names: tuple[str, ...]) -> list[Sent]:
    """What to send for `constraint` under each of these ways, what loses least first."""
    found = [sent for name in names if name in NAMED and (sent := _sent(constraint, NAMED[name])) is not None]
    return sorted(found, key=lambda sent: len(sent.lost))


def _sent(constraint: Constraint, way: Way) -> Sent | None:
    """None where the way cannot say the constraint at all."""
    try:
        if way.dialect in ("json_schema", "strict_schema"):
            return _as_schema(constraint, way)
        if way.dialect == "regex" and constraint.kind == "json":
            return None  # as one expression a schema is larger than any server compiles
        said = express(constraint, _DIALECTS[way.dialect])
    except ConstraintError:
        return None
    return Sent(way.name, way.body(said.payload), _same, said.lost)


def _as_schema(constraint: Constraint, way: Way) -> Sent | None:
    if constraint.kind == "lark":
        return None
    undo: Callable[[str], str] = _same
    lost: tuple[str, ...] = ()
    if constraint.kind == "json":
        said = express(constraint, "json_schema")
        schema, lost = said.payload, said.lost
    else:
        schema, undo = bare_of(constraint.schema or {})
    if way.dialect == "strict_schema":
        original = schema
        schema, more = strict(original)
        lost = (*lost, *more)
        if constraint.kind == "json":
            return Sent(way.name, way.body(schema), lambda text: nulls_left_out(text, original), lost)
    return Sent(way.name, way.body(schema), undo, lost)


def _same(text: str) -> str:
    return text
