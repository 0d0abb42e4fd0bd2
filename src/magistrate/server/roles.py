"""Who a visitor is, and the least role that each route takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fastapi import HTTPException, Request
from starlette.types import Scope

from magistrate.store.users import ROLES, Role, User

FindUser = Callable[[bytes], User | None]
"""Finds the user whose token has this digest. Blocks, and raises `StoreError`."""

OTHER = "other"
_KEY = "magistrate.visitor"

# A route that is missing here takes `admin`. None is for everybody, without a token. The routes of `ingest`
# are for that role and `admin` alone: who reads or labels sends no spans.
LEAST_ROLE: Mapping[str, Role | None] = {
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /static/{name}": None,
    # What programs send.
    "POST /v1/traces": "ingest",
    "POST /v1/logs": "ingest",
    # What is read.
    "GET /": "view",
    "GET /runs/{run_id}": "view",
    "GET /runs/{run_id}/find": "view",
    "GET /runs/{run_id}/download": "view",
    "GET /datasets": "view",
    "GET /datasets/data": "view",
    "GET /runs/{run_id}/sample": "view",
    "GET /runs/{run_id}/samples/{sample_id}": "view",
    "GET /live/runs": "view",
    "GET /live/runs/{run_id}": "view",
    "GET /compare": "view",
    "GET /judges": "view",
    "GET /judges/{name}": "view",
    "GET /models": "view",
    "GET /watch": "view",
    "GET /watch/trace": "view",
    "GET /watch/traces": "view",
    "GET /watch/rules": "view",
    "GET /watch/rule": "view",
    "GET /label": "view",
    "GET /label/{name}": "view",
    "GET /metrics": "view",
    "GET /api/openapi.json": "view",
    "GET /api/runs": "view",
    "GET /api/runs/{run_id}": "view",
    "GET /api/runs/{run_id}/judges/{judge}/figures": "view",
    "GET /api/runs/{run_id}/judges/{judge}/outcomes": "view",
    "GET /api/runs/{run_id}/sample": "view",
    "GET /api/runs/{run_id}/samples/{sample_id}": "view",
    "GET /api/compare": "view",
    "GET /api/judges": "view",
    "GET /api/judges/{name}": "view",
    "GET /api/models": "view",
    "GET /api/watch": "view",
    "GET /api/watch/trace": "view",
    "GET /api/watch/traces": "view",
    "GET /api/labels": "view",
    "GET /api/labels/{name}": "view",
    "GET /api/labels/{name}/export": "view",
    # Labels. The pages of items lease them to the visitor, so they are no mere reading.
    "POST /label/{name}/annotator": "label",
    "GET /label/{name}/next": "label",
    "GET /label/{name}/{number}": "label",
    "POST /label/{name}/{number}": "label",
    "POST /label/{name}/{number}/comments": "label",
    "POST /label/{name}/undo": "label",
    "GET /label/{name}/conflicts": "label",
    "GET /label/{name}/conflicts/{number}": "label",
    "POST /label/{name}/conflicts/{number}": "label",
    "POST /api/labels/{name}/next": "label",
    "POST /api/labels/{name}/items/{number}": "label",
    "GET /api/labels/{name}/items/{number}/comments": "label",
    "POST /api/labels/{name}/items/{number}/comments": "label",
    # One sample judged, which costs time and perhaps money, but stores nothing.
    "GET /try": "label",
    "POST /try": "label",
    "GET /try/{id}": "label",
    "POST /try/{id}/stop": "label",
    "GET /live/tries/{id}": "label",
    "POST /api/judge": "label",
    "POST /api/guard": "label",
    # What changes or deletes anything else, and who did it.
    "POST /runs/{run_id}/rename": "admin",
    "POST /runs/{run_id}/tags": "admin",
    "GET /runs/{run_id}/delete": "admin",
    "POST /runs/{run_id}/delete": "admin",
    "DELETE /api/runs/{run_id}": "admin",
    "POST /watch/trace/keep": "admin",
    "POST /watch/rule": "admin",
    "GET /start": "admin",
    "POST /start": "admin",
    "GET /start/{id}": "admin",
    "POST /start/{id}/stop": "admin",
    "GET /audit": "admin",
    "GET /api/audit": "admin",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who makes a request. `who` names them in the audit log; `user` is None without a user's token."""

    who: str
    role: Role
    user: str | None = None

    def may(self, route: str) -> bool:
        """Return whether their role suffices for a route, such as `GET /runs/{run_id}`."""
        least = LEAST_ROLE.get(route, "admin")
        if least is None or self.role in (least, "admin"):
            return True
        return "ingest" not in (least, self.role) and ROLES.index(self.role) > ROLES.index(least)


WITH_TOKEN = Visitor("(server token)", "admin")
WITHOUT_TOKEN = Visitor("(no token)", "admin")
"""Anybody on this machine, if the server has no token."""


def visitor_as(user: User) -> Visitor:
    """Return the visitor who has a user's token."""
    return Visitor(user.name, user.role, user.name)


def set_visitor(scope: Scope, visitor: Visitor) -> None:
    """Note who makes a request."""
    scope[_KEY] = visitor


def visitor_of(request: Request) -> Visitor:
    """Return who makes a request. An application that is not protected has only `WITHOUT_TOKEN`."""
    found: Visitor = request.scope.get(_KEY, WITHOUT_TOKEN)
    return found


async def check_role(request: Request) -> None:
    """Refuse the request with status 403 if the visitor's role does not suffice for its route."""
    route, visitor = f"{request.method} {route_of(request.scope)}", visitor_of(request)
    if not visitor.may(route):
        raise HTTPException(403, refusal_of(visitor, route))


def refusal_of(visitor: Visitor, route: str) -> str:
    """Explain why a visitor may not use a route."""
    needed = LEAST_ROLE.get(route, "admin")
    return f"this takes the role {needed}, and {visitor.who} has the role {visitor.role}"


def route_of(scope: Scope) -> str:
    """Return the template of the matched route, such as `/runs/{run}`; `other` if none matched."""
    # If a router was included with a prefix, FastAPI has the whole template, but the route only its end.
    context = scope.get("fastapi", {}).get("effective_route_context")
    for each in (context, scope.get("route")):
        if template := getattr(each, "path_format", None):
            return str(template)
    return OTHER
