"""Results of `improve`: as values, and rendered in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from magistrate._text import counted, decimal, p_of, signed
from magistrate.analysis.improvement import Attempt, Way
from magistrate.report.calibration import NAMES
from magistrate.report.formatting import as_text, change, estimated, lines, numbers, plain, tally

BRIER = " (Brier score)"
FOOT = (
    "Measured on held-out samples, in folds that share no context. Brackets: 95 % intervals, from a "
    "bootstrap of contexts, the same for both sides; a gain above 0 is better, also for the Brier score. p "
    "is corrected for the number of attempts; above .05, nothing is shown."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """The results of learning from a run's labels, compared with its current `judge`.

    `n` samples in `contexts` contexts have a label and a verdict; `hallucinated` of them are labelled so.
    `left_out` counts the others by reason. `labels` names the origin of the labels. `weighted` is true if
    samples are weighted by inverse inclusion probability. `kept` maps each way to the file or folder
    written, and `lines` to the command that uses it.
    """

    run: str
    judge: str
    labels: str
    weighted: bool
    metric: str
    n: int
    hallucinated: int
    contexts: int
    left_out: Mapping[str, int]
    attempts: tuple[Attempt, ...]
    kept: Mapping[Way, Path]
    lines: Mapping[Way, str]

    @property
    def best(self) -> Attempt | None:
        """The attempt shown to be better with the largest gain in labels; None if there is none."""
        shown = [each for each in self.attempts if each.shown]
        return max(shown, key=lambda each: (each.name != "calibration", each.gain.value or 0.0), default=None)

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that use what was kept, best first."""
        order = sorted(self.kept, key=lambda way: self.best is None or way != self.best.name)
        return tuple(dict.fromkeys(self.lines[way] for way in order))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        names = ("run", "judge", "labels", "weighted", "metric", "n", "hallucinated", "contexts")
        return {
            **{name: getattr(self, name) for name in names},
            "left_out": dict(self.left_out),
            "attempts": [each.to_dict() for each in self.attempts],
            "best": None if self.best is None else self.best.name,
            "kept": {way: str(path) for way, path in self.kept.items()},
            "commands": list(self.commands),
        }

    def __str__(self) -> str:
        return as_text(lambda console: render_improvement(self, console))


def render_improvement(found: Improvement, console: Console) -> None:
    """Print the labels, each attempt compared with the judge, and the verdict on each."""
    console.print(Text.assemble((plain(found.judge), "bold"), f" of run {plain(found.run)}, used now"))
    weighted = "; each counts 1 / its probability of being drawn" if found.weighted else ""
    console.print(
        lines(
            ("labels", f"{found.labels}{weighted}"),
            (
                "samples",
                f"{found.n} in {counted(found.contexts, 'context')}: {found.hallucinated} hallucinated, "
                f"{found.n - found.hallucinated} faithful",
            ),
            ("compared by", NAMES.get(found.metric, found.metric)),
            *((("left out", tally(found.left_out)),) if found.left_out else ()),
        )
    )
    console.print()
    table = numbers("attempt", "now", "then", "gain", "AUROC", "p")
    for each in found.attempts:
        if each.gain.value is not None:
            table.add_row(
                Text(each.name + BRIER * (each.metric == "brier"), "bold" if each.shown else ""),
                decimal(each.now.value),
                estimated(each.then),
                change(each.gain),
                signed(each.auroc.value),
                p_of(each.p),
            )
    if table.row_count:
        console.print(table)
        console.print()
    console.print(lines(*((each.name, verdict(each)) for each in found.attempts)))
    console.print()
    console.print(Text(FOOT, style="dim"))


def verdict(each: Attempt) -> str:
    """Summarize the result of an attempt in one sentence."""
    if each.gain.value is None:
        return f"not tried: {each.reason}"
    if each.shown:
        return f"better, on {each.n} samples"
    if each.reason is not None:
        return f"not kept: {each.reason}"
    if each.gain.high is not None and each.gain.high < 0:
        return f"worse, on {each.n} samples"
    seen = f"; this many labels can show a gain of {decimal(each.visible)} or more" if each.visible else ""
    why = f" ({each.gain.undefined})" if each.gain.undefined else ""
    return f"not shown to be better{why}{seen}"
