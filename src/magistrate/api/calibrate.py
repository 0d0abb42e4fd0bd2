"""`calibrate`: fit a calibration to the labels of a stored run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate.analysis.calibration import Fit, fit
from magistrate.analysis.columns import columns
from magistrate.api.stored import RunRef, StorePlace, judged
from magistrate.errors import SpecError
from magistrate.metrics.calibration import Method
from magistrate.metrics.reliability import Binning
from magistrate.metrics.thresholds import FOLDS, Aim

if TYPE_CHECKING:
    from magistrate.judges.calibration_file import CalibrationFile


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted calibration with its quality (`fit`), and the file to save (`file`)."""

    fit: Fit
    file: CalibrationFile

    def save(self, path: str | Path, *, replace: bool = False) -> Path:
        """Write the file for `--calibration FILE` and `calibrated:of=JUDGE,file=FILE`, and
        return its path.
        """
        from magistrate.judges.calibration_file import write_calibration

        write_calibration(self.file, Path(path), replace=replace)
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as plain values; `calibration` is the content of the file."""
        return {"judge": self.file.judge.words, **self.fit.to_dict(), "calibration": self.file.model_dump()}

    def __str__(self) -> str:
        from magistrate.report.calibration import render_calibration
        from magistrate.report.formatting import as_text

        return as_text(lambda console: render_calibration(self.fit, self.file, console))

    def _repr_html_(self) -> str:
        from magistrate.report.calibration import figures_html

        return figures_html(self.fit, self.file)


def calibrate(
    run: RunRef,
    judge: str | None = None,
    *,
    method: Method = "platt",
    aim: str | Aim | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    base_rate: float | None = None,
    binning: Binning = "mass",
    store: StorePlace | None = None,
) -> Calibration:
    """Calibrate a judge's scores on the labelled samples of a run, and choose a threshold.

    `aim` is `maximize f1`, `maximize balanced_accuracy`, `maximize accuracy`, `precision 0.95`,
    `recall 0.9` or `costs MISS/FALSE_ALARM`. Without an aim, the more likely label is chosen. All metrics
    are computed on held-out samples: `folds` folds that share no context. `base_rate` is the share of
    hallucinated outputs where the calibration will be used, if it differs from that of the labels.
    `binning` selects how ECE groups the scores. Raises `InputError` if there are too few labels or no
    threshold reaches the aim, and `SpecError`.
    """
    from magistrate.analysis.calibration import file_of

    found = judged(run, judge, store)
    record = found.record
    if found.judge not in record.recipes:
        raise SpecError(
            f"run {record.id} has no recipe of {found.judge!r}, so a calibration could not be "
            "matched to the judge"
        )
    fitted = fit(
        columns(found.samples, found.outcomes.values(), found.judge, found.scoring),
        method,
        aim=Aim.parse(aim) if isinstance(aim, str) else aim,
        folds=folds,
        seed=seed,
        base_rate=base_rate,
        binning=binning,
    )
    recipe = record.recipes[found.judge]
    return Calibration(fitted, file_of(fitted, recipe, found.judge, record.dataset, record.dataset_digest))
