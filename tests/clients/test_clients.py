"""Real clients, each in its own environment: the same conversation gives the same sample from each.

`make test-clients` makes the environments, and runs this file in that of the other tests.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conversation import ANSWER, DOCUMENTS, MODEL, PROMPT, QUESTION, SYSTEM

from magistrate.store import Store
from magistrate.types import Sample
from standins import Standin, running

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
RULES = """\
rules:
  - {name: answer, target: answer, judges: [novelty], quiet: 1s}
  - {name: call, target: call, judges: [novelty], quiet: 1s}
"""
LONGEST = 60.0  # most seconds to wait for anything

HTTP, GRPC = "http/protobuf", "grpc"
LATEST = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@dataclass(frozen=True)
class Client:
    """A script, the environment that it runs in, and how it is told to send."""

    environment: str
    words: tuple[str, ...]
    protocol: str = HTTP
    variables: Mapping[str, str] = field(default_factory=dict)
    calls: int = 2  # how often it asks the model alone: for a whole answer, and for one in pieces


CLIENTS = {
    "sdk, HTTP": Client("sdk", ("sdk.py",), calls=1),
    "sdk, gRPC": Client("sdk", ("sdk.py",), GRPC, {"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, calls=1),
    "openinference, openai": Client("openinference_openai", ("openinference_openai.py",)),
    "openinference, langchain": Client("openinference_langchain", ("openinference_langchain.py",)),
    "traceloop, openai": Client("traceloop_openai", ("traceloop_openai.py",)),
    "traceloop, openai, log records": Client("traceloop_openai", ("traceloop_openai.py", "events"), calls=1),
    "openai-v2, an event a message": Client("openai_v2_events", ("openai_v2.py",), HTTP, {CAPTURE: "true"}),
    "openai-v2, on spans": Client("openai_v2", ("openai_v2.py",), HTTP, LATEST | {CAPTURE: "span_only"}),
    "openai-v2, one event": Client("openai_v2", ("openai_v2.py",), HTTP, LATEST | {CAPTURE: "event_only"}),
    "openai-v2, both": Client("openai_v2", ("openai_v2.py",), HTTP, LATEST | {CAPTURE: "span_and_event"}),
    "openai-v2, its handler": Client(
        "openai_v2", ("openai_v2_handler.py",), HTTP, LATEST | {CAPTURE: "span_only"}
    ),
}


@dataclass(frozen=True)
class Intake:
    """A running server with its store, and the addresses of what clients talk to."""

    store: Path
    addresses: Mapping[str, str]
    model: str


class Model(Standin):
    """A model server whose answers have all that those of OpenAI have, and clients record."""

    def answer(self, method: str, path: str, body: Any, key: str) -> tuple[int, Any]:
        status, said = super().answer(method, path, body, key)
        if isinstance(said, list):
            return status, [self._whole(each, "chat.completion.chunk") for each in said]
        return status, self._whole(said, "chat.completion")

    def _whole(self, said: Any, what: str) -> Any:
        choices = [{"index": 0, **each} for each in said["choices"]]
        more = {"choices": choices} | ({"usage": self._summed(said["usage"])} if "usage" in said else {})
        return {"id": "chatcmpl-1", "object": what, "created": 1, "model": MODEL, **said, **more}

    def _summed(self, usage: Any) -> Any:
        return {**usage, "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]}


def without_settings() -> dict[str, str]:
    """The environment, without what would send spans elsewhere, or ask for a token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
    kept.pop("MAGISTRATE_TOKEN", None)
    return kept | {"NO_PROXY": "*", "no_proxy": "*"}


@pytest.fixture(scope="module")
def intake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Intake]:
    """`magistrate serve --watch` in a process of its own, beside a model that knows one answer."""
    folder = tmp_path_factory.mktemp("intake")
    (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["serve", "--port", "0", "--grpc-port", str(port), "--store", str(folder / "watch.db")]
    words += ["--watch", str(folder / "rules.yaml")]
    with (
        running(Model(lambda asked: ANSWER, any_name=True)) as model,
        (folder / "log").open("w") as log,
        started([sys.executable, "-m", "magistrate", *words], stderr=log) as server,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().strip().rstrip("/")
        assert address.startswith("http"), (folder / "log").read_text(encoding="utf-8")
        addresses = {HTTP: address, GRPC: f"http://127.0.0.1:{port}"}
        yield Intake(folder / "watch.db", addresses, model.url)


@contextmanager
def started(
    words: list[str], more: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process with `more` in its environment, that is asked to end when the block does, and is made to."""
    environment = without_settings() | dict(more or {})
    options = {"stdout": subprocess.PIPE, **options}
    with subprocess.Popen(words, text=True, env=environment, **options) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            process.wait(LONGEST)
        finally:
            process.kill()


def traces_of(client: Client, intake: Intake) -> list[str]:
    """Let a client hold the conversation and ask the model alone; the answer is the ids of the traces."""
    python = ENVIRONMENTS / client.environment / "bin" / "python"
    assert python.exists(), f"{python.parents[1]} is not there: make test-clients"
    environment = without_settings() | {
        "OPENAI_BASE_URL": intake.model,
        "OPENAI_API_KEY": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": intake.addresses[client.protocol],
        "OTEL_EXPORTER_OTLP_PROTOCOL": client.protocol,
        "OTEL_BSP_SCHEDULE_DELAY": "60000",  # all spans are sent at the end, together
        **client.variables,
    }
    environment.pop("PYTHONPATH", None)  # Magistrate is not for the client to see
    script, *words = client.words
    done = subprocess.run(
        [python, HERE / script, *words], env=environment, capture_output=True, text=True, timeout=LONGEST
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def judged(intake: Intake, rule: str, trace: str) -> Sample:
    """The sample of a trace that a rule has judged, once it has."""
    until = time.monotonic() + LONGEST
    with Store.open(intake.store) as store:
        while True:
            record = store.traces.rule(rule)
            if record is not None and record.run_id is not None:
                done = {each.sample_id for each in store.outcomes(record.run_id)}
                samples = [each for each in store.samples(record.run_id) if each.id in done]
                if found := [each for each in samples if each.metadata["trace_id"] == trace]:
                    (sample,) = found
                    return sample
            why = [each.reason for each in store.traces.decisions(rule, trace_id=trace)]
            assert time.monotonic() < until, f"no sample of {rule}: {why}"
            time.sleep(0.1)


def check_samples(intake: Intake, traces: Sequence[str], calls: int = 2) -> None:
    """Check the samples of the traces of one client: of the conversation, and of what it asked alone."""
    searched, *alone = traces
    for rule, asked in (("answer", QUESTION), ("call", PROMPT)):
        sample = judged(intake, rule, searched)
        assert (sample.input, sample.output, sample.context) == (asked, ANSWER, DOCUMENTS)
        assert (sample.messages, sample.metadata["context_source"]) == ((), "retriever")
        documents = sample.metadata["documents"]
        assert [(each["rank"], each["id"]) for each in documents] == [(1, "d0"), (2, "d1")]
        assert sample.metadata["model"] == MODEL
    assert len(alone) == calls
    for rule, trace in product(("answer", "call"), alone):
        sample = judged(intake, rule, trace)
        assert (sample.input, sample.output, sample.context) == (PROMPT, ANSWER, ())
        assert [(turn.role, turn.text) for turn in sample.messages] == [("system", SYSTEM), ("user", PROMPT)]
        assert (sample.metadata["model"], sample.metadata["context_source"]) == (MODEL, "prompt")


@pytest.mark.parametrize("name", CLIENTS)
def test_the_same_conversation_gives_the_same_sample(name: str, intake: Intake) -> None:
    check_samples(intake, traces_of(CLIENTS[name], intake), CLIENTS[name].calls)
