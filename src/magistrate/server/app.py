"""The application: what answers at which address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from magistrate._version import __version__
from magistrate.errors import MagistrateError
from magistrate.server import assets, health, live, metrics
from magistrate.server.answers import Answers
from magistrate.server.api import compare as api_compare
from magistrate.server.api import judge as api_judge
from magistrate.server.api import judges as api_judges
from magistrate.server.api import run as api_run
from magistrate.server.api import runs as api_runs
from magistrate.server.api import samples as api_samples
from magistrate.server.counter import Counter
from magistrate.server.judging import Judging
from magistrate.server.memory import Memory
from magistrate.server.pages import compare as compare_page
from magistrate.server.pages import judges as judges_page
from magistrate.server.pages import run as run_page
from magistrate.server.pages import runs as runs_page
from magistrate.server.pages import sample as sample_page
from magistrate.server.pages import trying as trying_page
from magistrate.server.refusals import refused
from magistrate.server.settings import Settings
from magistrate.server.stores import Stores
from magistrate.server.tries import Tries
from magistrate.server.warming import warm

PAGES = (
    runs_page.router,
    run_page.router,
    compare_page.router,
    sample_page.router,
    judges_page.router,
    trying_page.router,
)
API = (
    api_runs.router,
    api_run.router,
    api_compare.router,
    api_samples.router,
    api_judge.router,
    api_judges.router,
)


def create_app(settings: Settings) -> FastAPI:
    """The application over the store of `settings`, as it answers behind `security.protect`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warm()
        app.state.counter.start()
        yield
        app.state.judging.close()
        app.state.counter.stop()
        app.state.answers.close()
        app.state.stores.close()

    app = FastAPI(
        title="Magistrate",
        version=__version__,
        description="Runs, figures, samples and verdicts of a store, and one sample judged at once.",
        openapi_url="/api/openapi.json",
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.settings = settings
    app.state.stores = Stores(settings.store)
    app.state.counter = Counter(app.state.stores)
    app.state.answers = Answers()
    app.state.memory = Memory(app.state.stores, app.state.answers)
    app.state.metrics = metrics.Metrics()
    app.state.judging = Judging(metrics=app.state.metrics)
    app.state.tries = Tries(app.state.judging)
    healthy = health.router(health.readable(app.state.stores, settings.store))
    app.add_exception_handler(MagistrateError, refused)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, refused)
    app.add_exception_handler(Exception, refused)
    for router in API:
        app.include_router(router, prefix="/api")
    for router in (healthy, metrics.router, assets.router, live.router, *PAGES):
        app.include_router(router, include_in_schema=False)
    return app
