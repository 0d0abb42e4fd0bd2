"""Spans that come over gRPC: stored alike, from real clients, refused with the codes of the protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from magistrate.errors import SpecError, StoreError
from magistrate.server import otlp as routes
from magistrate.server import otlp_grpc
from magistrate.server.app import create_app
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.watch.otlp import LIMITS, SERVICES
from served import TOKEN, served
from test_otlp import TRACE, packed

TRACES, LOGS = (f"/{service}/Export" for service in SERVICES)
RIGHT = (("authorization", f"Bearer {TOKEN}"),)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    few = replace(LIMITS, plain_bytes=100_000)
    return Settings(store=str(tmp_path / "runs.db"), watch=True, token=TOKEN, otlp=few, grpc_port=0)


@contextmanager
def receiving(settings: Settings) -> Iterator[grpc.Channel]:
    """A client of the server's port for gRPC."""
    app = create_app(settings)
    with served(app), grpc.insecure_channel(f"127.0.0.1:{app.state.grpc_port}") as channel:
        yield channel


def export(
    channel: grpc.Channel, body: bytes, path: str = TRACES, metadata: Any = RIGHT, **more: Any
) -> bytes:
    call = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
    answer: bytes = call(body, metadata=metadata, timeout=20, **more)
    return answer


def refused(*given: Any, **more: Any) -> tuple[str, float | None]:
    """The code that a call ends with, and the seconds until the client may come again."""
    with pytest.raises(grpc.RpcError) as raised:
        export(*given, **more)
    error: Any = raised.value
    trailing = dict(error.trailing_metadata() or ())
    if "grpc-status-details-bin" not in trailing:
        return error.code().name, None
    status, info = Status.FromString(trailing["grpc-status-details-bin"]), RetryInfo()
    assert status.code == error.code().value[0] and status.message == error.details()
    assert status.details[0].Unpack(info)
    return error.code().name, info.retry_delay.seconds


def stored(settings: Settings, trace_id: str = TRACE) -> list[Any]:
    with Store.open(settings.store) as store:
        return store.traces.trace(trace_id)


def test_spans_and_logs_are_stored_and_answered(settings: Settings) -> None:
    with receiving(settings) as channel:
        assert export(channel, packed(attributes=3)) == b""
        assert len(stored(settings)) == 1
        assert export(channel, packed(), compression=grpc.Compression.Gzip) == b""
        assert export(channel, b"") == export(channel, b"", LOGS) == b""
        bad = packed().replace(bytes.fromhex(TRACE), bytes(16))
        partial = ExportTraceServiceResponse.FromString(export(channel, bad)).partial_success
        assert partial.rejected_spans == 1 and partial.error_message


def test_refusals_have_the_codes_of_the_protocol(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving(settings) as channel:
        assert refused(channel, b"\xff" * 20) == ("INVALID_ARGUMENT", None)
        assert refused(channel, b"x" * 100_001) == ("RESOURCE_EXHAUSTED", None)
        assert refused(channel, bytes(10_000_000), compression=grpc.Compression.Gzip) == (
            "RESOURCE_EXHAUSTED",
            None,
        )
        assert refused(channel, b"", "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export") == (
            "UNIMPLEMENTED",
            None,
        )
        for error, expected in (
            (StoreError("store runs.db: the disk is full"), ("UNAVAILABLE", 5)),
            (ValueError("secret words"), ("INTERNAL", None)),
        ):
            with monkeypatch.context() as broken:
                broken.setattr(routes.Ingest, "store", raising(error))
                assert refused(channel, packed()) == expected
        with monkeypatch.context() as busy:
            busy.setattr(routes.Ingest, "admitted", raising(routes.OtlpError(503, "busy")))
            assert refused(channel, packed()) == ("UNAVAILABLE", 5)
        assert export(channel, packed()) == b""


def raising(error: Exception) -> Any:
    def fails(*_: Any) -> Any:
        raise error

    return fails


def test_the_token_is_asked_for(settings: Settings) -> None:
    wrong = (("authorization", "Bearer wrong"),)
    with receiving(settings) as channel:
        for metadata in ((), wrong, (*RIGHT, *wrong), (("authorization", f"Basic {TOKEN}"),)):
            assert refused(channel, packed(), metadata=metadata) == ("UNAUTHENTICATED", None)
        assert stored(settings) == []
        with Store.open(settings.store) as store:
            at = datetime.now(UTC)
            label, admin, ingest = (
                store.users.add(role, role, by="test", now=at) for role in ("label", "admin", "ingest")
            )
        user = (("authorization", f"Bearer {label}"),)
        assert refused(channel, packed(), metadata=user) == ("PERMISSION_DENIED", None)
        assert stored(settings) == []
        for token in (admin, ingest):
            assert export(channel, packed(), metadata=(("authorization", f"Bearer {token}"),)) == b""
        assert export(channel, packed()) == b""
    with receiving(replace(settings, token=None)) as channel:
        assert export(channel, packed(), metadata=()) == b""


def test_without_a_port_there_is_none_and_a_taken_one_is_told(settings: Settings) -> None:
    with served(app := create_app(replace(settings, grpc_port=None))):
        assert app.state.grpc_port is None

    async def receive(port: int) -> None:
        async with otlp_grpc.receiver(app.state.ingest, replace(settings, grpc_port=port)):
            pass

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=f"port {port} of 127.0.0.1"):
            asyncio.run(receive(port))


@pytest.mark.parametrize("busy", [False, True])
def test_the_sdk_sends_traces(settings: Settings, monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    real, calls = routes.Ingest.store, []

    def busy_once(self: routes.Ingest, *given: Any) -> Any:
        calls.append(given)
        if busy and len(calls) == 1:
            raise StoreError("store runs.db: another program writes")
        return real(self, *given)

    monkeypatch.setattr(routes.Ingest, "store", busy_once)
    monkeypatch.setattr(otlp_grpc, "WAIT", 1)
    app = create_app(settings)
    with served(app):
        tracers = TracerProvider()
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{app.state.grpc_port}", insecure=True, headers=RIGHT)
        tracers.add_span_processor(BatchSpanProcessor(exporter))
        with tracers.get_tracer("app").start_as_current_span("answer") as root:
            root.set_attribute("input.value", "Capital of Switzerland?")
        tracers.shutdown()
    (span,) = stored(settings, f"{root.get_span_context().trace_id:032x}")
    assert span.name == "answer" and span.attributes == {"input.value": "Capital of Switzerland?"}
    assert len(calls) == 1 + busy
