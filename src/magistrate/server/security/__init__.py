"""Who may ask the server what: checks before the application and headers on whatever it answers.

In the order in which a request meets them:

- `headers`: what every response carries;
- `hosts`: only for names that are this server's;
- `bodies`: no body that is too long or too slow;
- `access`: only with the token or a session, and no request that another site made.

All are plain ASGI around the whole application, so that errors of the framework pass them, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp

from magistrate.server.security.access import Access
from magistrate.server.security.bodies import Bodies
from magistrate.server.security.headers import POLICY, SecurityHeaders
from magistrate.server.security.hosts import Hosts
from magistrate.server.security.sessions import Sessions
from magistrate.server.settings import Settings

__all__ = ["POLICY", "protect"]


def protect(app: ASGIApp, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> ASGIApp:
    """The application, reached only by requests that may reach it; `clock` counts seconds."""
    sessions = Sessions(clock, settings.session_seconds)
    guarded = Access(app, settings, sessions, clock)
    return SecurityHeaders(Hosts(Bodies(guarded, settings), settings))
