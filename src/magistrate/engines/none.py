"""The engine for judges that need no model: it loads nothing, and every verb raises an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magistrate.engines.base import (
    GREEDY,
    Capture,
    Choice,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
)
from magistrate.errors import CapabilityError
from magistrate.types import Prompt

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

NO_MODEL = "none"  # the model's name in the results of judges without a model
WINDOW = 1 << 62  # tokens: no prompt is too long


class NoEngine:
    """An engine without a model, called `none`, without fingerprint; every verb raises `CapabilityError`."""

    info = EngineInfo("none", NO_MODEL, "", WINDOW, frozenset())

    async def count(self, prompt: Prompt) -> int:
        raise _nobody()

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        raise _nobody()

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        raise _nobody()

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        raise _nobody()


NONE = NoEngine()


def _nobody() -> CapabilityError:
    return CapabilityError(
        "no model was loaded, because all judges here have kind 'code'; a judge that asks a model must set "
        "kind='llm' in its info"
    )
