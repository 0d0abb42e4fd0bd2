"""A judge whose input fields are read from elsewhere in a sample, such as its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import FIELDS, LISTS, Call, JudgeInfo, planned_calls, run_judge
from magistrate.types import Abstention, Outcome, Sample

if TYPE_CHECKING:
    from magistrate.judges.base import Judge

BINDABLE = tuple(name for name in FIELDS if name != "messages")


@dataclass(frozen=True)
class Bound:
    """Runs `of` with fields read from elsewhere: `mapping` maps a field to the path that it is read from.

    A path is a field of the sample or `metadata.KEY`, followed by more keys or list indices. Abstains
    (`missing_input`) if a sample has nothing at the path. Raises `SpecError` for an unknown field.
    """

    of: Judge
    mapping: Mapping[str, str]

    def __post_init__(self) -> None:
        for field, path in self.mapping.items():
            if field not in BINDABLE:
                raise SpecError(f"{field!r} cannot be bound; known: {', '.join(BINDABLE)}")
            if path.partition(".")[0] not in (*BINDABLE, "metadata"):
                raise SpecError(
                    f"{path!r} is not a field of a sample; known: {', '.join(BINDABLE)}, metadata.KEY"
                )

    @property
    def info(self) -> JudgeInfo:
        bound = ",".join(f"{field}={path}" for field, path in sorted(self.mapping.items()))
        of = self.of.info
        return replace(
            of,
            reads=tuple(self.mapping.get(name, name) for name in of.reads),
            requires=tuple(name for name in of.requires if name not in self.mapping),
            prompt=f"{of.prompt}+{bound}",
        )

    def plan(self, sample: Sample) -> Sequence[Call]:
        """Return the calls of `of` for the mapped sample; empty if a path is missing."""
        try:
            return planned_calls(self.of, self._read(sample))
        except SpecError:
            return ()  # `judge` reports it

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        try:
            read = self._read(sample)
        except SpecError as error:
            return Abstention(sample.id, self.info.name, "missing_input", str(error))
        return await run_judge(self.of, read, engine)

    def _read(self, sample: Sample) -> Sample:
        found: dict[str, Any] = {}
        for field, path in self.mapping.items():
            value = _at(sample, path)
            found[field] = _texts(value) if field in LISTS else "\n\n".join(_texts(value))
        return replace(sample, **found)


def _at(sample: Sample, path: str) -> Any:
    head, *keys = path.split(".")
    value = getattr(sample, head)
    for key in keys:
        try:
            value = (
                value[int(key)] if isinstance(value, Sequence) and not isinstance(value, str) else value[key]
            )
        except (KeyError, IndexError, TypeError, ValueError):
            raise SpecError(f"sample {sample.id!r} has nothing at {path!r}") from None
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(
        each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, default=str)
        for each in several
    )
