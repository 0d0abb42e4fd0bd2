"""Result rows in a JSONL file that is read and appended to, never rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from magistrate.errors import SpecError

Figure = tuple[float | None, float | None, float | None]
"""A figure and the ends of its 95 % interval; None where it is undefined."""

BASELINE = "baseline"  # in place of a model, for rules and signals, which are no judges


class QualityRow(BaseModel):
    """One judge (or trivial rule) on the test part of one set.

    `own` are figures with the judge's own labels, by a threshold that was fixed before the set was seen: for
    a rule on the dev parts of the sets `fixed_on`, of other families. `tuned` are figures with the
    `threshold` that had the best balanced accuracy on the dev part of this very set. `auroc`, `ece` and
    `brier` are of the scores as they come and know no threshold. `seen` are the sets of this family that the
    judge was trained on.
    Figures are of verdicts; `n_ok` of `n` samples have one, and `n_dev_ok` of the `n_dev` chosen on.
    `ms` is wall clock a sample, `in_flight` at a
    time; `load` how many processes wanted to run when it began. `read` and `written` are tokens a sample.
    `run` is the id of the run that the figures are of, None for a rule.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["quality"] = "quality"
    protocol: int
    set: str
    n_dev: int
    n: int
    hallucinated: float
    model: str
    judge: str
    recipe: str
    run: str | None
    commit: str | None
    date: str
    cpu: str
    cores: int
    load: float | None
    n_ok: int
    n_dev_ok: int
    failures: dict[str, int]
    abstentions: dict[str, int]
    threshold: float | None
    tuned: dict[str, Figure]
    own: dict[str, Figure]
    auroc: Figure
    ece: float | None
    ece_by_chance: float | None = None
    brier: float | None
    ms: float | None
    in_flight: int
    read: float
    written: float
    fixed_on: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    @property
    def coverage(self) -> float:
        """The share of samples that have a verdict."""
        return self.n_ok / self.n

    @property
    def key(self) -> tuple[int, str, str, str, int]:
        """What is measured: later rows replace earlier ones of the same key, but not larger ones in tables.

        A rule costs nothing, so it has a row for every size at which a judge was measured.
        """
        return self.protocol, self.set, self.model, self.judge, self.n if self.model == BASELINE else 0

    @property
    def measured_at(self) -> tuple[str, str]:
        """The commit and day."""
        return self.commit or "unknown", self.date[:10]


def append(path: Path, rows: Iterable[QualityRow]) -> None:
    """Append rows to a file, created with its folder if needed. Raises `SpecError` if that fails."""
    text = "".join(row.model_dump_json() + "\n" for row in rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SpecError(
            f"cannot append to {path}: {error.strerror or error}; name another file with --append"
        ) from error


def read(path: Path) -> list[QualityRow]:
    """Return all rows of a file in order; empty if there is no file.

    Raises `SpecError` with the line that is not a row.
    """
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(QualityRow.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise SpecError(
                f"{path}, line {number} is no row of figures: {where}: {first['msg']}; take the line out: "
                "what it told is made again of its run, which is kept"
            ) from None
    return rows


def newest(rows: Sequence[QualityRow]) -> list[QualityRow]:
    """Return the last row of every measurement, in the order in which each was first measured.

    For a judge measured at several sizes the largest counts, so that a quick check does not replace a
    larger measurement. Rules are included at the sizes at which some judge was measured. Rows of earlier
    protocol versions stay in the file but are ignored.
    """
    found: dict[tuple[int, str, str, str, int], QualityRow] = {}
    latest = max((row.protocol for row in rows), default=0)
    for row in (row for row in rows if row.protocol == latest):
        if row.key not in found or row.n >= found[row.key].n:
            found[row.key] = row
    sizes = {(row.set, row.n) for row in found.values() if row.model != BASELINE}
    return [row for row in found.values() if row.model != BASELINE or (row.set, row.n) in sizes]
