"""The audit log for admins, as a page and as JSON: who changed what and when."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from magistrate.errors import InputError
from magistrate.server.responses import answering_with, error_responses, json_response, page
from magistrate.server.state import RequestStore
from magistrate.store.audit import AuditEntry, parse_moment

AT_ONCE = 100

router = APIRouter()
api = APIRouter(tags=["audit"])


@dataclass(frozen=True, slots=True)
class AuditView:
    """A part of the audit log, newest first. Pass `older` as `before` for the next part."""

    entries: list[AuditEntry]
    older: int | None


def audit_view(
    store: RequestStore,
    user: Annotated[str, Query(max_length=100)] = "",
    since: Annotated[str, Query(max_length=40, description="a date or a time, as in ISO 8601")] = "",
    before: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
) -> AuditView:
    """Return the entries that the query asks for."""
    with answering_with(InputError, 422):
        moment = parse_moment(since) if since else None
    found = store.audit.entries(limit=AT_ONCE + 1, who=user or None, since=moment, before=before)
    older = found[AT_ONCE - 1].id if len(found) > AT_ONCE else None
    return AuditView(found[:AT_ONCE], older)


@router.get("/audit")
def audit_page(request: Request, view: Annotated[AuditView, Depends(audit_view)]) -> Response:
    """Show the newest entries, of everybody or of one user."""
    chosen = {name: request.query_params.get(name, "") for name in ("user", "since")}
    return page(request, "audit.html", view=view, chosen=chosen)


@api.get("/audit", response_model=AuditView, responses=error_responses(422, 503))
def audit(view: Annotated[AuditView, Depends(audit_view)]) -> Response:
    """Who changed what and when, newest first. Pass `older` as `before` to continue."""
    return json_response(asdict(view))
