"""Where a sample is found, whatever its id holds."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from fastapi import HTTPException, Request

# Ids that a path carries as they are. Browsers and proxies take dots, doubled slashes, backslashes and signs
# that were escaped twice for something else, so every other id goes into the query.
_PLAIN = re.compile(r"[\w~:@+=,-][\w.~:@+=, -]*(/[\w~:@+=,-][\w.~:@+=, -]*)*")


def run_address(run_id: str, **query: Any) -> str:
    """The path and the query of a run's page."""
    return _with_query(_run(run_id), query)


def sample_address(run_id: str, sample_id: str, *, start: str = "", **query: Any) -> str:
    """The path and the query of a sample's page, or of its data where `start` is `/api`.

    >>> sample_address("r", "qs-007"), sample_address("r", "..", judge="rubric")
    ('/runs/r/samples/qs-007', '/runs/r/sample?id=..&judge=rubric')
    """
    run = start + _run(run_id)
    if _PLAIN.fullmatch(sample_id):
        return _with_query(f"{run}/samples/{quote(sample_id, safe='/')}", query)
    named = urlencode({"id": sample_id}, errors="surrogatepass")
    return _with_query(f"{run}/sample?{named}", query)


def _run(run_id: str) -> str:
    return f"/runs/{quote(run_id, safe='', errors='surrogatepass')}"


def _with_query(path: str, query: dict[str, Any]) -> str:
    """The address, with what of the query says something."""
    told = {name: value for name, value in query.items() if value not in (None, "", (), [])}
    if not told:
        return path
    return f"{path}{'&' if '?' in path else '?'}{urlencode(told, doseq=True, errors='surrogatepass')}"


def query_of(request: Request) -> dict[str, list[str]]:
    """The query as it was written by `sample_address`, halves of surrogate pairs included.

    Raises `HTTPException`, 422, where it cannot be read.
    """
    text = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qs(text, keep_blank_values=True, errors="surrogatepass", max_num_fields=50)
    except ValueError:
        raise HTTPException(422, "the address has letters or more fields than it should") from None
