"""Prompt templates: Jinja text with sections headed `=== system` and `=== user`, in versioned files.

A template is *trusted* text. It contains fields of a sample only as placeholders, so that the rendered text
can be split into template parts and data parts. Judged text is never rendered and never part of the
template.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from magistrate.engines.base import Generation
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.base import value_of
from magistrate.types import (
    Data,
    Message,
    Part,
    Prompt,
    Sample,
    Trusted,
)

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

HEADER = re.compile(r"^=== (system|user|assistant)\n", re.MULTILINE)
PLACEHOLDER = re.compile("\ue000([0-9]+)\ue001")

Field = str | Sequence[str] | None


class Texts(list[str]):
    """Several texts, which a template may iterate over; printed, they are a numbered list."""

    def __str__(self) -> str:
        return "\n".join(f"[{number}] {text}" for number, text in enumerate(self, 1))


@dataclass(frozen=True)
class PromptTemplate:
    """A versioned prompt. `digest` is 12 hexadecimal digits of the sha256 of its text."""

    name: str
    version: int
    source: str

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()[:12]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the template uses. Raises `SpecError`, with the line, for invalid Jinja."""
        from jinja2 import Environment, TemplateSyntaxError
        from jinja2.meta import find_undeclared_variables

        try:
            return frozenset(find_undeclared_variables(Environment(autoescape=True).parse(self.source)))
        except TemplateSyntaxError as error:
            raise SpecError(
                f"prompt {self.name!r}, line {error.lineno}: {error.message}", key=("prompt",)
            ) from None

    @cached_property
    def _template(self) -> Any:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False
        )
        return environment.from_string(self.source)

    def prompt(self, fields: Mapping[str, Field], words: Mapping[str, Any] | None = None) -> Prompt:
        """Render the prompt with `fields` as data parts; None and empty fields count as absent.

        `words` are the author's: trusted values that the template may print or test. Raises `SpecError` if
        the template uses a name that is missing.
        """
        from jinja2 import TemplateError

        data: list[Data] = []

        def placeholder(name: str, text: str) -> str:
            data.append(Data(text, name))
            return f"\ue000{len(data) - 1}\ue001"

        def shown(name: str, value: Field) -> str | Texts:
            if isinstance(value, str):
                return placeholder(name, value) if value else ""
            return Texts(placeholder(name, text) for text in value or ())

        fields_shown = {name: shown(name, value) for name, value in fields.items()}
        try:
            rendered = self._template.render(**fields_shown, **(words or {}))
        except TemplateError as error:
            raise SpecError(f"prompt {self.name!r}: {error}") from None
        before, *sections = HEADER.split(rendered)
        if sections and before.strip():
            raise SpecError(
                f"prompt {self.name!r} has text before its first section; start it with a line '=== system'"
            )
        if not sections:
            raise SpecError(f"prompt {self.name!r} has no section; start one with a line '=== user'")
        return Prompt(
            tuple(
                Message(role, _parts(text.strip(), data))  # type: ignore[arg-type]
                for role, text in zip(sections[::2], sections[1::2], strict=True)
            )
        )


def _parts(text: str, data: list[Data]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for index, piece in enumerate(PLACEHOLDER.split(text)):
        if index % 2:
            parts.append(data[int(piece)])
        elif piece:
            parts.append(Trusted(piece))
    return tuple(parts)


@cache
def builtin_prompt(name: str) -> PromptTemplate:
    """Return a prompt of the package by its file name in `judges/prompts`."""
    text = (files("magistrate.judges") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    first, _, source = text.partition("\n")
    key, _, version = first.partition(":")
    if key != "version" or not version.strip().isdigit():
        raise SpecError(f"prompt {name!r} must start with a line like 'version: 1', got {first!r}")
    return PromptTemplate(name, int(version), source)


def written_freely(written: Generation, shape: Constraint) -> Any:
    """Parse unconstrained text as if it followed `shape`. Raises `InvalidOutput` if it does not."""
    if written.finish == "length":
        raise InvalidOutput("the answer was cut off at the token limit", written.text)
    return shape.parse(written.text.strip())


def fields_of(sample: Sample, names: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """Return fields of a sample by name, in the form that `PromptTemplate.prompt` takes."""
    return {name: value_of(sample, name) for name in names}
