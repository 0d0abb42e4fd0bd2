"""Security: checks of every request before it reaches the application, and headers of every response.

In the order in which a request meets them:

- `headers`: the security headers of every response, and only hosts that are this server's;
- `limits`: no body that is too long or too slow;
- `access`: only with the token or a session, and no request that another site made.

All are plain ASGI around the whole application, so that errors of the framework pass them, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp

from magistrate.server.security.access import Access, Sessions
from magistrate.server.security.headers import POLICY, HostCheck, SecurityHeaders
from magistrate.server.security.limits import BodyLimits
from magistrate.server.settings import Settings

__all__ = ["POLICY", "protect"]


def protect(app: ASGIApp, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> ASGIApp:
    """The application, reached only by requests that may reach it; `clock` counts seconds."""
    sessions = Sessions(clock, settings.session_seconds)
    guarded = Access(app, settings, sessions, clock)
    return SecurityHeaders(HostCheck(BodyLimits(guarded, settings), settings))
