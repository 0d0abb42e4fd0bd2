"""Values as JSON that every reader understands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response
from pydantic import BaseModel

from magistrate.report.export import json_values


class Refusal(BaseModel):
    """Why there is no answer, in words."""

    detail: str


_WHY = {
    404: "There is nothing of this name",
    409: "It is being judged at the moment",
    422: "What is asked cannot be read, or cannot be had",
    503: "The store cannot be read or written at the moment",
}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of the statuses with which an operation is refused."""
    return {code: {"model": Refusal, "description": _WHY[code]} for code in codes}


def told(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """ASCII, so that halves of surrogate pairs arrive; a number that JSON has no word for is a text."""
    text = json.dumps(json_values(value), allow_nan=False)
    return Response(text, status, dict(headers or {}), media_type="application/json")
