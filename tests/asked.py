"""An application whose judges ask an engine that a test wrote."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from magistrate import _async
from magistrate.engines.base import Engine
from magistrate.server.app import create_app
from magistrate.server.judging import JudgingService
from magistrate.server.playground import Playground
from magistrate.server.settings import Settings
from magistrate.types import Prompt

CONTEXT = "The museum opens at nine and closes at five. Entry is free for children under twelve."
OUTPUT = "It closes at six."
YES = {"faithful": 0.9, "hallucinated": 0.1}
ASKED = {"output": OUTPUT, "context": [CONTEXT], "judge": "faithfulness"}


def an_app(folder: Path, engine: Engine | None = None, **options: Any) -> FastAPI:
    """The application over an empty store; its judges ask `engine`, if given, whatever model is named."""
    app = create_app(Settings(store=str(folder / "runs.db")))
    if engine is not None:
        options["engine_of"] = lambda judges, model: engine
    app.state.judging = JudgingService(metrics=app.state.metrics, **options)
    app.state.playground = Playground(app.state.judging)
    return app


class Door:
    """A script that answers once the door is open; `came` says how often it was asked."""

    def __init__(self, answer: Any = YES) -> None:
        self.open = threading.Event()
        self.came = threading.Semaphore(0)
        self.left: list[str] = []
        self._answer = answer

    async def __call__(self, prompt: Prompt) -> Any:
        self.came.release()
        try:
            await _async.in_thread(self.open.wait)
        except asyncio.CancelledError:
            self.left.append("cancelled")
            raise
        return self._answer

    def wait(self, n: int = 1) -> None:
        """Until it was asked `n` times more."""
        for _ in range(n):
            assert self.came.acquire(timeout=30), "nobody came"


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something to be true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)
