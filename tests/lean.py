"""A package of judges that ask no engine: of code, in folders of two kinds, one that asks all the same."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from magistrate import Judge, JudgeInfo
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import FolderJudge
from magistrate.types import FAITHFUL, HALLUCINATED, Prompt, Sample, Verdict

LABELS = (FAITHFUL, HALLUCINATED)


def said(sample: Sample, judge: str, wrong: bool, **details: Any) -> Verdict:
    label = HALLUCINATED if wrong else FAITHFUL
    return Verdict(sample.id, judge, label, float(wrong), details=details)


@dataclass(frozen=True)
class Plain:
    """`hallucinated` where the output has a word."""

    word: str = "false"
    name: str = "plain"

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(self.name, summary="a word decides", labels=LABELS, kind="code")

    async def judge(self, sample: Sample, engine: Any) -> Verdict:
        return said(sample, self.name, self.word in (sample.output or ""))


@dataclass(frozen=True)
class Shelf(FolderJudge):
    """As `Plain`, with the word from a file of a folder."""

    FOLDER_FILE: ClassVar[str | None] = "shelf.txt"

    folder: Path | None = None
    threshold: float = 0.5
    name: str = "shelf"

    @property
    def word(self) -> str:
        if self.folder is None:
            raise SpecError("no folder")
        return (self.folder / "shelf.txt").read_text()

    @property
    def info(self) -> JudgeInfo:
        lacks = "lies in a folder: shelf:FOLDER" if self.folder is None else ""
        digest = "" if lacks else hashlib.sha256(self.word.encode()).hexdigest()[:12]
        return JudgeInfo(self.name, labels=LABELS, kind="code", prompt=digest, lacks=lacks)

    async def judge(self, sample: Sample, engine: Any) -> Verdict:
        return said(sample, self.name, self.word in (sample.output or ""))


@dataclass(frozen=True)
class Rack(Shelf):
    """Another kind of folder."""

    FOLDER_FILE: ClassVar[str | None] = "rack.txt"

    name: str = "rack"


@dataclass(frozen=True)
class Asks:
    """Says that it is code, and asks."""

    name: str = "asks"

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(self.name, labels=LABELS, kind="code")

    async def judge(self, sample: Sample, engine: Any) -> Verdict:
        await engine.generate(Prompt.of("Is it?"))
        raise AssertionError("somebody answered")


@dataclass(frozen=True)
class Around:
    """Whatever another judge says."""

    of: Judge
    name: str = "around"

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(self.name, labels=LABELS, kind=self.of.info.kind, prompt=self.of.info.prompt)

    async def judge(self, sample: Sample, engine: Any) -> Any:
        return await self.of.judge(sample, engine)


POINTS = "".join(
    f"{kind.__name__.lower()} = lean:{kind.__name__}\n" for kind in (Plain, Shelf, Rack, Asks, Around)
)


@contextmanager
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """These judges under their names, as if a package had brought them."""
    facts = site / "lean-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: lean\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[magistrate.judges]\n{POINTS}")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(sys.modules, "lean", sys.modules[__name__])
    registry.judge_entries.cache_clear()
    yield
    registry.judge_entries.cache_clear()
