"""Is it this server's own page that made a request, or a page of another site in the same browser?

A browser sends its cookies along with what other sites ask, and to a server on 127.0.0.1 without a token
anybody may ask anything, so a hostile page could have things changed in the visitor's name (cross-site
request forgery). A page cannot set two headers that the browser adds by itself: `Sec-Fetch-Site` (W3C, Fetch
Metadata Request Headers) and `Origin`. Checking them is among what OWASP's cheat sheet on cross-site request
forgery asks for; `SameSite` cookies alone do not tell the ports of one host apart. Browsers send the first
only over HTTPS and to loopback addresses, so elsewhere the second decides. A request with neither is no
browser's and passes, unless it brings a cookie, as a browser of long ago might. A bearer token needs no
check, since no browser adds one by itself.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_OURS = ("same-origin", "none")  # none: the person did it, by an address typed or a bookmark
_PORTS = {"http": 80, "https": 443}


def is_forged(scope: Scope) -> bool:
    """May another site have made this request? Links to pages may come from anywhere."""
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
    """Does the request open a page in a window, rather than load a part of another page?"""
    shown = headers.get("sec-fetch-dest", "document") == "document"
    return shown and headers.get("sec-fetch-mode", "navigate") == "navigate"


def _is_same(origin: str, host: str) -> bool:
    """Is it the origin that `Host` names? The scheme is left out: a proxy may have changed it."""
    try:
        theirs = urlsplit(origin)
        ours = urlsplit(f"//{host}")
        default = _PORTS.get(theirs.scheme)
        ports = (theirs.port or default, ours.port or default)
    except ValueError:
        return False
    return default is not None and theirs.hostname == ours.hostname and ports[0] == ports[1]
