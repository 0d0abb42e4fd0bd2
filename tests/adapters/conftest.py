"""What the tests of all adapters share; each file runs in an environment that has its framework.

Nothing may leave this machine, telemetry is off by each framework's own switch, and there is no key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from given import ENGINES, FALSE, REASONS, SAID, SECRET

from magistrate.engines.scripted import ScriptedEngine
from standins import ANSWERS, Standin, running

SWITCHES = {
    "OPIK_ANALYTICS_ENABLE": "false",
    "OPIK_SENTRY_ENABLE": "false",
    "OPIK_TRACK_DISABLE": "true",
    "DEEPEVAL_TELEMETRY_OPT_OUT": "1",
    "DEEPEVAL_DISABLE_DOTENV": "1",
    "RAGAS_DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "DO_NOT_TRACK": "true",
    "INSPECT_DISPLAY": "none",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",  # a node on a busy machine starts slowly
    "RAY_agent_register_timeout_ms": "300000",
}
FRAMEWORKS = {
    "test_opik.py": "opik",
    "test_phoenix.py": "phoenix",
    "test_deepeval.py": "deepeval",
    "test_ragas.py": "ragas",
    "test_inspect.py": "inspect_ai",
    "test_mlflow.py": "mlflow",
    "test_argilla.py": "argilla",
    "test_label_studio.py": "label_studio_sdk",
    "test_ray.py": "ray",
}
collect_ignore = [name for name, module in FRAMEWORKS.items() if not find_spec(module)]

TRIED: list[str] = []
HERE = ("127.0.0.1", "::1", "localhost", b"localhost", "0.0.0.0", "", None)


def here_only(event: str, words: tuple[Any, ...]) -> None:
    """Forbid every look-up of a name and every connection that leaves this machine, for good."""
    if event == "socket.getaddrinfo":
        host = words[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(words[1], tuple):
        host = words[1][0]
    else:
        return
    if host not in HERE:
        TRIED.append(str(host))
        raise ConnectionRefusedError(f"a test may not reach {host}")


if len(collect_ignore) < len(FRAMEWORKS):  # before any of the frameworks is imported
    os.environ |= SWITCHES
    sys.addaudithook(here_only)


@pytest.fixture(autouse=True)
def offline() -> Iterator[None]:
    """Nothing has tried to leave this machine, in a thread of its own or at import either."""
    yield
    assert TRIED == []


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own for what a framework writes beside the user's files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    """A server of one's own with a key and a model `model-a`, that answers a judge `hallucination` .75."""
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "magistrate"))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with running(Standin(answers=(SAID, *ANSWERS), key=SECRET)) as standin:
        yield standin
        assert any(FALSE in str(body) for body in standin.got("/v1/chat/completions"))


@pytest.fixture(params=list(ENGINES))
def broken(request: pytest.FixtureRequest) -> tuple[ScriptedEngine, str]:
    """An engine of which no verdict comes, and what has to be said of it."""
    return ENGINES[request.param](), REASONS[request.param]
