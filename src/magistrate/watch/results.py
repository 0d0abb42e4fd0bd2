"""Exports verdicts over OTLP, as an OpenTelemetry event and as an OpenInference span, and to Phoenix.

The event `gen_ai.evaluation.result` is a log record on the judged span. The span is of kind EVALUATOR, in a
trace of its own, with exactly one link, to the judged span. Its ids are a hash of the judged span and the
judge. So sending a result again changes nothing, and a later outcome replaces an earlier one. Log records
do not replace one another; one that is sent again has the same `log.record.uid`.
Sources: github.com/open-telemetry/semantic-conventions-genai, `docs/gen-ai/gen-ai-events.md`;
github.com/Arize-ai/openinference, `spec/annotations.md`.
Phoenix makes no annotation of an evaluator span, so it gets one by its own API: that of the same span, name
and identifier replaces the one before. Shape: `AnnotateSpansRequestBody` of Arize Phoenix 20.
"""

from __future__ import annotations

import gzip
import json
import random
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from http.client import HTTPException
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, build_opener
from urllib.request import Request as HttpRequest
from uuid import UUID

from magistrate import _logging
from magistrate._version import __version__
from magistrate.engines.remote.errors import retry_after
from magistrate.errors import MagistrateError, MissingExtra, SpecError
from magistrate.types import Abstention, Failure, Outcome, Recipe, Scoring, Verdict
from magistrate.watch.otlp import MEDIA_TYPES, PATHS, RETRYABLE, Encoding, Signal

SERVICE = "magistrate"
"""The `service.name` of sent results, which identifies them if they come back."""

EVENT = "gen_ai.evaluation.result"
ANNOTATIONS = "/v1/span_annotations"
ABSTAINED = "abstained"
LONGEST_EXPLANATION = 4_000

TIMEOUT = 10.0  # seconds per attempt
ATTEMPTS = 5
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds, doubled after each attempt
MOST_BYTES = 1 << 20  # read from a response

_INFO = 9  # the severity of a log record
_INTERNAL = 1  # the kind of a span
_ERROR = 2  # the status of a span


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An outcome for a span of a trace, at `time_ns` nanoseconds since 1970.

    `kind` is "llm" if a model decided and "code" if only code did. `response_id` is the id of the judged
    model response, if known.
    """

    trace_id: str
    span_id: str
    outcome: Outcome
    recipe: Recipe
    scoring: Scoring
    time_ns: int
    kind: Literal["llm", "code"] = "llm"
    response_id: str | None = None

    @property
    def identifier(self) -> str:
        """The identifier of this judge with this recipe, equal for all spans that it judges."""
        digest = sha256(replace(self.recipe, n=0).line().encode()).hexdigest()
        return f"{self.recipe.judge}+{digest[:16]}"

    def digest(self, *more: str) -> str:
        """Return the sha256 of the judged span, the judge and `more`. Ids are derived from it."""
        of = ("magistrate:result:v1", self.trace_id, self.span_id, self.outcome.judge, self.identifier, *more)
        return sha256("\0".join(of).encode()).hexdigest()

    @property
    def said(self) -> dict[str, Any]:
        """`score`, `label` and `explanation`, if present. A failure has no score and no label."""
        match self.outcome:
            case Verdict(score=score, label=label, explanation=text):
                found: dict[str, Any] = {"score": float(score), "label": label}
            case Abstention():
                found, text = {"label": ABSTAINED}, str(self.outcome)
            case Failure():
                found, text = {}, str(self.outcome)
        if text:
            found["explanation"] = _logging.without_keys(text)[:LONGEST_EXPLANATION]
        return found

    @property
    def error(self) -> str | None:
        """The code of a failure, else None."""
        return self.outcome.code if isinstance(self.outcome, Failure) else None


# --- requests --------------------------------------------------------------------------------------


def as_logs(results: Iterable[Result]) -> dict[str, Any]:
    """Build an export request of logs in OTLP/JSON, with one event per result."""
    return {
        "resourceLogs": [{**_origin(), "scopeLogs": [{**_scope(), "logRecords": list(map(_event, results))}]}]
    }


def as_spans(results: Iterable[Result]) -> dict[str, Any]:
    """Build an export request of spans in OTLP/JSON, with one evaluator span per result."""
    return {
        "resourceSpans": [{**_origin(), "scopeSpans": [{**_scope(), "spans": list(map(_span, results))}]}]
    }


def _event(result: Result) -> dict[str, Any]:
    said = result.said
    attributes = {
        "gen_ai.evaluation.name": result.outcome.judge,
        "gen_ai.evaluation.score.value": said.get("score"),
        "gen_ai.evaluation.score.label": said.get("label"),
        "gen_ai.evaluation.explanation": said.get("explanation"),
        "gen_ai.response.id": result.response_id,
        "error.type": result.error,
        "gen_ai.evaluation.evaluator.version": result.identifier,
        "log.record.uid": str(UUID(result.digest(str(result.time_ns))[:32])),
        "magistrate.score.direction": result.scoring.direction if "score" in said else None,
    }
    return {
        "timeUnixNano": str(result.time_ns),
        "observedTimeUnixNano": str(result.time_ns),
        "severityNumber": _INFO,
        "eventName": EVENT,
        "traceId": result.trace_id,
        "spanId": result.span_id,
        "attributes": _attributes(attributes),
    }


def _span(result: Result) -> dict[str, Any]:
    outcome, digest = result.outcome, result.digest()
    fields = {
        "name": outcome.judge,
        **result.said,
        "annotator_kind": result.kind.upper(),
        "identifier": result.identifier,
        "metadata": json.dumps(_origin_of(result)),
    }
    attributes = {"openinference.span.kind": "EVALUATOR", "error.type": result.error}
    attributes |= {f"annotations.0.annotation.{name}": value for name, value in fields.items()}
    return {
        "traceId": digest[:32],
        "spanId": digest[32:48],
        "name": f"evaluate {outcome.judge}",
        "kind": _INTERNAL,
        "startTimeUnixNano": str(max(0, result.time_ns - round(outcome.seconds * 1e9))),
        "endTimeUnixNano": str(result.time_ns),
        "attributes": _attributes(attributes),
        "links": [{"traceId": result.trace_id, "spanId": result.span_id}],
        "status": {"code": _ERROR, "message": result.error} if result.error else {},
    }


def as_annotations(results: Iterable[Result]) -> dict[str, Any]:
    """Build a request to Phoenix, with one annotation of the judged span per result."""
    return {"data": list(map(_annotation, results))}


def _annotation(result: Result) -> dict[str, Any]:
    more = {**_origin_of(result), "error": result.error, "trace_id": result.trace_id}
    said = {name: each if isinstance(each, float) else _sendable(each) for name, each in result.said.items()}
    return {
        "span_id": result.span_id,
        "name": _sendable(result.outcome.judge),
        "annotator_kind": result.kind.upper(),
        "identifier": _sendable(result.identifier),
        "result": said,
        "metadata": {name: _sendable(each) for name, each in more.items() if each is not None},
    }


def _origin_of(result: Result) -> dict[str, str]:
    """Say what made a result: the version, the judge with its recipe, and what a high score means."""
    return {
        "magistrate": __version__,
        "recipe": result.recipe.line(),
        "direction": result.scoring.direction,
    }


def _origin() -> dict[str, Any]:
    return {
        "resource": {"attributes": _attributes({"service.name": SERVICE, "service.version": __version__})}
    }


def _scope() -> dict[str, Any]:
    return {"scope": {"name": "magistrate", "version": __version__}}


def _attributes(values: Mapping[str, str | float | None]) -> list[dict[str, Any]]:
    """Build OTLP attributes. None values are left out, and lone surrogates are replaced."""
    return [
        {
            "key": name,
            "value": {"doubleValue": value}
            if isinstance(value, float)
            else {"stringValue": _sendable(value)},
        }
        for name, value in values.items()
        if value is not None
    ]


def _sendable(text: str) -> str:
    """Replace lone surrogates, which no server accepts."""
    return text.encode("utf-8", "replace").decode()


def encoded(signal: Signal, value: Mapping[str, Any], encoding: Encoding) -> bytes:
    """Encode an OTLP/JSON request as bytes. Raises `MissingExtra` if the protobuf package is missing."""
    if encoding == "json":
        return json.dumps(value, allow_nan=False).encode()
    try:
        from google.protobuf.json_format import ParseDict
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise MissingExtra("opentelemetry-proto", "otlp") from None
    message = ExportTraceServiceRequest() if signal == "traces" else ExportLogsServiceRequest()
    packed: bytes = ParseDict(_with_base64(value), message).SerializeToString()
    return packed


def _with_base64(value: Any) -> Any:
    """Convert hex ids to the base64 of protobuf's own JSON, which would misread hex digits."""
    if isinstance(value, Mapping):
        return {
            name: b64encode(bytes.fromhex(each)).decode()
            if name in ("traceId", "spanId")
            else _with_base64(each)
            for name, each in value.items()
        }
    return list(map(_with_base64, value)) if isinstance(value, list) else value


# --- sending ---------------------------------------------------------------------------------------


class SendError(MagistrateError):
    """Results that could not be sent; `retryable` if a retry may help, `status` is the server's."""

    def __init__(
        self, message: str, *, retryable: bool, wait: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.wait = wait
        self.status = status


@dataclass(frozen=True, slots=True)
class Sent:
    """The response to an accepted request: how many records were `rejected`, and a `message`."""

    rejected: int = 0
    message: str = ""


class Sender:
    """Sends results to the server at `endpoint`, such as `http://localhost:4318`, over OTLP or to Phoenix.

    Requests that the server is too busy for, or does not answer, are retried, with `attempts` in all.
    Requests that it refuses or rejects are not. Redirects are not followed. `headers` may contain keys,
    which no message shows. `sleep` waits seconds, `clock` returns seconds since 1970, `randomness` adds
    jitter to the retries. Raises `SpecError` for an invalid endpoint.
    """

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str] | None = None,
        *,
        encoding: Encoding = "json",
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        randomness: random.Random | None = None,
    ) -> None:
        if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
            raise SpecError("an OTLP endpoint must start with http:// or https:// and a host")
        self._endpoint = endpoint.rstrip("/")
        self._headers, self._encoding, self._timeout = dict(headers or {}), encoding, timeout
        self._attempts, self._sleep, self._clock = attempts, sleep, clock
        self._randomness = randomness or random.SystemRandom()
        self._opener: OpenerDirector = build_opener(NoRedirect)

    def send(self, signal: Signal, value: Mapping[str, Any]) -> Sent:
        """Send an OTLP/JSON request built by `as_logs` or `as_spans`. Raises `SendError`."""
        path = next(path for path, each in PATHS.items() if each == signal)
        media = next(name for name, each in MEDIA_TYPES.items() if each == self._encoding)
        body = gzip.compress(encoded(signal, value, self._encoding), mtime=0)
        headers = {"Content-Type": media, "Content-Encoding": "gzip"}
        return self._partial(signal, self._retried(path, headers, body))

    def annotate(self, value: Mapping[str, Any]) -> Sent:
        """Send a request built by `as_annotations` to Phoenix. Raises `SendError`."""
        body = json.dumps(value, allow_nan=False).encode()  # its API reads no compressed requests
        self._retried(ANNOTATIONS, {"Content-Type": "application/json"}, body)
        return Sent()

    def _retried(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        wait = FIRST_WAIT
        for attempt in range(1, self._attempts + 1):
            try:
                return self._once(path, headers, body)
            except SendError as error:
                if not error.retryable or attempt == self._attempts:
                    raise
                asked = error.wait
            self._sleep(
                wait * self._randomness.uniform(0.5, 1) if asked is None else min(asked, LONGEST_WAIT)
            )
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("no attempt was made")

    def _once(self, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        both = {**self._headers, **headers}
        request = HttpRequest(f"{self._endpoint}{path}", body, both, method="POST")
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                found: bytes = response.read(MOST_BYTES)
                return found
        except HTTPError as error:
            with error:
                named = {name.lower(): text for name, text in error.headers.items()}
                raise SendError(
                    f"the OTLP server at {self._host} answered {error.code}",
                    retryable=error.code in RETRYABLE,
                    wait=retry_after(named, self._clock()),
                    status=error.code,
                ) from None
        except (OSError, HTTPException) as error:  # OSError covers URLError and time-outs
            reason = getattr(error, "reason", None) or error
            raise SendError(
                f"the OTLP server at {self._host} does not answer: {_logging.cleaned(str(reason))}",
                retryable=True,
            ) from None
        except ValueError as error:  # an invalid host or header, which the error may quote
            raise SendError(
                f"the OTLP server at {self._host} cannot be reached: its name or a header is invalid "
                f"({type(error).__name__})",
                retryable=False,
            ) from None

    @property
    def _host(self) -> str:
        """The host and port of the endpoint, without the rest of the address."""
        found = urlsplit(self._endpoint)
        return f"{found.hostname}:{found.port}" if found.port else str(found.hostname)

    def _partial(self, signal: Signal, body: bytes) -> Sent:
        """Parse a successful response. An unknown format counts as empty."""
        name = "rejectedSpans" if signal == "traces" else "rejectedLogRecords"
        try:
            said = (json.loads(body) if self._encoding == "json" else _response(signal, body)) if body else {}
            partial = said.get("partialSuccess") or {}
            return Sent(
                int(partial.get(name) or 0), str(partial.get("errorMessage") or "")[:LONGEST_EXPLANATION]
            )
        except (ValueError, AttributeError, TypeError, RecursionError):
            return Sent()


def _response(signal: Signal, body: bytes) -> Any:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    kind = ExportTraceServiceResponse if signal == "traces" else ExportLogsServiceResponse
    try:
        return MessageToDict(kind.FromString(body))
    except DecodeError as error:
        raise ValueError(str(error)) from None


class NoRedirect(HTTPRedirectHandler):
    """Treats a redirect as the final response, because headers may contain keys meant for one host."""

    def redirect_request(self, *_: Any) -> None:
        return None
