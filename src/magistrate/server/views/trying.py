"""Trying a judge: the form, and what came of one that was sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from magistrate.datasets import load
from magistrate.engines.models import default, is_pulled
from magistrate.server.asking import models_here
from magistrate.server.judging import Phase
from magistrate.server.tries import Form, Try
from magistrate.server.views.judges import JudgeLine, judges_view
from magistrate.types import HALLUCINATED, Outcome, Sample, Step

FIELDS = frozenset({"output", "context", "messages", "input", "expected"})
"""What of a sample can be filled in; judges that cannot do without anything else are not offered."""

PHASES: tuple[tuple[Phase, str], ...] = (
    ("waiting", "Waiting for its turn"),
    ("loading", "Loading the model"),
    ("judging", "Judging"),
)

CONTEXTS = 2  # empty boxes for them, to begin with
MOST_CONTEXTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """What can be filled in and chosen. `boxes` are the contexts, at least `CONTEXTS` of them, some empty.

    `groups` are the judges that can be asked here; `models` those that may be; `usual_is_here` says whether
    the first of them was pulled. `error` is what was wrong with what was sent.
    """

    form: Form
    boxes: tuple[str, ...]
    groups: tuple[tuple[str, tuple[JudgeLine, ...]], ...]
    models: tuple[str, ...]
    usual_is_here: bool
    error: str | None

    @property
    def full(self) -> bool:
        """Whether there is no room for another context."""
        return len(self.boxes) >= MOST_CONTEXTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TryView:
    """A judgement under way or done; `seconds` is what it took so far, `deadline` what it may take in all.

    `error` says why it could not be judged at all; `steps` are the engine's answers so far.
    """

    id: str
    form: Form
    sample: Sample
    judge: str
    asks: bool
    model: str
    phase: Phase
    seconds: float
    deadline: float
    steps: tuple[Step, ...]
    outcome: Outcome | None
    error: str | None

    @property
    def phases(self) -> tuple[tuple[Phase, str], ...]:
        """What it goes through until it is done, in words."""
        return tuple(each for each in PHASES if self.asks or each[0] in ("waiting", self.phase, "judging"))


def form_view(form: Form, *, error: str | None = None, more: bool = False) -> FormView:
    """The form with what is filled in; with `more` it has one box more for a context."""
    boxes = [*form.context, *([""] if more else [])]
    boxes += [""] * (CONTEXTS - len(boxes))
    offered = ((name, tuple(filter(_is_offered, judges))) for name, judges in judges_view().groups())
    return FormView(
        form=form,
        boxes=tuple(boxes[:MOST_CONTEXTS]),
        groups=tuple((name, judges) for name, judges in offered if judges),
        models=tuple(models_here()),
        usual_is_here=is_pulled(default()),
        error=error,
    )


def try_view(tried: Try) -> TryView:
    """How far it is, and what came out."""
    found, question = tried.judgement, tried.judgement.question
    phase, steps, outcome, error = found.phase, found.steps, None, None
    try:
        outcome = found.outcome()
    except Exception as raised:  # whatever it was, it is shown as what became of this try
        error = f"{type(raised).__name__}: {raised}"
    done = outcome is not None or error is not None
    return TryView(
        id=tried.id,
        form=tried.form,
        sample=question.sample,
        judge=question.judge.info.name,
        asks=question.judge.info.asks,
        model=question.model or default().spec,
        phase="done" if done else phase,
        seconds=found.seconds,
        deadline=question.deadline,
        steps=outcome.steps if outcome is not None else steps,
        outcome=outcome,
        error=error,
    )


@cache
def example() -> Form:
    """A hallucinated sample of the built-in set, for judges to find."""
    sample = next(each for each in load("quickstart") if each.label == HALLUCINATED)
    return Form(output=sample.output or "", context=sample.context, input=sample.input or "")


def _is_offered(judge: JudgeLine) -> bool:
    return judge.asked_here and FIELDS.issuperset(judge.requires)
