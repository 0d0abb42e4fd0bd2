"""Signing in with the token, by a form; the token itself is in no cookie and in no URL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from magistrate.server.rendering import page
from magistrate.server.security.answers import refusal
from magistrate.server.security.attempts import Answer, Attempts, client_of
from magistrate.server.security.sessions import Sessions
from magistrate.server.settings import Settings

LOGIN, LOGOUT = "/login", "/logout"

CHALLENGE = 'Bearer realm="magistrate"'

_LOCAL = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]{0,2000}")
_FORM = "application/x-www-form-urlencoded"


class Login:
    """The form, and the sessions that it begins and ends.

    Who is signed in never waits for others' guesses.
    """

    def __init__(self, settings: Settings, sessions: Sessions, attempts: Attempts) -> None:
        self._settings = settings
        self._sessions = sessions
        self._attempts = attempts
        # Cookies do not tell ports apart, and several servers may run on one machine.
        self._cookie = f"magistrate_session_{settings.port}"

    def is_signed_in(self, scope: Scope) -> bool:
        """Does a cookie of the request name a session?"""
        return any(self._sessions.held(each) for each in self._ids(scope))

    async def answer(self, request: Request) -> Response | None:
        """What there is at the two paths of signing in and out; None elsewhere."""
        path, method = request.url.path, request.method
        if path == LOGIN and method in ("GET", "HEAD"):
            return self._form(request)
        if path == LOGIN and method == "POST":
            return await self._enter(request)
        if path == LOGOUT and method == "POST":
            return self._leave(request)
        if path not in (LOGIN, LOGOUT):
            return None
        allowed = "GET, HEAD, POST" if path == LOGIN else "POST"
        return refusal(request.scope, 405, f"{path} takes {allowed}", {"allow": allowed})

    async def check(self, scope: Scope, token: bytes) -> Answer:
        """What a token is that came with a request, once it may be looked at."""
        return await self._attempts.check(client_of(scope), token)

    def wait(self, scope: Scope) -> int:
        """Seconds, at least 1, after which a token of this request's address is worth showing."""
        return max(1, ceil(self._attempts.wait(client_of(scope))))

    def _form(self, request: Request) -> Response:
        following = local_path(request.query_params.get("next", ""))
        if self._settings.token is None or self.is_signed_in(request.scope):
            return RedirectResponse(following, 303)
        return page(request, "login.html", next=following, error=None)

    async def _enter(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            return refusal(request.scope, 415, f"send a form, as {_FORM}")
        try:
            fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
        except ValueError:
            return refusal(request.scope, 400, "send a form with the fields token and next")
        following = local_path(fields.get("next", [""])[0])
        if self._settings.token is None:
            return RedirectResponse(following, 303)
        given = fields.get("token", [""])[0].strip().encode("utf-8", "replace")
        answer = await self.check(request.scope, given)
        if answer == "right":
            return self._signed_in(request, following)
        if answer == "later":
            wait = self.wait(request.scope)
            told = f"There were too many wrong tokens. Try again in {wait} seconds."
            response = page(request, "login.html", status=429, next=following, error=told)
            response.headers["retry-after"] = str(wait)
            return response
        told = "That is not the token of this server. It was given or printed where the server was started."
        response = page(request, "login.html", status=401, next=following, error=told)
        response.headers["www-authenticate"] = CHALLENGE
        return response

    def _signed_in(self, request: Request, following: str) -> Response:
        for each in self._ids(request.scope):
            self._sessions.end(each)
        response = RedirectResponse(following, 303)
        response.set_cookie(
            self._cookie,
            self._sessions.begin(),
            max_age=int(self._sessions.seconds),
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )
        return response

    def _leave(self, request: Request) -> Response:
        for each in self._ids(request.scope):
            self._sessions.end(each)
        response = RedirectResponse("/" if self._settings.token is None else LOGIN, 303)
        response.delete_cookie(self._cookie, httponly=True, samesite="strict")
        return response

    def _ids(self, scope: Scope) -> Iterator[str]:
        """What cookies of our name hold: another port of this host may have set one of that name, too."""
        for header in Headers(scope=scope).getlist("cookie"):
            for cookie in header.split(";"):
                name, _, value = cookie.strip().partition("=")
                if name == self._cookie:
                    yield value


def local_path(text: str) -> str:
    """`text` if it is a path on this server that one can be sent to, else `/`.

    >>> [local_path(text) for text in ("/runs?tag=a", "//evil.example", "https://evil.example", "/logout")]
    ['/runs?tag=a', '/', '/', '/']
    """
    path = re.split(r"[?#]", text, maxsplit=1)[0]
    return text if _LOCAL.fullmatch(text) and path not in (LOGIN, LOGOUT) else "/"


def login_path(following: str) -> str:
    """Where to sign in before one goes on to a path."""
    checked = local_path(following)
    return LOGIN if checked == "/" else f"{LOGIN}?{urlencode({'next': checked})}"
