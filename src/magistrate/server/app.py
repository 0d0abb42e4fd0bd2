"""The application: what answers at which address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from magistrate.errors import MagistrateError, SpecError, StoreError
from magistrate.server import assets, health, live, metrics
from magistrate.server.api import runs as api_runs
from magistrate.server.pages import runs as runs_page
from magistrate.server.rendering import page
from magistrate.server.settings import Settings
from magistrate.server.stores import Stores
from magistrate.version import __version__

PAGES = (runs_page.router,)
API = (api_runs.router,)


def create_app(settings: Settings) -> FastAPI:
    """The application over the store of `settings`, as it answers behind `security.protect`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.stores.close()

    app = FastAPI(
        title="Magistrate",
        version=__version__,
        description="Runs, figures, samples and verdicts of a store, and one sample judged at once.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.stores = Stores(settings.store)
    app.state.metrics = metrics.Metrics()
    healthy = health.router(health.readable(app.state.stores, settings.store))
    app.add_exception_handler(MagistrateError, _refused)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(404, _refused)
    app.add_exception_handler(RequestValidationError, _refused)
    for router in API:
        app.include_router(router, prefix="/api")
    for router in (healthy, metrics.router, assets.router, live.router, *PAGES):
        app.include_router(router, include_in_schema=False)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    """What went wrong, as data for programs and as a page for people; nothing of it is secret."""
    status, told = _status(error), _told(error)
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": told}, status)
    return page(request, "error.html", status=status, told=told, code=status)


def _status(error: Exception) -> int:
    if isinstance(error, SpecError):
        return 404
    if isinstance(error, StoreError):
        return 503
    if isinstance(error, RequestValidationError):
        return 422
    return getattr(error, "status_code", 422 if isinstance(error, MagistrateError) else 500)


def _told(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        found = error.errors()
        return "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in found[:5])
    return str(getattr(error, "detail", error))
