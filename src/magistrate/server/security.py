"""Checks every request before it reaches the application, and sets headers on every response.

In the order in which a request passes them:

- `SecurityHeaders` and `HostCheck`: the security headers of every response, and only known host names;
- `limits.BodyLimits`: no body that is too long or too slow;
- `Access`: only with a token or a session, and no request made by another site. What a visitor may then
  do depends on their role, see `roles`.

All are plain ASGI around the whole application, so they also apply to errors of the framework.

Requests made by another site: a browser sends its cookies along with requests that other sites cause, and
without a token a server on 127.0.0.1 accepts any request. So a hostile page could change things in the
visitor's name (cross-site request forgery). A page cannot set two headers that the browser adds itself:
`Sec-Fetch-Site` (W3C, Fetch Metadata Request Headers) and `Origin`. OWASP's cheat sheet recommends checking
them; `SameSite` cookies alone do not distinguish the ports of one host. Browsers send the first only over
HTTPS and to loopback addresses, so elsewhere the second decides. A request with neither does not come from
a browser and passes, unless it has a cookie, as from an old browser. A bearer token needs no such check,
since no browser adds one itself.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from math import ceil
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magistrate.errors import SpecError, StoreError
from magistrate.server.limits import BodyLimits, TokenAttempts, client_of
from magistrate.server.responses import from_script, page, reads_html, refusal
from magistrate.server.roles import WITHOUT_TOKEN, FindUser, Visitor, set_visitor
from magistrate.server.settings import Settings, host_name, is_address, is_loopback
from magistrate.store.users import digest

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
STATIC = "/static/"
HASH_NAME = "v"  # query field of a static file's URL with the hash of its content

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: forms would then send `Origin: null`, and where there is no HTTPS a browser sends
    # nothing else to distinguish our own forms from another site's. No other site learns more.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class SecurityHeaders:
    """Adds the security headers to every response that lacks them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", _caching(scope, message["status"]))
            await send(message)

        await self._app(scope, receive, with_headers)


def _caching(scope: Scope, status: int) -> str:
    """Return `Cache-Control`: a year for static files with a hash in the address; pages are not stored."""
    if not scope["path"].startswith(STATIC) or status not in (200, 304):
        return "no-store"
    named = parse_qs(scope["query_string"].decode("latin-1")).get(HASH_NAME)
    return "public, max-age=31536000, immutable" if named else "no-cache"


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(:[0-9]{1,5})?")


class HostCheck:
    """Accepts requests whose `Host` is a loopback name, the server's own name or an allowed one.

    A page on `evil.example` may make that name point to 127.0.0.1 a moment later (DNS rebinding); the
    browser then treats this server's responses as the page's own. The `Host` header still contains that
    name. A server that is reachable from other machines also accepts any address, since addresses cannot be
    rebound, and this machine's name.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._any_address = not is_loopback(settings.host)
        names = {"localhost", settings.host, *settings.allowed_hosts}
        if self._any_address:
            names.add(socket.gethostname().lower())
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # no websockets are served
        else:
            given = Headers(scope=scope).getlist("host")
            host = _named(given[0]) if len(given) == 1 else None
            if host is None:
                message = "a request needs one Host header, with a name or an address"
                await refusal(scope, 400, message)(scope, receive, send)
            elif not self._is_ours(host):
                message = (
                    f"this server does not accept the host {host}; to allow it, start the server with "
                    f"--allow-host {host}"
                )
                await refusal(scope, 421, message)(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        return host in self._names or is_loopback(host) or (self._any_address and is_address(host))


def _named(header: str) -> str | None:
    """Return the host in a `Host` header, without its port; None if it is malformed."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    try:
        return host_name(match[1])
    except SpecError:
        return None


MOST_SESSIONS = 1_000
LOGIN, LOGOUT = "/login", "/logout"
CHALLENGE = 'Bearer realm="magistrate"'
OPEN = ("/healthz", "/readyz")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_OURS = ("same-origin", "none")  # none: the user typed the address or used a bookmark
_PORTS = {"http": 80, "https": 443}
_LOCAL = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]{0,2000}")
_FORM = "application/x-www-form-urlencoded"

_NEEDED = "this server needs a token: send 'Authorization: Bearer TOKEN', or sign in at /login"
_WRONG = "this is not the token of this server, nor of a user"
_FORGED = "another site made this request in your browser; open the page directly and repeat it there"


# --- sign-in --------------------------------------------------------------------------------------


class Sessions:
    """Active sessions: at most `MOST_SESSIONS` random ids in memory, each for `seconds` of `clock`.

    Only hashes of ids are kept, so the time of a lookup reveals nothing about other ids. Each id is bound
    to the digest of the token that it was given for, so that it ends with that token.
    """

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self.seconds = seconds
        self._clock = clock
        self._active: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()  # end and token, oldest first

    def begin(self, token: bytes) -> str:
        """Create a session for the token with this digest and return its id.

        If there are too many, the oldest one of the token that has most ends, so that nobody can end those of
        others.
        """
        while self._active and next(iter(self._active.values()))[0] <= self._clock():
            self._active.popitem(last=False)
        if len(self._active) >= MOST_SESSIONS:
            ((most, _),) = Counter(of for _, of in self._active.values()).most_common(1)
            del self._active[next(key for key, (_, of) in self._active.items() if of == most)]
        made = secrets.token_urlsafe(32)
        self._active[_key(made)] = self._clock() + self.seconds, token
        return made

    def token_of(self, given: str) -> bytes | None:
        """Return the digest of the token of the session with this id; None if there is none or it ended."""
        ends, token = self._active.get(_key(given), (float("-inf"), b""))
        return token if ends > self._clock() else None

    def end(self, given: str) -> None:
        """End that session, if it exists."""
        self._active.pop(_key(given), None)


def _key(given: str) -> bytes:
    return digest(given.encode("utf-8", "surrogatepass"))


class Login:
    """The login form, and the sessions that it begins and ends.

    Visitors who are signed in never wait because of others who guess tokens.
    """

    def __init__(self, settings: Settings, sessions: Sessions, attempts: TokenAttempts) -> None:
        self._settings = settings
        self._sessions = sessions
        self._attempts = attempts
        # Cookies do not distinguish ports, and several servers may run on one machine.
        self._cookie = f"magistrate_session_{settings.port}"

    async def visitor(self, scope: Scope) -> Visitor | None:
        """Return who is signed in by a cookie of the request, with the role that they have now."""
        for each in self._ids(scope):
            token = self._sessions.token_of(each)
            if token is not None and (found := await self._attempts.visitor(token)) is not None:
                return found
        return None

    async def answer(self, request: Request) -> Response | None:
        """Return the response at the two paths for signing in and out; None for other paths."""
        path, method = request.url.path, request.method
        if path == LOGIN and method in ("GET", "HEAD"):
            return await self._form(request)
        if path == LOGIN and method == "POST":
            return await self._enter(request)
        if path == LOGOUT and method == "POST":
            return self._leave(request)
        if path not in (LOGIN, LOGOUT):
            return None
        allowed = "GET, HEAD, POST" if path == LOGIN else "POST"
        return refusal(request.scope, 405, f"{path} takes {allowed}", {"allow": allowed})

    def wait(self, scope: Scope) -> int:
        """Return the seconds, at least 1, after which this address may try a token again."""
        return max(1, ceil(self._attempts.wait(client_of(scope))))

    async def _form(self, request: Request) -> Response:
        following = local_path(request.query_params.get("next", ""))
        if self._settings.token is None or await self.visitor(request.scope) is not None:
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
        answer = await self._attempts.check(client_of(request.scope), given)
        if isinstance(answer, Visitor):
            if answer.may("GET /"):
                return self._signed_in(request, following, digest(given))
            message = "This token is for a program that sends spans. It opens no page."
            return page(request, "login.html", status=403, next=following, error=message)
        if answer == "later":
            wait = self.wait(request.scope)
            message = f"There were too many wrong tokens. Try again in {wait} seconds."
            response = page(request, "login.html", status=429, next=following, error=message)
            response.headers["retry-after"] = str(wait)
            return response
        message = (
            "This is neither the token of this server nor that of a user. They were printed when the server "
            "was started and when the user was added."
        )
        response = page(request, "login.html", status=401, next=following, error=message)
        response.headers["www-authenticate"] = CHALLENGE
        return response

    def _signed_in(self, request: Request, following: str, token: bytes) -> Response:
        for each in self._ids(request.scope):
            self._sessions.end(each)
        response = RedirectResponse(following, 303)
        response.set_cookie(
            self._cookie,
            self._sessions.begin(token),
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
        """Yield the values of our cookies; another port of this host may have set one of the same name."""
        for header in Headers(scope=scope).getlist("cookie"):
            for cookie in header.split(";"):
                name, _, value = cookie.strip().partition("=")
                if name == self._cookie:
                    yield value


def local_path(text: str) -> str:
    """Return `text` if it is a path on this server to go to after signing in, else `/`.

    >>> [local_path(text) for text in ("/runs?tag=a", "//evil.example", "https://evil.example", "/logout")]
    ['/runs?tag=a', '/', '/', '/']
    """
    path = re.split(r"[?#]", text, maxsplit=1)[0]
    return text if _LOCAL.fullmatch(text) and path not in (LOGIN, LOGOUT) else "/"


def login_path(following: str) -> str:
    """Return the address of the login form that leads to a path."""
    checked = local_path(following)
    return LOGIN if checked == "/" else f"{LOGIN}?{urlencode({'next': checked})}"


# --- access ---------------------------------------------------------------------------------------


def is_forged(scope: Scope) -> bool:
    """Return whether another site may have made this request. Links to pages may come from anywhere."""
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")
    if scope["method"] in SAFE:
        return site is not None and site not in _OURS and not _is_visit(headers)
    if site is not None:
        return site not in _OURS
    origin = headers.get("origin")
    if origin is not None:
        return not _is_same(origin, headers.get("host", ""))
    return "cookie" in headers


def _is_visit(headers: Headers) -> bool:
    """Return whether the request opens a page in a window, rather than loading a part of another page."""
    shown = headers.get("sec-fetch-dest", "document") == "document"
    return shown and headers.get("sec-fetch-mode", "navigate") == "navigate"


def _is_same(origin: str, host: str) -> bool:
    """Return whether `Host` matches the origin, ignoring the scheme, which a proxy may have changed."""
    try:
        theirs = urlsplit(origin)
        ours = urlsplit(f"//{host}")
        default = _PORTS.get(theirs.scheme)
        ports = (theirs.port or default, ours.port or default)
    except ValueError:
        return False
    return default is not None and theirs.hostname == ours.hostname and ports[0] == ports[1]


class Access:
    """Accepts requests with a token or a session; if the server has no token, anybody on this machine.

    Health checks and static files are open. A correct bearer token is sufficient. Without one, a request
    that changes something must come from this server's own pages, and if the server has a token every
    request needs a session cookie. Refusals: 401 for no or a wrong token, 403 for another site, 429 for too
    many wrong tokens. The application finds who it is with `roles.visitor_of`.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        sessions: Sessions,
        clock: Callable[[], float],
        find_user: FindUser | None,
    ) -> None:
        self._app = app
        self._is_free = settings.token is None
        self._attempts = TokenAttempts(settings.token, clock, find_user)
        self._login = Login(settings, sessions, self._attempts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"] in SAFE and _is_open(scope["path"])):
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive)
        except ClientDisconnect:
            return  # the client is gone, or `BodyLimits` answers
        except StoreError as error:  # a user's token cannot be looked up
            answer = refusal(scope, 503, str(error))
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Return the response that replaces the application's; None if the request may pass."""
        bearer = _bearer(scope)
        if not self._is_free and bearer is not None:
            return await self._refused_token(scope, bearer)
        if is_forged(scope):
            return refusal(scope, 403, _FORGED)
        answer = await self._login.answer(Request(scope, receive))
        if answer is not None:
            return answer
        if not self._is_free:
            visitor = await self._login.visitor(scope)
        else:  # whoever shows no user's token may do everything
            user = None if bearer is None else await self._attempts.visitor(digest(bearer))
            visitor = user or WITHOUT_TOKEN
        if visitor is None:
            return _sign_in_first(scope)
        set_visitor(scope, visitor)
        return None

    async def _refused_token(self, scope: Scope, token: bytes) -> Response | None:
        answer = await self._attempts.check(client_of(scope), token)
        if isinstance(answer, Visitor):
            set_visitor(scope, answer)
            return None
        if answer == "later":
            wait = self._login.wait(scope)
            message = f"there were too many wrong tokens; try again in {wait} seconds"
            return refusal(scope, 429, message, {"retry-after": str(wait)})
        return refusal(scope, 401, _WRONG, {"www-authenticate": CHALLENGE})


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(STATIC)


def _bearer(scope: Scope) -> bytes | None:
    """Return the token of the `Authorization` header; None if there is none, empty if there are several."""
    given = Headers(scope=scope).getlist("authorization")
    parts = [each.strip().partition(" ") for each in given]
    tokens = [rest.strip() for scheme, _, rest in parts if scheme.lower() == "bearer"]
    if not tokens:
        return None
    return tokens[0].encode("latin-1") if len(given) == 1 else b""


def _sign_in_first(scope: Scope) -> Response:
    """Return the response for a visitor without a token: the login form for a browser, else 401."""
    if reads_html(scope):
        is_page = scope["method"] in SAFE
        return RedirectResponse(login_path(_asked(scope) if is_page else "/"), 303)
    headers = {"www-authenticate": CHALLENGE}
    if from_script(scope):
        headers["hx-redirect"] = login_path(_shown(scope))
    return refusal(scope, 401, _NEEDED, headers)


def _asked(scope: Scope) -> str:
    """Return the path and the query of a request, as they were sent."""
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _shown(scope: Scope) -> str:
    """Return the path of the page from which a script sent the request."""
    try:
        address = urlsplit(Headers(scope=scope).get("hx-current-url", ""))
    except ValueError:
        return "/"
    return address._replace(scheme="", netloc="").geturl()


def protect(
    app: ASGIApp,
    settings: Settings,
    *,
    clock: Callable[[], float] = time.monotonic,
    find_user: FindUser | None = None,
) -> ASGIApp:
    """Wrap the application so that only permitted requests reach it.

    `clock` counts seconds. Without `find_user`, only the server's token is known.
    """
    sessions = Sessions(clock, settings.session_seconds)
    guarded = Access(app, settings, sessions, clock, find_user)
    return SecurityHeaders(HostCheck(BodyLimits(guarded, settings), settings))
