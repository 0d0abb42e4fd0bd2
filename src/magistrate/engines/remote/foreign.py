"""Foreign bytes as values: what servers answer, read as what it may be at most."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magistrate.errors import InvalidOutput

Count = Annotated[int, Field(ge=0, le=10**9)]
Kind = TypeVar("Kind", bound=BaseModel)


def is_number(value: float) -> float:
    """`value`, which may be infinite. Raises `ValueError` for what is no number at all."""
    if math.isnan(value):
        raise ValueError("NaN is no number")
    return value


class Foreign(BaseModel):
    """Something a server wrote; what is not named here is not looked at."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def read(kind: type[Kind], body: Any, what: str) -> Kind:
    """`body` as a value of `kind`. Raises `InvalidOutput`, which says at what place it is something else."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(each) for each in first["loc"]) or "the answer"
        raise InvalidOutput(f"the server's answer is no {what}: {place}: {first['msg']}") from None
