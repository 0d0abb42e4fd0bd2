"""Magistrate: judges locally whether a language model's output is faithful to its context.

    import magistrate
    verdict = magistrate.judge(output="Bern has a zoo.", context=["Bern has 134,000 people."])

Names are imported on first use, so that `import magistrate` stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magistrate._lazy import attributes
from magistrate._version import __version__

if TYPE_CHECKING:
    from magistrate.api.agree import agree
    from magistrate.api.audit import aaudit_judge, audit_judge
    from magistrate.api.calibrate import calibrate
    from magistrate.api.compare import compare, samples_needed
    from magistrate.api.evaluate import aevaluate, aresume, aretry, evaluate, resume, retry
    from magistrate.api.generate import agenerate, generate
    from magistrate.api.guard import Blocked, Guarded, guard
    from magistrate.api.improve import improve
    from magistrate.api.judge import ajudge, judge
    from magistrate.api.label import label_queue, label_queues
    from magistrate.api.prevalence import prevalence
    from magistrate.api.run import Run
    from magistrate.constraints import Constraint, Lark, check, constraint
    from magistrate.datasets import Dataset, load
    from magistrate.engines.base import Choice, Engine, Generation, Likelihood, Option, Sampling
    from magistrate.engines.embedded.engine import LocalEngine
    from magistrate.engines.scripted import ScriptedEngine
    from magistrate.errors import MagistrateError
    from magistrate.judges import Candidates, Hallucination, Judge, JudgeInfo, Rubric, classifier
    from magistrate.runs.limits import Limits
    from magistrate.types import Abstention, Claim, Failure, Prompt, Sample, Span, Verdict

_HOMES = {
    "api.agree": ("agree",),
    "api.audit": ("aaudit_judge", "audit_judge"),
    "api.calibrate": ("calibrate",),
    "api.compare": ("compare", "samples_needed"),
    "api.prevalence": ("prevalence",),
    "constraints": ("Constraint", "Lark", "check", "constraint"),
    "datasets": ("Dataset", "load"),
    "engines.base": ("Choice", "Engine", "Generation", "Likelihood", "Option", "Sampling"),
    "engines.embedded.engine": ("LocalEngine",),
    "engines.scripted": ("ScriptedEngine",),
    "errors": ("MagistrateError",),
    "api.evaluate": ("aevaluate", "aresume", "aretry", "evaluate", "resume", "retry"),
    "api.generate": ("agenerate", "generate"),
    "api.guard": ("Blocked", "Guarded", "guard"),
    "judges": ("Candidates", "Hallucination", "Judge", "JudgeInfo", "Rubric", "classifier"),
    "api.improve": ("improve",),
    "api.judge": ("ajudge", "judge"),
    "api.label": ("label_queue", "label_queues"),
    "runs.limits": ("Limits",),
    "api.run": ("Run",),
    "types": ("Abstention", "Claim", "Failure", "Prompt", "Sample", "Span", "Verdict"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Abstention",
    "Blocked",
    "Candidates",
    "Choice",
    "Claim",
    "Constraint",
    "Dataset",
    "Engine",
    "Failure",
    "Generation",
    "Guarded",
    "Hallucination",
    "Judge",
    "JudgeInfo",
    "Lark",
    "Likelihood",
    "Limits",
    "LocalEngine",
    "MagistrateError",
    "Option",
    "Prompt",
    "Rubric",
    "Run",
    "Sample",
    "Sampling",
    "ScriptedEngine",
    "Span",
    "Verdict",
    "__version__",
    "aaudit_judge",
    "aevaluate",
    "agenerate",
    "agree",
    "ajudge",
    "aresume",
    "aretry",
    "audit_judge",
    "calibrate",
    "check",
    "classifier",
    "compare",
    "constraint",
    "evaluate",
    "generate",
    "guard",
    "improve",
    "judge",
    "label_queue",
    "label_queues",
    "load",
    "prevalence",
    "resume",
    "retry",
    "samples_needed",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = attributes(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return __all__
