"""Style sheets and scripts: files of the package, at addresses that name what is in them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from magistrate.report.html.page import text_of

router = APIRouter()

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
YEAR = 31_536_000


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent; `version` tells it from what it was before."""

    body: bytes
    kind: str
    version: str


@cache
def assets() -> dict[str, Asset]:
    """Every asset by its name; the one style sheet is that of reports with those of the pages after it."""
    folder = files("magistrate.server").joinpath("static")
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    vendored = folder.joinpath("vendor")
    found |= {each.name: each.read_bytes() for each in vendored.iterdir()}
    sheets = [found.pop(name) for name in sorted(found) if name.endswith(".css")]
    found["style.css"] = b"\n".join([text_of("style.css").encode(), *sheets])
    return {
        name: Asset(body, KINDS[name.rpartition(".")[2]], hashlib.sha256(body).hexdigest()[:16])
        for name, body in found.items()
        if name.rpartition(".")[2] in KINDS
    }


def address(name: str) -> str:
    """Where a page finds an asset."""
    return f"/static/{name}?v={assets()[name].version}"


@router.get("/static/{name}", include_in_schema=False)
async def asset(name: str, request: Request) -> Response:
    """One asset, kept by browsers for a year where they asked for this very version."""
    found = assets().get(name)
    if found is None:
        return Response("there is no such file", 404, media_type="text/plain")
    current = request.query_params.get("v") == found.version
    caching = f"public, max-age={YEAR}, immutable" if current else "no-cache"
    return Response(found.body, media_type=found.kind, headers={"Cache-Control": caching})
