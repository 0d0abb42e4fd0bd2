"""The FastAPI application: its routers, shared state, startup and shutdown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache, partial

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from magistrate._version import __version__
from magistrate.errors import MagistrateError
from magistrate.server import (
    adjudication,
    audit,
    compare,
    datasets,
    download,
    guard,
    judges,
    judging,
    label_api,
    label_items,
    labels,
    monitoring,
    otlp,
    otlp_grpc,
    playground,
    responses,
    rules,
    run,
    runs,
    samples,
    start,
    traces,
    watch,
    watch_metrics,
)
from magistrate.server.responses import compile_templates, error_response, json_response
from magistrate.server.roles import check_role
from magistrate.server.settings import Settings
from magistrate.server.state import JobQueue, LRUCache, RunCache, RunCounter, StorePool, user_finder
from magistrate.server.watcher import watching

PAGES = (
    *(runs.router, run.router, download.router, compare.router, samples.router, judges.router),
    *(playground.router, watch.router, rules.router, traces.router, datasets.router, start.router),
    audit.router,
)
LABEL_PAGES = (labels.router, label_items.router, adjudication.router)
API = (
    *(runs.api, run.api, compare.api, samples.api, judging.api, guard.api, judges.api),
    *(watch.api, traces.api, label_api.api, audit.api),
)


def create_app(settings: Settings) -> FastAPI:
    """Create the application over the store of `settings`. Wrap it in `security.protect`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warm_up()
        app.state.counter.start()
        receiver = otlp_grpc.receiver(app.state.ingest, settings, app.state.find_user)
        try:
            async with receiver as app.state.grpc_port, watching(settings):
                yield
        finally:  # also where the server cannot start
            app.state.judging.close()
            app.state.starter.close()
            app.state.counter.stop()
            app.state.jobs.close()
            app.state.stores.close()

    app = FastAPI(
        title="Magistrate",
        version=__version__,
        description="Runs, figures, samples and verdicts of a store; also judges single samples.",
        openapi_url=None,  # FastAPI's own route would take no role
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_role)],
        lifespan=lifespan,
    )
    stores, jobs = StorePool(settings.store), JobQueue()
    counter, metrics = RunCounter(stores), monitoring.Metrics()
    if settings.watch:
        watch_metrics.register(metrics.registry, stores)
    app.state.settings = settings
    app.state.clock = partial(datetime.now, UTC)
    app.state.stores = stores
    app.state.find_user = user_finder(stores)
    app.state.jobs = jobs
    app.state.counter = counter
    app.state.run_cache = RunCache(stores, jobs, counter)
    app.state.metrics = metrics
    app.state.judging = judging.JudgingService(metrics=metrics)
    app.state.starter = start.RunStarter(settings.store, app.state.clock)
    app.state.guard = guard.Doorkeeper(settings.guard, settings.guard_model)
    app.state.playground = playground.Playground(app.state.judging)
    app.state.annotators = labels.Annotators(settings)
    app.state.label_figures, app.state.label_passages = LRUCache(), LRUCache()
    app.state.ingest = otlp.Ingest(stores, metrics, settings.otlp)
    for kind in (MagistrateError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, error_response)
    health = monitoring.health_router(monitoring.store_check(stores, settings.store))
    for router in API:
        app.include_router(router, prefix="/api")
    app.get("/api/openapi.json", include_in_schema=False)(api_description)
    receivers = (otlp.router,) if settings.watch else ()
    for router in (health, monitoring.router, responses.router, *receivers, *PAGES, *LABEL_PAGES):
        app.include_router(router, include_in_schema=False)
    return app


def api_description(request: Request) -> Response:
    """Describe the API as OpenAPI."""
    return json_response(request.app.openapi())


@cache
def warm_up() -> None:
    """Import all judges and compile all templates, so that the first request is not slow."""
    compile_templates()
    judges.judges_view()
