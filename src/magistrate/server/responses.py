"""Errors as JSON for programs and as a page for people, and values as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from magistrate.errors import MagistrateError, SpecError, StoreError
from magistrate.report.export import json_values
from magistrate.server.rendering import page
from magistrate.server.security.headers import otlp_refusal
from magistrate.watch.otlp import PATHS, OtlpError


class Refusal(BaseModel):
    """Why there is no answer, in words."""

    detail: str


NOWHERE = "there is nothing at this address"
_WHY = {
    404: "There is nothing of this name",
    409: "It is being judged at the moment",
    422: "What is asked cannot be read, or cannot be had",
    503: "The store cannot be read or written at the moment",
}


def error_responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The entries of an operation in the OpenAPI document for these error statuses."""
    return {code: {"model": Refusal, "description": _WHY[code]} for code in codes}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response in ASCII, so that lone surrogates survive; NaN and infinities are written as texts."""
    text = json.dumps(json_values(value), allow_nan=False)
    return Response(text, status, dict(headers or {}), media_type="application/json")


async def error_response(request: Request, error: Exception) -> Response:
    """The response for an error: JSON below `/api/`, OTLP's for its clients, else a page.

    Messages hold nothing secret.
    """
    status, message = status_of(error), _message(error)
    if request.url.path.startswith("/api/"):
        response: Response = JSONResponse({"detail": message}, status)
    elif request.url.path in PATHS:
        response = otlp_refusal(request.scope, status, message)
    else:
        response = page(request, "error.html", status=status, told=message, code=status)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def status_of(error: Exception) -> int:
    """The HTTP status for an error."""
    if isinstance(error, SpecError):
        return 404
    if isinstance(error, StoreError):
        return 503
    if isinstance(error, OtlpError):
        return error.status
    if isinstance(error, RequestValidationError | MagistrateError):
        return 422
    return getattr(error, "status_code", 500)


def _message(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        found = error.errors()
        return "; ".join(f"{_field(each['loc'])}: {each['msg']}" for each in found[:5])
    if isinstance(error, HTTPException):
        return NOWHERE if (error.status_code, error.detail) == (404, "Not Found") else str(error.detail)
    return str(error) if isinstance(error, MagistrateError) else "the server failed; its log says how"


def _field(where: Sequence[str | int]) -> str:
    """The field of a request that was wrong."""
    return ".".join(map(str, where[1:])) or f"the {where[0]}"


@contextmanager
def answering_with(kind: type[MagistrateError], status: int) -> Iterator[None]:
    """Give errors of this kind this status; the message stays."""
    try:
        yield
    except kind as error:
        raise HTTPException(status, str(error)) from error
