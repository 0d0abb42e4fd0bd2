"""The judge `stack`: a weighted combination of signals and other judges, trained on labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import (
    LABELS,
    Call,
    FolderJudge,
    Judge,
    JudgeInfo,
    absolute,
    label_of,
    planned_calls,
    probability_of,
    run_judge,
    unsupported,
)
from magistrate.judges.composite import composite_info, gather_or_cancel, suspicion
from magistrate.judges.folders import read_card
from magistrate.metrics.calibration import sigmoid
from magistrate.types import (
    HALLUCINATED,
    Abstention,
    Claim,
    Outcome,
    Sample,
    Verdict,
)

if TYPE_CHECKING:
    from magistrate.features.prepared import Reading
    from magistrate.judges.stack_folder import StackFile

NO_FOLDER = (
    "needs a trained stack: stack:FOLDER, where FOLDER was written by 'magistrate train stack --data "
    "LABELLED --of PART --of PART --to FOLDER'"
)
THRESHOLD = 0.5
TOLD = 3  # contributions named in an explanation
SMALL = 0.05  # log odds; smaller contributions are not mentioned


@dataclass(frozen=True)
class Stack(FolderJudge):
    """Combines the parts of the stack in `folder` by their weights; make it as `stack:some/folder`.

    The score is the probability that the output is hallucinated if a share `base_rate` of outputs is (None:
    the folder's own). The label is the more probable one. In the details, `contributions` are the parts'
    shares of the log odds, `base` the log odds without the parts, `parts` the parts' values, and `signals`
    those of text signals. If one of its judges fails or abstains, so does the stack. A signal that has
    nothing to look at adds nothing, and `undefined` says why. A sample too unlike the training samples is
    not judged (`uncertain`), unless `outside=judge`: its parts lie more than 1.2 times as far from the
    centre of the training samples as 999 of 1,000 of these.
    """

    FOLDER_FILE: ClassVar[str | None] = "stack.json"

    folder: Path | None = None
    base_rate: float | None = None
    outside: Literal["abstain", "judge"] = "abstain"
    name: str = "stack"
    parts: tuple[Judge, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.base_rate is not None and not 0 < self.base_rate < 1:
            raise SpecError(f"a base rate must be in (0, 1), got {self.base_rate}")
        if self.folder is not None:
            object.__setattr__(self, "folder", absolute(self.folder))
        if self.folder is not None and self.parts is not None:
            _check(self.file, self.parts, self.folder)

    def with_parts(self, make: Callable[[str], Judge]) -> Stack:
        """Return a copy of this stack with its judges, built by calling `make` with their specifications."""
        from magistrate.judges.stack_folder import HERE

        if self.folder is None:
            return self
        words = [part.words.replace(HERE, str(self.folder)) for part in self.file.parts]
        judges = [part.kind == "judge" for part in self.file.parts]
        made = tuple(make(each) for each, judge in zip(words, judges, strict=True) if judge)
        return replace(self, parts=made)

    @cached_property
    def file(self) -> StackFile:
        """The content of the folder's file, read when this judge was made."""
        from magistrate.judges.stack_folder import read_stack

        if self.folder is None:
            raise SpecError(f"judge {self.name!r} {NO_FOLDER}")
        return read_stack(self.folder)

    @property
    def info(self) -> JudgeInfo:
        if self.folder is None:
            summary = "signals and judges, with weights learnt from labels"
            return JudgeInfo(self.name, summary=summary, labels=LABELS, lacks=NO_FOLDER)
        told = self.file
        infos = [judge.info for judge in self._judges]
        if len(infos) < len(told.parts):
            infos.append(JudgeInfo("signals", kind="code", reads=("context", "output"), requires=REQUIRED))
        found = composite_info(
            infos,
            name=self.name,
            summary=f"{', '.join(part.name for part in told.parts)}, with weights learnt from labels",
            long=next((info.long for info in infos if info.kind == "llm"), infos[0].long),
        )
        return replace(
            found,
            threshold=THRESHOLD,
            prompt=told.digest,
            fitted_to=None if told.model is None else (told.model.name, told.model.fingerprint),
            trained_on=found.trained_on | frozenset(told.trained_on),
        )

    @property
    def card(self) -> str | None:
        """The folder's description of how it was made, and of its measured quality."""
        return None if self.folder is None else read_card(self.folder)

    def plan(self, sample: Sample) -> Sequence[Call]:
        """Return the calls of its judges."""
        return [call for judge in self._judges for call in planned_calls(judge, sample)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        judges = self._judges
        outcomes = await gather_or_cancel(run_judge(judge, sample, engine) for judge in judges)
        readings = self._readings(sample)
        values, by_name = dict[str, float | None](), dict[str, Verdict]()
        waiting = iter(zip(judges, outcomes, strict=True))
        for part in self.file.parts:
            if part.kind == "judge":
                judge, outcome = next(waiting)
                if not isinstance(outcome, Verdict):
                    return replace(outcome, judge=self.name, message=f"{part.name}: {outcome.message}")
                values[part.name], by_name[part.name] = suspicion(outcome, judge.info), outcome
                continue
            values[part.name] = readings[part.name].value
        return self._weighed(sample, values, by_name, readings)

    @property
    def _judges(self) -> tuple[Judge, ...]:
        if self.parts is not None:
            return self.parts
        if any(part.kind == "judge" for part in self.file.parts):
            raise SpecError(f"create a stack by its name: magistrate.judge(judge='stack:{self.folder}', …)")
        return ()

    def _readings(self, sample: Sample) -> Mapping[str, Reading]:
        """Return the readings of its text signals, by the names of parts."""
        names = [part.words for part in self.file.parts if part.kind == "signal"]
        if not names:
            return {}
        from magistrate.features.signals import readings

        found = readings(sample, names=names)
        return {part.name: found[part.words] for part in self.file.parts if part.kind == "signal"}

    def _weighed(
        self,
        sample: Sample,
        values: Mapping[str, float | None],
        verdicts: Mapping[str, Verdict],
        readings: Mapping[str, Reading],
    ) -> Outcome:
        import numpy as np

        from magistrate.judges.stack_folder import shift

        told = self.file
        row = np.array([[values[part.name] for part in told.parts]], dtype=np.float64)
        far = float(told.weights.distances(row)[0])
        if far > told.limit and self.outside == "abstain":
            return Abstention(sample.id, self.name, "uncertain", _too_far(told, values, far))
        added = dict(zip(values, told.weights.contributions(row)[0].tolist(), strict=True))
        base = told.intercept + shift(told.base_rate if self.base_rate is None else self.base_rate)
        score = sigmoid(base + sum(added.values()))
        label = label_of(score, THRESHOLD)
        blamed = [name for name in sorted(added, key=lambda name: -added[name]) if added[name] > SMALL]
        claims = _claims(sample, blamed, verdicts, readings) if label == HALLUCINATED else ()
        heats = [
            verdicts[name].details["heat"]
            for name in blamed
            if name in verdicts and "heat" in verdicts[name].details
        ]
        return Verdict(
            sample.id,
            self.name,
            label,
            score,
            probability=probability_of(label, score),
            explanation=explained(added, values),
            claims=claims,
            details={
                "contributions": added,
                "base": base,
                "parts": dict(values),
                "signals": {part.words: values[part.name] for part in told.parts if part.kind == "signal"},
                "undefined": {name: readings[name].reason for name, value in values.items() if value is None},
                "distance": far,
                "limit": told.limit,
                "stack": told.digest,
                **({"heat": heats[0]} if heats else {}),
            },
        )


REQUIRED = ("context", "output")


def explained(added: Mapping[str, float], values: Mapping[str, float | None]) -> str:
    """Return the largest contributions as text, the largest first."""
    order = sorted(added, key=lambda name: -abs(added[name]))
    told = [name for name in order[:TOLD] if abs(added[name]) >= SMALL]
    if not told:
        return "no part of the stack clearly points to either label"
    words = [
        f"{name} ({values[name]:.2f}) speaks {'for' if added[name] < 0 else 'against'} the output "
        f"({added[name]:+.1f} log odds)"
        for name in told
    ]
    return "; ".join(words)


def _too_far(told: StackFile, values: Mapping[str, float | None], far: float) -> str:
    """Explain why a sample is too far off, with the parts outside the range of the training samples."""
    beyond = [
        f"{part.name} is {value:.3f}; in training it was {part.low:.3f} to {part.high:.3f}"
        for part in told.parts
        if (value := values[part.name]) is not None and not part.low <= value <= part.high
    ]
    why = "; ".join(beyond) or "each part is in its range, but the combination is unusual"
    return (
        f"too different from the training data of the stack: distance {far:.1f}, limit {told.limit:.1f} "
        f"({why}). To judge it anyway: outside=judge"
    )


def _claims(
    sample: Sample,
    blamed: Sequence[str],
    verdicts: Mapping[str, Verdict],
    readings: Mapping[str, Reading],
) -> tuple[Claim, ...]:
    """Return the claims of the parts that count against the output, one per place."""
    found: dict[tuple[int, int], Claim] = {}
    for name in blamed:
        if name in verdicts:
            own = [claim for claim in verdicts[name].claims if claim.kind != "agreement"]
        else:
            reading = readings[name]
            text = sample.output or ""
            own = [unsupported(text, span.start, span.end, reading.reason) for span in reading.spans]
        for claim in own:
            found.setdefault((claim.output_quote.start, claim.output_quote.end), claim)
    return tuple(found.values())


def _check(told: StackFile, judges: Sequence[Judge], folder: Path) -> None:
    """Raise `SpecError` if a part differs from the one that the stack was fitted to."""
    parts = [part for part in told.parts if part.kind == "judge"]
    for part, judge in zip(parts, judges, strict=True):
        info = judge.info
        pairs = (
            ("version", part.version, info.version),
            ("prompt", part.prompt, info.prompt),
            ("constraint", part.constraint, info.constraint),
        )
        if differing := [f"{what} {then!r} there, {now!r} here" for what, then, now in pairs if then != now]:
            raise SpecError(
                f"the stack in {folder} was trained with another {part.name!r}: {'; '.join(differing)}. "
                "Train it again"
            )
