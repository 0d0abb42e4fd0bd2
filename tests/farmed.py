"""A judge and a model for tests of several processes: installed as a package would be, so that each process
finds them by name. The judge keeps a ledger of what it judged, and where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magistrate import Run
from magistrate.engines import registry as engines
from magistrate.judges import registry as judges
from magistrate.types import Outcome

CODE = """
import asyncio, os
from dataclasses import dataclass
from pathlib import Path
from magistrate import JudgeInfo, ScriptedEngine
from magistrate.types import Verdict

def note(what):
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{os.getpid()} {what}\\n")

@dataclass(frozen=True)
class Farmed:
    name: str = "farmed"

    @property
    def info(self):
        return JudgeInfo(name=self.name, kind="code", labels=("faithful", "hallucinated"), threshold=0.5)

    async def judge(self, sample, engine):
        note(sample.id)
        print(end=os.environ.get("PRINTED", ""))
        if "poison" in sample.output:
            os.kill(os.getpid(), 9)
        await asyncio.sleep(float(os.environ.get("PACE", "0")))
        score = sum(sample.output.encode()) % 1000 / 1000
        return Verdict(sample.id, self.name, ("faithful", "hallucinated")[score >= 0.5], score)

def pretend(model, settings):
    def script(prompt):
        note("asked")
        return {"faithful": 0.7, "hallucinated": 0.3}
    return ScriptedEngine(script, delay=0.002)
"""
POINTS = """
[magistrate.judges]
farmed = farmed_parts:Farmed
[magistrate.engines]
pretend = farmed_parts:pretend
"""


class Farm:
    """A folder with the package, data, and the ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.ledger = folder / "ledger"
        facts = self.site / "farmed-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: farmed\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(POINTS)
        (self.site / "farmed_parts.py").write_text(CODE)
        self.ledger.touch()

    @property
    def environment(self) -> dict[str, str]:
        """What a program of its own needs to find the package."""
        home = str(self.folder / "home")
        return {
            **os.environ,
            "PYTHONPATH": str(self.site),
            "LEDGER": str(self.ledger),
            "MAGISTRATE_HOME": home,
        }

    def judged(self) -> list[tuple[int, str]]:
        """The process and the sample of everything that was judged, in order."""
        lines = (line.split() for line in self.ledger.read_text().splitlines())
        return [(int(process), sample) for process, sample in lines]

    def data(self, n: int, poison: int | None = None) -> Path:
        path = self.folder / "answers.jsonl"
        with path.open("w") as file:
            for k in range(n):
                word = "poison" if k == poison else f"answer {k * k}"
                row = {
                    "id": f"s{k}",
                    "output": word,
                    "context": "c",
                    "label": ("faithful", "hallucinated")[k % 2],
                }
                file.write(json.dumps(row) + "\n")
        return path


@pytest.fixture
def farm(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The farm, whose judge `farmed` and models `pretend:…` this process and its workers find."""
    made = Farm(tmp_path)
    monkeypatch.syspath_prepend(made.site)
    monkeypatch.setenv("LEDGER", str(made.ledger))
    caches = (judges.judge_entries.cache_clear, engines.engine_entries.cache_clear)
    _clear(*caches)
    yield made
    _clear(*caches)


def _clear(*caches: Callable[[], None]) -> None:
    for each in caches:
        each()


def bare(run: Run) -> dict[tuple[str, str], Outcome]:
    """The outcomes of a run, without the times that they took; none is there twice."""
    found = run.outcomes(with_steps=True)
    outcomes = {
        (each.sample_id, each.judge): replace(
            each, seconds=0.0, steps=tuple(replace(step, seconds=0.0) for step in each.steps)
        )
        for each in found
    }
    assert len(outcomes) == len(found)
    return outcomes
