"""What every judge is: a frozen dataclass with one async method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from magistrate.engines.base import Capability, Engine
from magistrate.types import Direction, Outcome, Sample


@dataclass(frozen=True, slots=True)
class JudgeInfo:
    """What a judge is, for people and for recipes.

    `reads` are the fields of a sample that it looks at; `needs` what its engine must be able to do;
    `prompt` and `constraint` are digests of what it asks with.
    """

    name: str
    version: int
    summary: str
    labels: tuple[str, ...]
    direction: Direction
    reads: tuple[str, ...]
    needs: frozenset[Capability]
    prompt: str
    constraint: str


class Judge(Protocol):
    """Decides on one sample with one engine. What it raises becomes a `Failure`, never a label."""

    @property
    def info(self) -> JudgeInfo: ...

    async def judge(self, sample: Sample, engine: Engine) -> Outcome: ...
