"""Spans that come to a server over OTLP: stored before the answer, from real clients, within limits."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from google.rpc.status_pb2 import Status
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from magistrate.errors import StoreError
from magistrate.server import otlp as routes
from magistrate.server.app import create_app
from magistrate.server.security import protect
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.watch.events import with_events
from magistrate.watch.otlp import LIMITS
from served import TOKEN, served
from test_otlp import (
    JSON,
    PROTOBUF,
    TRACE,
    a_record,
    a_span,
    any_value,
    as_json,
    attribute,
    exported,
    logged,
    packed,
)

TRACES, LOGS = "/v1/traces", "/v1/logs"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    few = replace(LIMITS, packed_bytes=100_000, plain_bytes=1_000_000, records=50)
    return Settings(store=str(tmp_path / "runs.db"), watch=True, otlp=few)


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), raise_server_exceptions=False) as opened:
        yield opened


def stored(settings: Settings, trace_id: str = TRACE) -> list[Any]:
    with Store.open(settings.store) as store:
        return store.traces.trace(trace_id)


def sent(
    client: TestClient | httpx.Client, body: bytes, kind: str = JSON, path: str = TRACES, **headers: str
) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(path, content=body, headers={"content-type": kind, **named})


# --- what is taken -------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["identity", "gzip"])
@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_spans_are_stored_before_they_are_answered(
    client: TestClient, settings: Settings, kind: str, packing: str
) -> None:
    body = as_json(exported(a_span(), a_span(2))) if kind == JSON else packed(attributes=2)
    if packing == "gzip":
        body = gzip.compress(body)
    for _ in range(2):  # the second time nothing is new
        said = sent(client, body, kind, content_encoding=packing)
        assert (said.status_code, said.headers["content-type"]) == (200, kind)
        assert said.content == (b"{}" if kind == JSON else b"")
        assert len(stored(settings)) == (2 if kind == JSON else 1)


@pytest.mark.parametrize("path", [TRACES, LOGS])
def test_an_empty_request_is_a_success(client: TestClient, path: str) -> None:
    assert sent(client, b"{}", path=path).content == b"{}"
    assert sent(client, b"", PROTOBUF, path).status_code == 200


def test_what_cannot_be_read_is_rejected_and_the_rest_is_stored(
    client: TestClient, settings: Settings
) -> None:
    said = sent(client, as_json(exported(a_span(), a_span(2, traceId="no hex"), a_span(3))))
    assert said.status_code == 200
    partial = said.json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1" and "hex" in partial["errorMessage"]
    assert len(stored(settings)) == 2
    many = sent(client, as_json(exported(*map(a_span, range(1, 61))))).json()["partialSuccess"]
    assert many["rejectedSpans"] == "10" and "at most 50 records" in many["errorMessage"]


def test_what_was_cut_is_a_warning(client: TestClient, settings: Settings) -> None:
    said = sent(client, as_json(exported(a_span(attributes=[attribute("k")] * 1_500))))
    assert said.json()["partialSuccess"] == {"errorMessage": "cut at the limits: 500 attributes"}
    assert stored(settings)[0].attributes["magistrate.cut"] == "attributes"


def test_our_own_spans_are_refused(client: TestClient, settings: Settings) -> None:
    ours = as_json(exported(a_span())).replace(b'"shop"', b'"magistrate"')
    partial = sent(client, ours).json()["partialSuccess"]
    assert partial["rejectedSpans"] == "1" and "not judged" in partial["errorMessage"]
    assert stored(settings) == []


def test_logged_contents_come_to_their_spans(client: TestClient, settings: Settings) -> None:
    above = a_record()["spanId"]
    records = logged(a_record(body=any_value({"content": "Bern."})), a_record("other.event"))
    for path, body in ((LOGS, records), (TRACES, exported(a_span(spanId=above))), (LOGS, records)):
        assert sent(client, as_json(body), path=path).json() == {}
    (span,) = with_events(stored(settings))
    assert [(each.name, each.attributes) for each in span.events] == [
        ("gen_ai.choice", {"body": {"content": "Bern."}})
    ]


def test_the_numbers_are_counted(client: TestClient) -> None:
    sent(client, as_json(exported(a_span(), a_span(2, traceId="no"))))
    sent(client, as_json(logged(a_record(), a_record("other"))), path=LOGS)
    text = client.get("/metrics").text
    for line in (
        'otlp_records_total{became="stored",signal="traces"} 1.0',
        'otlp_records_total{became="rejected",signal="traces"} 1.0',
        'otlp_records_total{became="stored",signal="logs"} 1.0',
        'otlp_records_total{became="ignored",signal="logs"} 1.0',
        "otlp_bytes_in_flight 0.0",
    ):
        assert f"magistrate_{line}" in text


# --- what is refused -----------------------------------------------------------------------------


def reason(response: Any, kind: str = JSON) -> str:
    """The words of a `google.rpc.Status` in this encoding."""
    assert response.headers["content-type"] == kind
    if kind == JSON:
        return str(response.json()["message"])
    return str(Status.FromString(response.content).message)


BOMB = gzip.compress(bytes(5_000_000), mtime=0)


@pytest.mark.parametrize(
    ("status", "body", "kind", "packing"),
    [
        (400, b"{", JSON, ""),
        (400, b"{", PROTOBUF, ""),
        (400, gzip.compress(b"{}", mtime=0)[:-3], JSON, "gzip"),
        (400, b"{}", JSON, "gzip"),
        (413, BOMB, PROTOBUF, "gzip"),
        (413, BOMB, JSON, "gzip"),
        (415, b"{}", JSON, "br"),
        (415, b"", PROTOBUF, "zstd"),
    ],
)
def test_refusals_speak_as_the_client_does(
    client: TestClient, status: int, body: bytes, kind: str, packing: str
) -> None:
    said = sent(client, body, kind, content_encoding=packing)
    assert said.status_code == status and reason(said, kind)
    assert "retry-after" not in said.headers


def test_a_wrong_content_type_is_answered_in_json(client: TestClient) -> None:
    for kind in ("text/plain", "application/grpc", "application/x-www-form-urlencoded"):
        said = sent(client, b"{}", kind)
        assert said.status_code == 415 and "application/x-protobuf" in reason(said)
    assert client.post(TRACES, content=b"{}").status_code == 415
    wrong = client.get(TRACES, headers={"content-type": PROTOBUF})
    assert wrong.status_code == 405 and reason(wrong, PROTOBUF)


def test_a_store_that_cannot_be_written_asks_to_come_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> int:
        raise StoreError("store runs.db: the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(type(_traces(client)), "put", fails)
        said = sent(client, packed(), PROTOBUF)
    assert said.status_code == 503 and "full" in reason(said, PROTOBUF)
    assert int(said.headers["retry-after"]) > 0
    assert sent(client, packed(), PROTOBUF).status_code == 200


def _traces(client: TestClient) -> Any:
    with client.app.state.stores.one() as store:  # type: ignore[attr-defined]
        return store.traces


def test_a_fault_of_ours_is_a_status_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "spans_of_request", None)
    said = sent(client, packed(), PROTOBUF)
    assert said.status_code == 500 and "NoneType" not in reason(said, PROTOBUF)


def test_too_much_at_once_is_turned_away_and_comes_through_later(settings: Settings) -> None:
    app = create_app(settings)
    app.state.ingest = ingest = routes.Ingest(
        app.state.stores, app.state.metrics, settings.otlp, most_waiting=2, most_bytes=100
    )
    with TestClient(app) as client:
        with ingest.admitted(), ingest.admitted():
            full = sent(client, b"{}")
            assert full.status_code == 503 and int(full.headers["retry-after"]) > 0
        with ingest.admitted() as other:
            other.add(bytes(90))
            heavy = sent(client, as_json({"a": "b" * 20}))
            assert heavy.status_code == 503 and reason(heavy)
            assert sent(client, b"{}").status_code == 200
        assert sent(client, as_json({"a": "b" * 20})).status_code == 200
        assert "otlp_bytes_in_flight 0.0" in client.get("/metrics").text


def test_few_requests_are_read_at_a_time(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    app, lock, at_once, most = create_app(settings), threading.Lock(), 0, 0
    real = routes.Ingest.store

    def slow(self: routes.Ingest, *given: Any) -> Any:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        threading.Event().wait(0.05)
        with lock:
            at_once -= 1
        return real(self, *given)

    monkeypatch.setattr(routes.Ingest, "store", slow)
    with served(app) as address:
        bodies = [as_json(exported(a_span(n))) for n in range(1, 9)]
        said: list[int] = []
        threads = [
            threading.Thread(
                target=lambda body=body: said.append(
                    httpx.post(f"{address}{TRACES}", content=body, headers={"content-type": JSON}).status_code
                )
            )
            for body in bodies
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert said == [200] * 8 and most == routes.AT_ONCE
    assert len(stored(settings)) == 8


def test_a_server_that_does_not_watch_takes_no_spans(settings: Settings) -> None:
    with TestClient(create_app(replace(settings, watch=False))) as client:
        said = sent(client, b"{}")
        assert said.status_code == 404 and reason(said)


# --- who may send --------------------------------------------------------------------------------


@contextmanager
def guarded(settings: Settings, **more: Any) -> Iterator[str]:
    """The address of the application as it is served."""
    settings = replace(settings, **more)
    with served(protect(create_app(settings), settings)) as address:
        yield address


def test_the_rules_of_the_server_hold_and_speak_as_the_client_does(settings: Settings) -> None:
    with guarded(settings, token=TOKEN) as address, httpx.Client(base_url=address) as client:
        for wrong in ({}, {"authorization": "Bearer wrong"}):
            said = sent(client, packed(), PROTOBUF, **wrong)
            assert said.status_code == 401 and "token" in reason(said, PROTOBUF)
        assert stored(settings) == []
        assert sent(client, packed(), PROTOBUF, authorization=f"Bearer {TOKEN}").status_code == 200
        assert len(stored(settings)) == 1
        strange = sent(client, b"{}", host="evil.example")
        assert strange.status_code == 421 and reason(strange)
    with guarded(settings) as address, httpx.Client(base_url=address) as client:
        forged = sent(client, packed(), PROTOBUF, origin="https://evil.example")
        assert forged.status_code == 403 and reason(forged, PROTOBUF)


def test_a_body_that_is_too_long_is_refused_with_and_without_a_length(settings: Settings) -> None:
    long = bytes(settings.otlp.packed_bytes + 1)
    with guarded(settings) as address, httpx.Client(base_url=address) as client:
        said = sent(client, long, PROTOBUF)
        assert said.status_code == 413 and "100,000" in reason(said, PROTOBUF)
        streamed = client.post(TRACES, content=iter([long]), headers={"content-type": PROTOBUF})
        assert streamed.status_code == 413 and reason(streamed, PROTOBUF)
        other = client.post("/api/judge", content=bytes(settings.body_bytes + 1))
        assert other.json()["detail"], "elsewhere its own limit holds"


# --- real clients --------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", [Compression.Gzip, Compression.NoCompression])
def test_the_sdk_sends_traces_and_logs(settings: Settings, packing: Compression) -> None:
    settings = replace(settings, token=TOKEN, otlp=LIMITS)
    named = {"authorization": f"Bearer {TOKEN}"}
    resource = Resource.create({"service.name": "shop"})
    with guarded(settings) as address:
        tracers = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(f"{address}{TRACES}", headers=named, compression=packing)
        tracers.add_span_processor(BatchSpanProcessor(exporter))
        loggers = LoggerProvider(resource=resource)
        log_exporter = OTLPLogExporter(f"{address}{LOGS}", headers=named, compression=packing)
        loggers.add_log_record_processor(SimpleLogRecordProcessor(log_exporter))
        with tracers.get_tracer("app").start_as_current_span("answer") as root:
            root.set_attribute("input.value", "Capital of Switzerland?")
            with tracers.get_tracer("app").start_as_current_span("chat") as call:
                call.set_attributes({"gen_ai.usage.input_tokens": 12, "tags": ["a", "b"], "half": 0.5})
                loggers.get_logger("app").emit(
                    event_name="gen_ai.choice",
                    severity_number=SeverityNumber.DEBUG,
                    body={"message": {"content": "Bern."}},
                )
        tracers.shutdown()
        loggers.shutdown()  # type: ignore[no-untyped-call]
    trace_id = f"{root.get_span_context().trace_id:032x}"
    spans = {span.name: span for span in with_events(stored(settings, trace_id))}
    assert set(spans) == {"answer", "chat"}
    assert spans["chat"].parent_id == spans["answer"].span_id
    assert spans["chat"].attributes == {"gen_ai.usage.input_tokens": 12, "tags": ["a", "b"], "half": 0.5}
    assert spans["chat"].resource["service.name"] == "shop"
    assert [each.attributes["body"] for each in spans["chat"].events] == [{"message": {"content": "Bern."}}]
    assert spans["answer"].end_ns is not None and spans["answer"].parent_id is None


@pytest.mark.full
def test_the_sdk_comes_again_after_503(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = routes.Ingest.store, []

    def busy_once(self: routes.Ingest, *given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise StoreError("store runs.db: another program writes")
        return real(self, *given)

    monkeypatch.setattr(routes.Ingest, "store", busy_once)
    with guarded(settings) as address:
        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}{TRACES}")))
        with tracers.get_tracer("app").start_as_current_span("answer") as root:
            pass
        tracers.shutdown()
    assert len(calls) == 2
    assert len(stored(settings, f"{root.get_span_context().trace_id:032x}")) == 1
    assert json.dumps(stored(settings, f"{root.get_span_context().trace_id:032x}")[0].name) == '"answer"'
