"""What went wrong, as data for programs and as a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from magistrate.errors import MagistrateError, SpecError, StoreError
from magistrate.server.rendering import page

NOWHERE = "there is nothing at this address"


async def refused(request: Request, error: Exception) -> Response:
    """What went wrong, as data for programs and as a page for people; nothing of it is secret."""
    status, told = status_of(error), _told(error)
    if request.url.path.startswith("/api/"):
        response: Response = JSONResponse({"detail": told}, status)
    else:
        response = page(request, "error.html", status=status, told=told, code=status)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def status_of(error: Exception) -> int:
    """The status of the answer that an error is told with."""
    if isinstance(error, SpecError):
        return 404
    if isinstance(error, StoreError):
        return 503
    if isinstance(error, RequestValidationError | MagistrateError):
        return 422
    return getattr(error, "status_code", 500)


def _told(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        found = error.errors()
        return "; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in found[:5])
    if isinstance(error, HTTPException):
        return NOWHERE if (error.status_code, error.detail) == (404, "Not Found") else str(error.detail)
    return str(error) if isinstance(error, MagistrateError) else "the server failed; its log says how"


def _place(where: Sequence[str | int]) -> str:
    """What of a request was wrong."""
    return ".".join(map(str, where[1:])) or f"the {where[0]}"


@contextmanager
def refusing(kind: type[MagistrateError], status: int) -> Iterator[None]:
    """Let an error of this kind be answered with this status, in its own words."""
    try:
        yield
    except kind as error:
        raise HTTPException(status, str(error)) from error
