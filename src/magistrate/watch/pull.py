"""Pulls the spans that another server, Phoenix or MLflow, has collected into the store.

Spans are stored by trace and span id, so reading one twice stores it once. The cursor of a source is saved
after its spans are stored, so an interruption, even `kill -9`, reads some spans again and loses none.
Shapes: `phoenix/server/api/routers/v1/spans.py` of Arize Phoenix 20, `mlflow/protos/service.proto` and
`mlflow/server/handlers.py` of MLflow 3.17.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPException
from typing import Any, NoReturn, Protocol
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import OpenerDirector, build_opener
from urllib.request import Request as HttpRequest

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from magistrate import _async, _logging
from magistrate._text import shorten_inside
from magistrate.datasets.spans.span import Span, spans_of_request, spans_of_row
from magistrate.engines.remote.errors import retry_after
from magistrate.engines.remote.retry import RetryingCaller, RetryPolicy
from magistrate.errors import EngineBusy, EngineError, EngineRefused, SpecError
from magistrate.store import Store
from magistrate.watch.outputs import Address
from magistrate.watch.results import NoRedirect

PAGE = 500  # Phoenix spans or MLflow traces per request
TRACES_AT_ONCE = 20  # MLflow traces fetched with their spans per request
IN_BATCHES = (
    "TRACKING_STORE",
    "ARCHIVE_REPO",
)  # where MLflow keeps spans that it returns so; others are files
MARGIN = 500  # Phoenix rows that are read again: a span written later may have a lower number
OVERLAP = timedelta(minutes=10)  # MLflow traces this recent are read again, because they arrive when they end
LONGEST_TRACE = timedelta(days=1)  # a trace in progress for longer counts as given up
MOST_BYTES = 256 * 2**20  # per response
TIMEOUT = 60.0
POLICY = RetryPolicy(timeout=300.0, retries=4)
BUSY = (429, 502, 503, 504)

Cursor = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of spans, a sentence for each `unread` one, and the cursor to save once the spans are stored.

    `cursor` is None if no progress can be saved yet: an interrupted read starts from the old cursor.
    """

    spans: Sequence[Span]
    unread: Sequence[str] = ()
    cursor: Cursor | None = None


class Source(Protocol):
    """A server that has spans. The cursor is stored under `name`."""

    @property
    def name(self) -> str: ...

    def pages(self, cursor: Cursor | None, since: datetime | None) -> AsyncIterator[Page]:
        """Yield the spans since a cursor, or all. `since` keeps only those that began, or ended, later.

        Raises `EngineError` if the server does not answer, refuses, or returns an unexpected answer.
        """
        ...


@dataclass(slots=True)
class Pulled:
    """The numbers of spans read and changed, and what could not be read."""

    spans: int = 0
    changed: int = 0
    unread: list[str] = field(default_factory=list)


async def pull(
    store: Store, source: Source, *, clock: Callable[[], datetime], since: datetime | None = None
) -> Pulled:
    """Store the spans that are new in a source. `changed` counts the spans that are new or differ."""
    done = Pulled()
    async for page in source.pages(store.sources.cursor(source.name), since):
        done.changed += store.traces.put(page.spans, clock())
        done.spans += len(page.spans)
        done.unread += page.unread
        if page.cursor is not None:
            store.sources.keep(source.name, page.cursor, clock())
    return done


# --- reading from a server --------------------------------------------------------------------------


class Reader:
    """Reads JSON from a server, with retries. `headers` may contain keys, which no message shows.

    Redirects are not followed. Raises `SpecError` for an invalid address.
    """

    def __init__(
        self,
        what: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        *,
        caller: RetryingCaller | None = None,
    ) -> None:
        try:
            self.address = TypeAdapter(Address).validate_python(address)
        except ValidationError as error:
            raise SpecError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None
        parts = urlsplit(self.address)
        self.who = f"{what} at {parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self._headers = {"Accept": "application/json", **(headers or {})}
        self._caller = caller or RetryingCaller(self.who, POLICY)
        self._opener: OpenerDirector = build_opener(NoRedirect)

    async def ask(
        self, path: str, query: Iterable[tuple[str, str]] = (), value: Any = None
    ) -> dict[str, Any]:
        """Return the JSON object that answers a GET, or a POST of `value`. Raises `EngineError`."""
        words = urlencode(list(query))
        body = None if value is None else json.dumps(value).encode()
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        request = HttpRequest(f"{self.address}{path}{'?' + words if words else ''}", body, headers)
        return (await self._caller.call(partial(_async.in_thread, self._once, request)))[0]

    def _once(self, request: HttpRequest) -> dict[str, Any]:
        try:
            with self._opener.open(request, timeout=TIMEOUT) as response:
                body = response.read(MOST_BYTES + 1)
        except HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, HTTPException) as error:  # OSError covers URLError and time-outs
            reason = _logging.cleaned(str(getattr(error, "reason", None) or error))
            raise EngineError(f"{self.who} does not answer: {reason}") from None
        except ValueError as error:  # an invalid host or header, which the error may quote
            raise EngineRefused(
                f"{self.who} cannot be reached: its name or a header is invalid ({type(error).__name__})"
            ) from None
        if len(body) > MOST_BYTES:
            raise EngineRefused(f"{self.who} answered with more than {MOST_BYTES:,} bytes")
        try:
            found = from_json(body, allow_inf_nan=False)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else self.no_shape("an object of JSON")

    def _refusal(self, error: HTTPError) -> EngineError:
        """Convert an HTTP error response to an exception, with the server's reason if it gives one."""
        named = {name.lower(): text for name, text in error.headers.items()}
        try:
            said = json.loads(error.read(65_536))
            why = said.get("message") or said.get("detail") or ""
        except (ValueError, AttributeError, OSError, HTTPException, RecursionError):
            why = ""
        told = f"{self.who} answered {error.code}"
        told += f": {shorten_inside(_logging.without_keys(str(why)), 200)}" if why else ""
        if error.code in BUSY:
            return EngineBusy(told, retry_after=retry_after(named, time.time()), status=error.code)
        kind = EngineError if error.code >= 500 else EngineRefused
        return kind(told, status=error.code)

    def no_shape(self, wanted: str) -> NoReturn:
        """Raise `EngineRefused` for an answer that does not have the shape of the API."""
        raise EngineRefused(f"{self.who} did not answer with {wanted}: it may be another server or version")


def _list(reader: Reader, answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of objects from an answer. A missing list is empty."""
    found: list[dict[str, Any]] = answer.get(name, [])
    is_one = isinstance(found, list) and all(isinstance(each, dict) for each in found)
    return found if is_one else reader.no_shape(f"a list {name!r} of objects")


# --- Phoenix ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phoenix:
    """The spans of a Phoenix project, read from the newest row down to the last known one.

    Rows are numbered in the order they are written, and pages descend. So the cursor is saved after the
    last page.
    """

    reader: Reader
    project: str = "default"

    @property
    def name(self) -> str:
        """The name that the cursor is stored under."""
        return f"phoenix {self.reader.address} {self.project}"

    async def pages(self, cursor: Cursor | None, since: datetime | None) -> AsyncIterator[Page]:
        """Yield spans with a row number above the cursor, and some below it again."""
        path = f"/v1/projects/{quote(self.project, safe='')}/spans"
        known, newest, place = int(cursor["row"]) if cursor else 0, 0, ""
        while True:
            query = [("limit", str(PAGE))]
            query += [("cursor", place)] if place else []
            query += [("start_time", since.isoformat())] if since else []
            answer = await self.reader.ask(path, query)
            rows = _list(self.reader, answer, "data")
            numbers = [self._number(each.get("id")) for each in rows]
            if not newest:
                newest = max(numbers, default=0)
                if since is not None:  # rows below the cursor may all be older
                    newest = max(newest, known)
                elif newest < known:  # the database was recreated
                    known = 0
            spans, unread = _spans_of_rows(rows)
            following = answer.get("next_cursor")
            is_last = not following or not rows or min(numbers) <= known - MARGIN
            if following == place != "":
                self.reader.no_shape("a new page")
            yield Page(spans, unread, {"row": newest} if is_last and newest else None)
            if is_last:
                return
            place = str(following)

    def _number(self, id: Any) -> int:
        """Decode a row number from its GraphQL id, the base64 of `Span:12`."""
        try:
            return int(b64decode(str(id), validate=True).decode("ascii").removeprefix("Span:"))
        except (Base64Error, ValueError):
            self.reader.no_shape("the ids of spans")


def _spans_of_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Span], list[str]]:
    spans, unread = list[Span](), list[str]()
    for span in (span for row in rows for span in spans_of_row(row)):
        if isinstance(span, str):
            unread.append(span)
        elif not span.span_id:
            unread.append("a span without an id")
        else:
            spans.append(span)
    return spans, unread


# --- MLflow -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mlflow:
    """The traces of an MLflow experiment by start time, with all their spans.

    Traces in progress are read once they have ended. Most traces arrive when they end, after others that
    began later, so those that began in the last `overlap` are read again. `clock` returns seconds since
    1970. It caps the cursor: a start time in the future, from an application with a wrong clock, must not
    hide earlier traces.
    """

    reader: Reader
    experiment: str = "0"
    overlap: timedelta = OVERLAP
    clock: Callable[[], float] = time.time

    @property
    def name(self) -> str:
        """The name that the cursor is stored under."""
        return f"mlflow {self.reader.address} {self.experiment}"

    async def pages(self, cursor: Cursor | None, since: datetime | None) -> AsyncIterator[Page]:
        """Yield ended traces that began after the cursor, less the overlap."""
        upto, now = int(cursor["began_ms"]) if cursor else 0, round(self.clock() * 1000)
        begin = max(0, upto - _milliseconds(self.overlap))
        if since is not None:
            begin = max(begin, round(since.timestamp() * 1000))
        where = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": self.experiment}}
        wanted: dict[str, Any] = {
            "locations": [where],
            "filter": f"trace.timestamp_ms >= {begin}",
            "max_results": PAGE,
            "order_by": ["timestamp_ms ASC"],
        }
        given_up, under_way = now - _milliseconds(LONGEST_TRACE), now  # earliest start of a trace in progress
        while True:
            answer = await self.reader.ask("/api/3.0/mlflow/traces/search", value=wanted)
            infos = _list(self.reader, answer, "traces")
            for at in range(0, len(infos), TRACES_AT_ONCE):
                some = infos[at : at + TRACES_AT_ONCE]
                ended = [each for each in some if each.get("state") != "IN_PROGRESS"]
                waiting = [_began_ms(each) for each in some if each.get("state") == "IN_PROGRESS"]
                under_way = min([under_way, *(each for each in waiting if each > given_up)])
                spans, unread = await self._spans(ended)
                upto = max([upto, *map(_began_ms, some)])
                yield Page(spans, unread, {"began_ms": min(upto, under_way)})
            following = answer.get("next_page_token")
            if not following or not infos:
                return
            if following == wanted.get("page_token"):
                self.reader.no_shape("a new page")
            wanted["page_token"] = following

    async def _spans(self, infos: Iterable[Mapping[str, Any]]) -> tuple[list[Span], list[str]]:
        """Return the spans of traces, and a sentence for each trace without any.

        MLflow keeps the spans of a trace in its database, or in a file if it could not store them there. It
        refuses to return traces together if one of them has a file.
        """
        batched, filed = list[str](), list[str]()
        for info in infos:
            tags = info.get("tags")
            place = tags.get("mlflow.trace.spansLocation") if isinstance(tags, Mapping) else None
            (batched if place in IN_BATCHES else filed).append(str(info.get("trace_id")))
        found, unread = await self._batch(batched) if batched else ([], [])
        for trace_id in filed:
            spans, wrong = _spans_of_rows(await self._file(trace_id))
            found += spans
            unread += wrong if spans or wrong else [_no_spans(trace_id)]
        return found, unread

    async def _batch(self, trace_ids: Sequence[str]) -> tuple[list[Span], list[str]]:
        """Return the spans that the database has of traces, and a sentence for each trace without any."""
        query = [("trace_ids", each) for each in trace_ids]
        answer = await self.reader.ask("/api/3.0/mlflow/traces/batchGet", query)
        found, unread, filled = list[Span](), list[str](), set[str]()
        for trace in _list(self.reader, answer, "traces"):
            raw = _with_hex(_list(self.reader, trace, "spans"))
            spans, wrong = spans_of_request({"resourceSpans": [{"scopeSpans": [{"spans": raw}]}]})
            found += spans
            unread += wrong
            if spans or wrong:
                filled.add(str((trace.get("trace_info") or {}).get("trace_id")))
        return found, unread + [_no_spans(each) for each in trace_ids if each not in filled]

    async def _file(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the rows of the file with a trace's spans; none if it is missing or cannot be parsed."""
        path = "/ajax-api/2.0/mlflow/get-trace-artifact"
        try:
            answer = await self.reader.ask(path, [("request_id", trace_id)])
            rows = _with_hex(_list(self.reader, answer, "spans"))
        except EngineRefused as error:
            if error.status not in (None, 404):
                raise
            return []
        for row in rows:  # each attribute is JSON there
            if isinstance(attributes := row.get("attributes"), Mapping):
                row["attributes"] = {name: _parsed(value) for name, value in attributes.items()}
        return rows


def _no_spans(trace_id: str) -> str:
    return f"the server returns no spans of trace {shorten_inside(trace_id, 80)}"


def _parsed(value: Any) -> Any:
    """Return the value of a text that is JSON, and other values unchanged."""
    try:
        return from_json(value, allow_inf_nan=False) if isinstance(value, str) else value
    except ValueError:
        return value


def _with_hex(spans: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert the ids of spans from the base64 of protobuf's JSON to hex digits."""
    ids = ("trace_id", "span_id", "parent_span_id")
    return [
        {name: _hex(value) if name in ids else value for name, value in span.items()}
        | {"links": _with_hex(each for each in span.get("links", []) if isinstance(each, Mapping))}
        for span in spans
    ]


def _hex(value: Any) -> Any:
    try:
        return b64decode(value, validate=True).hex() if isinstance(value, str) else value
    except (Base64Error, ValueError):
        return value


def _began_ms(info: Mapping[str, Any]) -> int:
    """Return when a trace began, in milliseconds since 1970; 0 if it cannot be read."""
    try:
        return int(datetime.fromisoformat(str(info["request_time"])).astimezone(UTC).timestamp() * 1000)
    except (KeyError, ValueError, OverflowError):
        return 0


def _milliseconds(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)
