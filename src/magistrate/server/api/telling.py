"""Values as JSON that every reader understands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response

from magistrate.report.data import json_values


def told(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """ASCII, so that halves of surrogate pairs arrive; a number that JSON has no word for is a text."""
    text = json.dumps(json_values(value), allow_nan=False)
    return Response(text, status, dict(headers or {}), media_type="application/json")
