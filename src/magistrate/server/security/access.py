"""Lets in whoever has the token, or anybody on this machine where there is none."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from magistrate.server.security.answers import from_script, reads_html, refusal
from magistrate.server.security.attempts import Attempts
from magistrate.server.security.headers import STATIC
from magistrate.server.security.login import CHALLENGE, Login, login_path
from magistrate.server.security.origins import SAFE, is_forged
from magistrate.server.security.sessions import Sessions
from magistrate.server.settings import Settings

OPEN = ("/healthz", "/readyz")

_NEEDED = "this server needs its token: send 'Authorization: Bearer TOKEN', or sign in at /login"
_WRONG = "that is not the token of this server"
_FORGED = "another site made this request in your browser; open the page itself and do it there"


class Access:
    """Asks every request but those for health and static files who makes it.

    A right bearer token is enough. Without one a request has to come from this server's own pages, where it
    changes something (see `origins`), and to bring the cookie of a session if there is a token. What is wrong
    is told apart: 401 no or a wrong token, 403 another site, 429 too many wrong tokens.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        sessions: Sessions,
        clock: Callable[[], float],
    ) -> None:
        self._app = app
        self._token = settings.token
        self._login = Login(settings, sessions, Attempts(settings.token, clock))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in SAFE and _is_open(scope["path"])):
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive)
        except ClientDisconnect:
            return  # nobody is left to hear an answer, or `Bodies` gives its own
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """What is said in place of the application; None where it is asked."""
        bearer = _bearer(scope)
        if self._token is not None and bearer is not None:
            return await self._looked_at(scope, bearer)
        if is_forged(scope):
            return refusal(scope, 403, _FORGED)
        answer = await self._login.answer(Request(scope, receive))
        if answer is not None or self._token is None or self._login.is_signed_in(scope):
            return answer
        return _stranger(scope)

    async def _looked_at(self, scope: Scope, token: bytes) -> Response | None:
        answer = await self._login.check(scope, token)
        if answer == "right":
            return None
        if answer == "later":
            wait = self._login.wait(scope)
            told = f"there were too many wrong tokens; try again in {wait} seconds"
            return refusal(scope, 429, told, {"retry-after": str(wait)})
        return refusal(scope, 401, _WRONG, {"www-authenticate": CHALLENGE})


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)


def _bearer(scope: Scope) -> bytes | None:
    """The token of the `Authorization` header; None where there is none, empty where there are several."""
    given = Headers(scope=scope).getlist("authorization")
    parts = [each.strip().partition(" ") for each in given]
    tokens = [rest.strip() for scheme, _, rest in parts if scheme.lower() == "bearer"]
    if not tokens:
        return None
    return tokens[0].encode("latin-1") if len(given) == 1 else b""


def _stranger(scope: Scope) -> Response:
    """Where somebody without a token is sent: to the form, if it is a person."""
    if reads_html(scope):
        is_page = scope["method"] in SAFE
        return RedirectResponse(login_path(_asked(scope) if is_page else "/"), 303)
    headers = {"www-authenticate": CHALLENGE}
    if from_script(scope):
        headers["hx-redirect"] = login_path(_shown(scope))
    return refusal(scope, 401, _NEEDED, headers)


def _asked(scope: Scope) -> str:
    """The path of a request with its query, as it was written."""
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _shown(scope: Scope) -> str:
    """The path of the page from which a script asks."""
    try:
        address = urlsplit(Headers(scope=scope).get("hx-current-url", ""))
    except ValueError:
        return "/"
    return address._replace(scheme="", netloc="").geturl()
