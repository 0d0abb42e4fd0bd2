"""The scores of a run by judge and label, noted while its outcomes pass by, and their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from magistrate.report.charts import Chart, precision_recall, reliability, roc, scores_by_label
from magistrate.report.values import JudgeReport
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Verdict

KNOWN = (HALLUCINATED, FAITHFUL)


class Scores:
    """Of every judge the scores of verdicts that say faithful or hallucinated, by gold label."""

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

    def charts(self, judge: JudgeReport, name: str) -> tuple[Chart, ...]:
        """What can be drawn of a judge; `name` begins the ids in the pictures.

        Curves need both labels, reliability needs one; without labels there is how often which score came.
        All but that are of 1 - score where a low score means hallucinated.
        """
        import numpy as np

        from magistrate.stats.reliability import reliability as measured

        labels = self._found.get(judge.judge, {})
        groups = {label: labels[label] for label in KNOWN if label in labels}
        if not groups:
            return (scores_by_label({"verdicts": labels[None]}, f"{name}s"),) if labels else ()
        truth = np.concatenate(
            [np.full(len(values), label == HALLUCINATED) for label, values in groups.items()]
        )
        scores = np.concatenate([np.asarray(values, dtype=np.float64) for values in groups.values()])
        scores = 1 - scores if judge.turned else scores
        found = [scores_by_label(groups, f"{name}s"), reliability(measured(truth, scores), f"{name}r")]
        if len(groups) > 1 and judge.result is not None:
            area = judge.result.metrics["auroc"]
            found += [roc(truth, scores, area, f"{name}o"), precision_recall(truth, scores, f"{name}p")]
        return tuple(found)
