"""The scores of a run by judge and true label, noted while its outcomes pass by, and their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from magistrate.report.charts import Chart
    from magistrate.report.values import JudgeReport

KNOWN = (HALLUCINATED, FAITHFUL)


@dataclass(frozen=True, slots=True)
class JudgeScores:
    """Scores of one judge's verdicts that say faithful or hallucinated, float64 in [0, 1], by true label.

    `unlabelled` are those of samples that bear neither label.
    """

    hallucinated: NDArray[np.float64]
    faithful: NDArray[np.float64]
    unlabelled: NDArray[np.float64]

    @classmethod
    def of(cls, found: Mapping[str | None, Iterable[float]]) -> JudgeScores:
        """Scores by label, None for samples without one of the two."""
        import numpy as np

        return cls(*(np.asarray(list(found.get(label, ())), dtype=np.float64) for label in (*KNOWN, None)))

    def to_bytes(self) -> bytes:
        """Three lengths as 64-bit integers, then the scores, all little-endian."""
        import numpy as np

        groups = (self.hallucinated, self.faithful, self.unlabelled)
        lengths = np.array([group.size for group in groups], dtype="<i8")
        return lengths.tobytes() + b"".join(group.astype("<f8").tobytes() for group in groups)

    @classmethod
    def from_bytes(cls, raw: bytes) -> JudgeScores:
        """What `to_bytes` was given."""
        import numpy as np

        lengths = np.frombuffer(raw, dtype="<i8", count=3)
        scores = np.frombuffer(raw, dtype="<f8", offset=lengths.nbytes).astype(np.float64)
        return cls(*np.split(scores, np.cumsum(lengths)[:2]))

    @property
    def groups(self) -> dict[str, NDArray[np.float64]]:
        """The labelled scores by label, where there are any."""
        pairs = zip(KNOWN, (self.hallucinated, self.faithful), strict=True)
        return {label: values for label, values in pairs if values.size}

    def measured(self, turned: bool) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Which labelled samples are hallucinated, bool `[n]`, and the scores that say so, float64 `[n]`.

        With `turned`, where a low score means hallucinated, scores are 1 - score.
        """
        import numpy as np

        truth = np.concatenate([np.ones(self.hallucinated.size, bool), np.zeros(self.faithful.size, bool)])
        scores = np.concatenate([self.hallucinated, self.faithful])
        return truth, 1 - scores if turned else scores

    def charts(self, judge: JudgeReport, name: str) -> tuple[Chart, ...]:
        """What can be drawn; `name` begins the ids in the pictures.

        Curves need both labels, reliability needs one; without labels, and where nobody knows how scores are
        read, there is how often which score came. All but that are of 1 - score where a low score means
        hallucinated.
        """
        from magistrate.metrics.reliability import reliability as measured
        from magistrate.report.charts import precision_recall, reliability, roc, scores_by_label

        groups = self.groups
        if not groups:
            if not self.unlabelled.size:
                return ()
            return (scores_by_label({"verdicts": self.unlabelled}, f"{name}s"),)
        if judge.scoring is None:
            return (scores_by_label(groups, f"{name}s"),)
        truth, scores = self.measured(judge.turned)
        calibration = judge.calibration or measured(truth, scores)
        found = [scores_by_label(groups, f"{name}s"), reliability(calibration, f"{name}r")]
        if len(groups) > 1 and judge.result is not None:
            area = judge.result.metrics["auroc"]
            found += [roc(truth, scores, area, f"{name}o"), precision_recall(truth, scores, f"{name}p")]
        return tuple(found)


class Scores:
    """The scores of every judge of a run, gathered from its outcomes."""

    def __init__(self, samples: Mapping[str, Sample]) -> None:
        self._samples = samples
        self._found: dict[str, dict[str | None, list[float]]] = {}

    def noting(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """The outcomes as they come, noted."""
        for outcome in outcomes:
            if isinstance(outcome, Verdict) and outcome.label in KNOWN:
                gold = self._samples[outcome.sample_id].label
                labels = self._found.setdefault(outcome.judge, {})
                labels.setdefault(gold if gold in KNOWN else None, []).append(outcome.score)
            yield outcome

    def of(self, judge: str) -> JudgeScores:
        """What was noted of a judge so far."""
        return JudgeScores.of(self._found.get(judge, {}))
