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

from magistrate import logs
from magistrate.server.rendering import page
from magistrate.server.security.answers import refusal
from magistrate.server.security.attempts import Attempts, client_of
from magistrate.server.security.sessions import Sessions, same
from magistrate.server.settings import Settings

LOGIN, LOGOUT = "/login", "/logout"

CHALLENGE = 'Bearer realm="magistrate"'

_LOCAL = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]{0,2000}")
_FORM = "application/x-www-form-urlencoded"
_log = logs.get("server")


class Login:
    """The form, and the sessions that it begins and ends.

    A right token is taken at all times, also where its address showed too many wrong ones: else anybody
    behind the same proxy could lock the owner out for ever. The pauses keep guessing quiet; what makes it
    hopeless is the length that a token must have.
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

    def failed(self, scope: Scope) -> float:
        """Note a wrong token; seconds that its address has to wait already, 0 for none."""
        client = client_of(scope)
        waiting = self._attempts.pause(client)
        if not waiting and (pause := self._attempts.failed(client)):
            _log.warning("server.wrong_tokens", client=client, pause_seconds=pause)
        return waiting

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
        token = self._settings.token
        if token is None:
            return RedirectResponse(following, 303)
        if same(fields.get("token", [""])[0].strip().encode("utf-8", "replace"), token):
            return self._signed_in(request, following)
        if waiting := self.failed(request.scope):
            told = f"There were too many wrong tokens. Try again in {ceil(waiting)} seconds."
            response = page(request, "login.html", status=429, next=following, error=told)
            response.headers["retry-after"] = str(ceil(waiting))
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
