"""`Constraint`: the texts a model may write, and the parser that turns such a text into an object.

`constraint` makes one from a type, schema, pattern, choices or grammar. `repair` parses answers that were
written without masks.
"""

from __future__ import annotations

import hashlib
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from types import FunctionType
from typing import Any, Literal

from magistrate.constraints.grammar import choice_grammar, json_grammar, regex_grammar
from magistrate.constraints.lark import compile_grammar, follow
from magistrate.constraints.partial_json import read
from magistrate.constraints.quote import LONGEST_TEXTS, Texts, as_texts, quoted_sources
from magistrate.constraints.regex import PatternTooSlow, compiled, python, python_match, translate
from magistrate.constraints.schema import LARK, QUOTE, endless, walk
from magistrate.constraints.schema_check import check_schema, check_writable, normalized, unrolled
from magistrate.constraints.validation import validate
from magistrate.errors import ConstraintError, InvalidOutput

Kind = Literal["json", "regex", "choice", "lark"]
KEPT = 64  # constraints of schemas that are kept
TOO_DEEP = "the schema is nested too deeply; move parts of it to $defs"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A set of texts that a model may write: a grammar for the masks and a schema for validation.

    `grammar` is text in llguidance's Lark dialect. `schema` validates a finished text: the JSON Schema,
    `{"enum": [...]}` for choices, `{"pattern": ...}` for a regular expression, None for a Lark grammar.
    `build` makes the object from the text and the texts that it may quote. If `quotes` names such texts,
    the grammar is empty until `over` supplies them. `endless` is the first part of the schema without an
    upper bound, as (message, JSON pointer). `digest` identifies the constraint: 12 hexadecimal digits of a
    sha256, the same in every process.
    """

    kind: Kind
    grammar: str = field(repr=False)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    build: Callable[[str, Texts], Any] | None = field(default=None, compare=False, repr=False)
    name: str = "constraint"
    texts: Texts = field(default_factory=dict, hash=False, repr=False)
    endless: tuple[str, str] | None = field(default=None, compare=False, repr=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        content = json.dumps([self.kind, self.grammar, self.schema])
        object.__setattr__(self, "digest", hashlib.sha256(content.encode()).hexdigest()[:12])

    @property
    def quotes(self) -> tuple[str, ...]:
        """The names of the texts that may be quoted, which must be passed to `over`."""
        return quoted_sources(self.schema) if self.kind == "json" and self.schema is not None else ()

    def over(self, **texts: str | Sequence[str]) -> Constraint:
        """Return this constraint with the texts that it quotes; each name takes one text or several.

        Raises `ConstraintError` for a name that is missing or not quoted, for texts of more than a million
        characters together, and where a quote is required but there is nothing to quote.
        """
        if set(texts) != set(self.quotes):
            raise ConstraintError(
                f"{self.name!r} quotes {', '.join(self.quotes) or 'nothing'}; texts were given for "
                f"{', '.join(texts) or 'nothing'}"
            )
        given = {name: as_texts(texts[name]) for name in self.quotes}
        if (length := sum(len(text) for each in given.values() for text in each)) > LONGEST_TEXTS:
            raise ConstraintError(
                f"{length:,} characters are too many to quote from; at most {LONGEST_TEXTS:,}: give only the "
                "relevant passages"
            )
        return replace(self, grammar=json_grammar(self._schema, given), texts=given)

    def parse(self, text: str) -> Any:
        """Return the object that `text` represents, validated outside the mask engine.

        For a type, an instance of it. For a JSON Schema, plain JSON values. For a regular expression or a
        grammar, the text itself. Raises `InvalidOutput`.
        """
        self.require_texts()
        if self.kind == "json":
            return self._parse_json(text)
        if self.kind == "choice":
            choices = self._schema["enum"]
            if text not in choices:
                raise InvalidOutput(f"{text[:100]!r} is not one of the choices {choices[:20]}", text)
            return self.build(text, self.texts) if self.build is not None else text
        if self.kind == "regex":
            if _matched(self._schema["pattern"], text) is None:
                raise InvalidOutput(f"{text[:100]!r} does not match /{self._schema['pattern']}/", text)
            return text
        if (status := follow(self.grammar, text)) != "valid":
            raise InvalidOutput(f"{text[:100]!r} is {status} under the grammar {self.name!r}", text)
        return text

    def require_bounds(self) -> None:
        """Raise `ConstraintError` (with JSON pointer) if a text may be endless or a text to quote is missing.

        A Lark grammar is accepted as given: nothing checks here whether its language has a longest text.
        The engine steers it to its end within the budget.
        """
        self.require_texts()
        if self.endless is not None:
            raise ConstraintError(*self.endless)
        if self.kind == "regex" and not translate(self._schema["pattern"]).bounded:
            raise ConstraintError(
                f"the regular expression {self._schema['pattern']!r} has no maximum length; use {{m,n}} "
                "instead of *, + and {n,}"
            )

    def require_texts(self) -> None:
        """Raise `ConstraintError` if the texts to quote from are missing."""
        if not self.grammar:
            raise ConstraintError(
                f"{self.name!r} quotes {', '.join(self.quotes)}; give the texts: "
                f"constraint.over({', '.join(f'{name}=…' for name in self.quotes)})"
            )

    @property
    def _schema(self) -> Mapping[str, Any]:
        assert self.schema is not None  # only a Lark grammar has none
        return self.schema

    def _parse_json(self, text: str) -> Any:
        reading = read(text)
        if reading.state != "complete":
            what = "incomplete JSON" if reading.state == "open" else "not JSON"
            raise InvalidOutput(f"the output is {what}: {text[-100:]!r}", text)
        validate(reading.value, self._schema, text, self.texts)
        return self.build(text, self.texts) if self.build is not None else reading.value


def _matched(pattern: str, text: str) -> Any:
    try:
        return python_match(pattern, text)
    except PatternTooSlow as cause:
        raise InvalidOutput(f"the output cannot be checked: {cause}", text) from None


def compile_check(constraint: Constraint) -> None:
    """Raise `ConstraintError` if the mask engine cannot compile `constraint`, or panics on it."""
    try:
        compile_grammar(constraint.grammar)
    except ConstraintError as error:
        raise ConstraintError(f"{constraint.name!r}: {error}") from None


ACCEPTED = (
    "a pydantic model, a dataclass, an Enum, Literal[...], an annotation such as bool or list[...], "
    "a JSON Schema (dict), a compiled re.Pattern, a list of choices (str), Lark(text) or a Constraint"
)
_INLINE_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s", re.VERBOSE: "x", re.MULTILINE: "m", re.ASCII: "a"}


@dataclass(frozen=True, slots=True)
class Lark:
    """A grammar in llguidance's Lark dialect, with a rule `start`.

    On its own it constrains the whole text. `Annotated[str, Lark(...)]` applies it to a string inside an
    object; regular expressions then match no quotation mark, backslash or control character.
    """

    text: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), LARK: self.text}


def constraint(spec: object, *, depth: int | None = None) -> Constraint:
    """Make a `Constraint` from a type, schema, pattern, choices or grammar.

    Accepts what `ACCEPTED` lists. A type or schema that refers to itself is unrolled to at most `depth`
    nested levels. Choices, a `Literal` and an `Enum` are written bare (`yes`, not `"yes"`) if all their
    values are strings. Every other type is written as compact JSON with exactly the declared keys in the
    declared order. Raises `ConstraintError`, with the JSON pointer where there is one.
    """
    if isinstance(spec, Constraint):
        return spec
    if isinstance(spec, Lark):
        return Constraint("lark", spec.text, name="lark")
    if isinstance(spec, re.Pattern):
        return _from_pattern(spec)
    if isinstance(spec, Mapping):
        return _from_schema(spec, depth)
    if isinstance(spec, list | tuple):
        return _from_choices(spec, "choice")
    if isinstance(spec, bool):
        raise ConstraintError(
            f"the schema {str(spec).lower()} allows {'anything' if spec else 'nothing'}", "#"
        )
    if typing.get_origin(spec) is Literal and all(isinstance(value, str) for value in typing.get_args(spec)):
        return _from_choices(typing.get_args(spec), "literal")
    if isinstance(spec, type) and issubclass(spec, Enum):
        members = {member.value: member for member in spec}
        if members and all(type(value) is str for value in members):
            return _from_choices(list(members), spec.__name__, members)
    return _from_type(spec, depth)


def _from_choices(choices: Sequence[Any], name: str, members: Mapping[str, Any] | None = None) -> Constraint:
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise ConstraintError(f"choices must be non-empty strings, at least one; got {list(choices)!r:.200}")
    if len(set(choices)) != len(choices):
        raise ConstraintError(f"choices must differ, got {list(choices)!r:.200}")
    build = None if members is None else lambda text, _: members[text]
    return Constraint("choice", choice_grammar(choices), {"enum": list(choices)}, build, name)


def _from_pattern(pattern: re.Pattern[Any]) -> Constraint:
    if not isinstance(pattern.pattern, str):
        raise ConstraintError(f"the pattern must be for text, got one for bytes: {pattern.pattern!r}")
    flags = "".join(letter for flag, letter in _INLINE_FLAGS.items() if pattern.flags & flag)
    text = f"(?{flags}){pattern.pattern}" if flags else pattern.pattern
    try:
        re.compile(text)
    except re.error:  # the pattern already starts with flags
        text = pattern.pattern
    compiled(python(text))  # raises early: finished texts are validated with it
    return Constraint("regex", regex_grammar(text), {"pattern": text}, name="regex")


def _from_schema(schema: Mapping[str, Any], depth: int | None) -> Constraint:
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not plain JSON: {error}", "#") from None
    return _of_text(text, depth)


@lru_cache(maxsize=KEPT)
def _of_text(schema: str, depth: int | None) -> Constraint:
    """Return the constraint of a schema's text; cached, since judges make the same one for most samples."""
    try:
        plain = json.loads(schema)
    except RecursionError:
        raise ConstraintError(TOO_DEEP, "#") from None
    return _from_json(plain, None, str(plain.get("title", "schema")), depth)


def _from_json(
    schema: dict[str, Any], build: Callable[[str, Texts], Any] | None, name: str, depth: int | None
) -> Constraint:
    try:
        schema = normalized(schema)
        check_schema(schema)
        if depth is not None:
            schema = unrolled(schema, depth)
        check_writable(schema)
        grammar = "" if quoted_sources(schema) else json_grammar(schema)
        return Constraint("json", grammar, schema, build, name, endless=endless(schema))
    except RecursionError:
        raise ConstraintError(TOO_DEEP, "#") from None


def _from_type(spec: Any, depth: int | None) -> Constraint:
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    name = getattr(spec, "__name__", None) or str(spec)
    if spec is None or isinstance(spec, str | bytes | int | float | FunctionType):
        raise ConstraintError(f"{spec!r:.100} is not a valid constraint; accepted: {ACCEPTED}")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(spec)
        schema = adapter.json_schema(mode="validation")
    except (PydanticUserError, NameError, TypeError, RecursionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ConstraintError(
            f"{spec!r:.100} is not a valid constraint ({reason}); accepted: {ACCEPTED}"
        ) from None

    def build(text: str, texts: Texts) -> Any:
        try:
            return adapter.validate_json(text, context=texts)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(step) for step in first["loc"]) or name
            raise InvalidOutput(f"the output is not a {name}: {where}: {first['msg']}", text) from None

    return _from_json(_exactly_declared(schema), build, name, depth)


def _exactly_declared(node: Any) -> Any:
    """Return the schema of a class with every declared property required and no other allowed."""
    if isinstance(node, list):
        return [_exactly_declared(child) for child in node]
    if not isinstance(node, dict):
        return node
    written = {
        keyword: value if keyword in ("enum", "const", "default", "examples") else _exactly_declared(value)
        for keyword, value in node.items()
    }
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        written["properties"] = {name: _exactly_declared(child) for name, child in node["properties"].items()}
        written["required"] = list(node["properties"])
        written["additionalProperties"] = False
    return written


ROOM = (("maxLength", "minLength"), ("maxItems", "minItems"))
FORMED = frozenset({"enum", "const", "pattern", "format", LARK, QUOTE})  # a shorter value may not exist


def shorter(constraint: Constraint) -> Constraint:
    """Return `constraint` with every string and list limited to half its maximum length, where possible.

    Texts that match the result also match `constraint`, except that it may no longer tell branches of
    `oneOf` apart. So parse with `constraint` what was written under the result. Returns the same object if
    nothing can be shortened, and for any kind but JSON.
    """
    if constraint.kind != "json" or constraint.schema is None:
        return constraint
    schema = _halved(constraint.schema)
    if schema == constraint.schema:
        return constraint
    try:
        grammar = json_grammar(schema, constraint.texts)
    except ConstraintError:  # nothing that short can be written
        return constraint
    return replace(constraint, schema=schema, grammar=grammar)


def _halved(schema: Any) -> Any:
    made = deepcopy(schema)
    for node, _ in walk(made):
        if not isinstance(node, dict) or node.keys() & FORMED:
            continue
        for most, least in ROOM:
            if most in node:
                node[most] = max((node[most] + 1) // 2, node.get(least, 0))
    return made


# --- answers that were written without masks -------------------------------------------------------


LONGEST = 200_000  # characters; longer answers are not repaired
FENCE = re.compile(r"```[a-zA-Z0-9]*[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’", "«": "»", "„": "“"}
_CLOSERS = {"{": "}", "[": "]"}
# What a repair may add and remove. Everything else must stay, in its order.
_MARKS = re.compile(r"[\s{}\[\]\"'“”‘’,:\\]+")
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')


def repair(text: str, constraint: Constraint) -> Any:
    """Parse an answer that was written without masks and may have small format errors.

    Repairs that are allowed: a code fence around the whole JSON is removed, and its commas and quotation
    marks are corrected. A choice may differ in letter case, end with one full stop or be in quotation
    marks. Nothing is invented and nothing is dropped. `InvalidOutput` is raised for an answer with extra
    words, which may contradict it, for one that is cut off or gives a value twice, and for one that still
    breaks the constraint. A quote must be verbatim.
    """
    if len(text) > LONGEST:
        raise InvalidOutput(f"an answer of {len(text):,} characters is not repaired", text)
    try:
        return constraint.parse(text)
    except InvalidOutput as error:
        first = error
    if constraint.kind == "json":
        return _json(text, constraint, first)
    if constraint.kind == "choice":
        return constraint.parse(_choice(text, constraint, first))
    return constraint.parse(text.strip())


def unmarked(text: str) -> tuple[str, ...]:
    """Return a text without its final full stop or its quotation marks, in a tuple; empty if it has neither.

    >>> unmarked(' Yes. '), unmarked('"Yes"'), unmarked('Yes!'), unmarked('Yes...')
    (('Yes',), ('Yes',), (), ())
    """
    bare = text.strip()
    if bare.endswith(".") and not bare.endswith(".."):
        return (bare[:-1],)
    if len(bare) > 2 and QUOTES.get(bare[0]) == bare[-1]:
        return (bare[1:-1],)
    return ()


def _json(text: str, constraint: Constraint, first: InvalidOutput) -> Any:
    fenced = FENCE.fullmatch(text.strip())
    inner = (fenced[1] if fenced else text).strip()
    try:
        return constraint.parse(inner)
    except InvalidOutput:
        return constraint.parse(_fixed_json(inner, first))


def _fixed_json(text: str, first: InvalidOutput) -> str:
    """Repair damaged JSON; raise `first` if it is cut off or if more than punctuation would change."""
    try:
        from json_repair import repair_json  # comes with the engines whose replies may need it
    except ImportError:
        raise first from None
    whole = text[:1] in _CLOSERS and text.endswith(_CLOSERS[text[0]])
    if not whole or any(text.count(sign) != text.count(closer) for sign, closer in _CLOSERS.items()):
        raise first
    try:
        mended = str(repair_json(text, ensure_ascii=False))
    except (RecursionError, ValueError):  # ValueError: more digits than Python accepts
        raise first from None
    if _content_of(mended) != _content_of(text):
        raise first
    return mended


def _content_of(document: str) -> str:
    """Return the content of a document without punctuation and white space."""
    return _MARKS.sub("", _ESCAPE.sub(_unescaped, document))


def _unescaped(found: re.Match[str]) -> str:
    """Return the character of a JSON escape; nothing for an escaped quote, backslash or white space."""
    if found[1] is not None:
        return chr(int(found[1], 16))
    return "/" if found[2] == "/" else ""


def _choice(text: str, constraint: Constraint, first: InvalidOutput) -> str:
    """Return the one choice that the text matches; raise `first` if there is not exactly one."""
    choices: list[str] = (constraint.schema or {})["enum"]
    spellings = {each.casefold() for each in (text.strip(), *unmarked(text))}
    found = [choice for choice in choices if choice.casefold() in spellings]
    if len(found) == 1:
        return found[0]
    raise first
