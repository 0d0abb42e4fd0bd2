"""`magistrate watch pull`: spans of Phoenix and of MLflow are read once each, and none is lost."""

from __future__ import annotations

import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from magistrate import _async
from magistrate.engines.remote.retry import RetryingCaller, RetryPolicy
from magistrate.errors import EngineError, EngineRefused, SpecError
from magistrate.store import Store
from magistrate.watch import pull as pulling
from magistrate.watch.pull import Mlflow, Phoenix, Pulled, Reader, Source, pull
from terminal import Call
from watched import NOON, SECOND

NOW = NOON.timestamp()
WRONG, RIGHT = "Bern has 999,999 people.", "Bern has 134,000 people."


class Tracker:
    """A server that has spans; `says` are answers that it gives first, None for those that it has."""

    def __init__(self, *says: tuple[int, dict[str, str], bytes] | None) -> None:
        self.says = list(says)
        self.asked: list[tuple[str, dict[str, list[str]], Any, str | None]] = []

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        raise NotImplementedError


class PhoenixStandin(Tracker):
    """Rows as its API has them: numbered, the newest first; a cursor is the next page's first row."""

    def __init__(self, *says: tuple[int, dict[str, str], bytes] | None) -> None:
        super().__init__(*says)
        self.rows: dict[int, dict[str, Any]] = {}

    def add(self, *rows: dict[str, Any]) -> None:
        for row in rows:
            number = max(self.rows, default=0) + 1
            self.rows[number] = {"id": self.id_of(number), **row}

    @staticmethod
    def id_of(number: int) -> str:
        return b64encode(f"Span:{number}".encode()).decode()

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        assert (path, body) == ("/v1/projects/a%20shop/spans", None)
        begin = datetime.fromisoformat(
            query["start_time"][0] if "start_time" in query else "0001-01-01T00:00Z"
        )
        numbers = sorted(
            (n for n, each in self.rows.items() if datetime.fromisoformat(each["start_time"]) >= begin),
            reverse=True,
        )
        if "cursor" in query:
            numbers = [each for each in numbers if each <= self.number_of(query["cursor"][0])]
        page, rest = numbers[: int(query["limit"][0])], numbers[int(query["limit"][0]) :]
        return {
            "data": [self.rows[each] for each in page],
            "next_cursor": self.id_of(rest[0]) if rest else None,
        }

    @staticmethod
    def number_of(id: str) -> int:
        return int(b64decode(id).decode().removeprefix("Span:"))


class MlflowStandin(Tracker):
    """Traces by id, as `search` tells of them and `batchGet` gives them; those under way have no duration.

    The spans of some are in `files`. As MLflow does, it fails if one of these is asked for with others.
    """

    def __init__(self, *says: tuple[int, dict[str, str], bytes] | None) -> None:
        super().__init__(*says)
        self.traces: dict[str, dict[str, Any]] = {}
        self.files: dict[str, tuple[int, dict[str, str], bytes]] = {}

    def add(
        self, number: int, output: str = RIGHT, *, began: float = 0, state: str = "OK", spans: int = 1
    ) -> None:
        """A trace that began so many seconds after noon."""
        trace_id, at = f"tr-{number:032x}", NOON + timedelta(seconds=began)
        info = {"trace_id": trace_id, "state": state, "request_time": at.isoformat().replace("+00:00", "Z")}
        info |= {"tags": {"mlflow.trace.spansLocation": "TRACKING_STORE"}}
        one = {
            "trace_id": b64encode(number.to_bytes(16)).decode(),
            "span_id": b64encode(bytes([7] * 8)).decode(),
            "name": "answer",
            "start_time_unix_nano": int(NOW) * SECOND,
            "end_time_unix_nano": int(NOW + 1) * SECOND,
            "attributes": [
                {"key": "mlflow.spanType", "value": {"string_value": "CHAIN"}},
                {"key": "mlflow.spanInputs", "value": {"string_value": '{"question": "How many?"}'}},
                {"key": "mlflow.spanOutputs", "value": {"string_value": json.dumps(output)}},
            ],
        }
        self.traces[trace_id] = {"trace_info": info, "spans": [one] * spans}

    def add_file(self, number: int, tags: dict[str, str], status: int = 200, content: bytes = b"") -> None:
        """A trace whose spans are in a file: by default as MLflow writes it, where each attribute is JSON."""
        self.add(number, began=number)
        trace_id = f"tr-{number:032x}"
        trace = self.traces[trace_id]
        trace["trace_info"]["tags"] = tags
        values = {
            "mlflow.spanType": "CHAIN",
            "mlflow.spanInputs": {"question": "How many?"},
            "mlflow.spanOutputs": RIGHT,
        }
        (span,) = trace["spans"]
        span = {
            **span,
            "parent_span_id": None,
            "status": {"code": "STATUS_CODE_OK", "message": ""},
            "attributes": {name: json.dumps(value) for name, value in values.items()},
            "links": [],
        }
        self.files[trace_id] = (status, {}, content or json.dumps({"spans": [span]}).encode())

    def answer(self, path: str, query: dict[str, list[str]], body: Any) -> Any:
        if path == "/api/3.0/mlflow/traces/batchGet":
            if not self.files.keys().isdisjoint(query["trace_ids"]):
                return (500, {}, b'{"message": "Trace data not stored in tracking store"}')
            return {"traces": [self.traces[each] for each in query["trace_ids"] if each in self.traces]}
        if path == "/ajax-api/2.0/mlflow/get-trace-artifact":
            return self.files[query["request_id"][0]]
        assert path == "/api/3.0/mlflow/traces/search"
        assert body["locations"][0]["mlflow_experiment"] == {"experiment_id": "3"}
        assert body["order_by"] == ["timestamp_ms ASC"]
        begin = int(body["filter"].removeprefix("trace.timestamp_ms >= "))
        found = [(self.began_ms(each["trace_info"]), trace) for trace, each in self.traces.items()]
        chosen = sorted(each for each in found if each[0] >= begin)
        place, n = int(body.get("page_token", 0)), body["max_results"]
        infos = [self.traces[trace]["trace_info"] for _, trace in chosen[place : place + n]]
        said: dict[str, Any] = {"traces": infos}
        return said | ({"next_page_token": str(place + n)} if len(chosen) > place + n else {})

    @staticmethod
    def began_ms(info: dict[str, Any]) -> int:
        return round(datetime.fromisoformat(info["request_time"]).timestamp() * 1000)


@contextmanager
def listening(tracker: Tracker) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(None)

        def do_POST(self) -> None:
            self._say(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _say(self, body: Any) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            tracker.asked.append((parts.path, query, body, self.headers["authorization"]))
            said = tracker.says.pop(0) if tracker.says else None
            said = said or tracker.answer(parts.path, query, body)
            status, headers, content = (
                said if isinstance(said, tuple) else (200, {}, json.dumps(said).encode())
            )
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def reader(address: str) -> Reader:
    """A reader for which the time between its attempts passes at once."""
    now = [0.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    caller = RetryingCaller("it", RetryPolicy(retries=2), clock=lambda: now[0], sleep=sleep)
    return Reader("it", address, caller=caller)


def row(number: int, output: str = RIGHT) -> list[dict[str, Any]]:
    """A trace as Phoenix has it, its documents first."""
    trace = f"{number:032x}"
    times = {"start_time": "2026-11-21T12:00:01+00:00", "end_time": "2026-11-21T12:00:02+00:00"}
    return [
        {
            "name": "search",
            "context": {"trace_id": trace, "span_id": "b" * 16},
            "parent_id": "a" * 16,
            "span_kind": "RETRIEVER",
            "status_code": "OK",
            **times,
            "attributes": {"retrieval.documents.0.document.content": RIGHT},
        },
        {
            "name": "desk",
            "context": {"trace_id": trace, "span_id": "a" * 16},
            "parent_id": None,
            "span_kind": "CHAIN",
            "status_code": "OK",
            "start_time": "2026-11-21T12:00:00+00:00",
            "end_time": "2026-11-21T12:00:09+00:00",
            "attributes": {"input.value": "How many people?", "output.value": output},
        },
    ]


def pulled(store: Store, source: Source, since: datetime | None = None) -> Pulled:
    return _async.run(pull(store, source, clock=lambda: NOON, since=since))


def traces_of(store: Store) -> dict[str, int]:
    """How many spans each trace has that was noted in the store."""
    with store.snapshot() as moment:
        n = moment.trace_counts().n
    found = {f"{each:032x}": len(store.traces.trace(f"{each:032x}")) for each in range(1, 12)}
    found = {trace: spans for trace, spans in found.items() if spans}
    assert len(found) == n
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of three, and a margin of two rows."""
    monkeypatch.setattr(pulling, "PAGE", 3)
    monkeypatch.setattr(pulling, "MARGIN", 2)
    monkeypatch.setattr(pulling, "TRACES_AT_ONCE", 2)


BUSY = (503, {"retry-after": "7"}, b"")
LOCKED = (401, {}, b'{"detail": "not you"}')


def test_rows_of_phoenix_are_read_once_and_none_is_lost(small: None, place: str) -> None:
    tracker = PhoenixStandin(BUSY, None, LOCKED)
    for number in range(1, 6):
        tracker.add(*row(number))
    with listening(tracker) as address, Store.open(place) as store:
        source = Phoenix(reader(address), "a shop")
        with pytest.raises(EngineRefused, match="answered 401: not you"):
            pulled(store, source)
        assert store.sources.cursor(source.name) is None, "the rows below were not read"
        assert sum(traces_of(store).values()) == 3

        found = pulled(store, source)
        assert (found.spans, found.changed, found.unread) == (10, 7, [])
        assert set(traces_of(store).values()) == {2}
        assert store.sources.cursor(source.name) == {"row": 10}

        tracker.add(*row(6), *row(7))
        asked = len(tracker.asked)
        assert pulled(store, source).changed == 4
        assert len(tracker.asked) - asked == 3, "no further down than the margin"
        assert pulled(store, source).changed == 0

        tracker.rows[1]["start_time"] = "2026-11-21T13:30:00+00:00"
        found = pulled(store, source, NOON + timedelta(hours=1))
        assert (found.spans, found.changed) == (1, 1), "what began before was not asked for"
        assert store.sources.cursor(source.name) == {"row": 14}, "it is where it was"

        tracker.rows.clear()  # it begins anew
        tracker.add(*row(8), {**row(9)[0], "context": {"span_id": "b" * 16}})
        found = pulled(store, source)
        assert (found.changed, found.unread) == (2, ["a span without a trace id"])
        assert store.sources.cursor(source.name) == {"row": 3}


def test_traces_of_mlflow_are_read_once_they_ended_and_none_is_lost(small: None, place: str) -> None:
    tracker = MlflowStandin(None, None, None, LOCKED)
    for number in range(1, 6):
        tracker.add(number, began=number)
    tracker.add(6, began=30, state="IN_PROGRESS")
    tracker.add(7, began=86_400 * 900)  # of a machine whose clock is wrong
    tracker.add(10, began=-86_400 * 2, state="IN_PROGRESS")  # it will never end
    with listening(tracker) as address, Store.open(place) as store:
        source = Mlflow(reader(address), "3", clock=lambda: NOW + 60)
        with pytest.raises(EngineRefused):
            pulled(store, source)
        assert sorted(traces_of(store)) == [f"{each:032x}" for each in (1, 2)]
        assert store.sources.cursor(source.name) == {"began_ms": (NOW + 2) * 1000}, "each page counts"

        assert pulled(store, source).changed == 4
        assert sorted(traces_of(store)) == [f"{each:032x}" for each in (1, 2, 3, 4, 5, 7)]
        assert store.sources.cursor(source.name) == {"began_ms": (NOW + 30) * 1000}, "one is under way"

        tracker.add(6, began=30)
        tracker.add(8, began=2)  # it took longer, and comes late
        tracker.add(9, began=50, spans=0)
        found = pulled(store, source)
        assert found.changed == 2
        assert found.unread == [f"the server returns no spans of trace tr-{9:032x}"]
        assert store.sources.cursor(source.name) == {"began_ms": (NOW + 60) * 1000}, "no later than now"
        (span,) = store.traces.trace(f"{8:032x}")
        assert (span.span_id, span.parent_id, span.attributes["mlflow.spanType"]) == ("07" * 8, None, "CHAIN")


def test_traces_of_mlflow_in_files_are_read_too_and_stop_no_other(place: str) -> None:
    tracker, filed = MlflowStandin(), {"mlflow.trace.spansLocation": "ARTIFACT_REPO"}
    tracker.add(1, began=1)
    tracker.add_file(2, filed)
    tracker.add_file(3, {})  # of a server that knows no other place
    tracker.add_file(4, filed, 404, b'{"message": "Trace data not found"}')
    tracker.add_file(5, filed, content=b"{broken")
    tracker.add(6, began=6)
    with listening(tracker) as address, Store.open(place) as store:
        source = Mlflow(reader(address), "3", clock=lambda: NOW + 60)
        done = pulled(store, source)
        assert sorted(traces_of(store)) == [f"{each:032x}" for each in (1, 2, 3, 6)]
        assert done.unread == [f"the server returns no spans of trace tr-{each:032x}" for each in (4, 5)]
        (batched,), (filed_one,) = (store.traces.trace(f"{each:032x}") for each in (1, 2))
        assert (filed_one.span_id, filed_one.parent_id, filed_one.status) == ("07" * 8, None, "ok")
        assert filed_one.end_ns == batched.end_ns
        assert filed_one.attributes == {
            "mlflow.spanType": "CHAIN",
            "mlflow.spanInputs": {"question": "How many?"},
            "mlflow.spanOutputs": RIGHT,
        }
        assert pulled(store, source).changed == 0

        tracker.add_file(7, filed, 403, b'{"message": "not yours"}')
        with pytest.raises(EngineRefused, match="answered 403: not yours"):
            pulled(store, source)
        assert store.sources.cursor(source.name) == {"began_ms": (NOW + 6) * 1000}


def test_what_is_no_such_server_is_told_and_nothing_noted(tmp_path: Path) -> None:
    same = b'{"data": [], "next_cursor": "Uw=="}'
    cases: dict[str, tuple[Callable[[Reader], Source], tuple[int, dict[str, str], bytes]]] = {
        "an object of JSON": (Phoenix, (200, {}, b"<html>")),
        "a list 'data' of objects": (Phoenix, (200, {}, b'{"data": [1]}')),
        "the ids of spans": (Phoenix, (200, {}, b'{"data": [{"id": "Span-1"}]}')),
        "a list 'traces' of objects": (Mlflow, (200, {}, b'{"traces": {}}')),
        "answered 302": (Mlflow, (302, {"location": "http://127.0.0.1:1/"}, b"")),
        "answered 400: no such key": (Mlflow, (400, {}, b'{"message": "no such key"}')),
        "answered 500": (Phoenix, (500, {}, b"")),
    }
    with Store.open(tmp_path / "runs.db") as store:
        for told, (kind, said) in cases.items():
            with listening(Tracker(said, said, said)) as address:
                source = kind(reader(address))
                with pytest.raises(EngineError, match=told):
                    pulled(store, source)
                assert store.sources.cursor(source.name) is None, told
        with listening(Tracker((200, {}, same))) as address:
            assert pulled(store, Phoenix(reader(address))).spans == 0
    for wrong in ("ftp://x", "http://key@host", "localhost:6006"):
        with pytest.raises(SpecError):
            Reader("it", wrong)


def test_the_command_pulls_with_a_key_of_the_environment_and_rules_judge(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = PhoenixStandin()
    tracker.add(*row(1), *row(2, WRONG))
    (tmp_path / "rules.yaml").write_text("rules:\n  - name: all\n    judges: [novelty]\n    quiet: 0\n")
    with listening(tracker) as address:
        words = ("watch", "pull", "phoenix", address, "--project", "a shop", "--header-env")
        done = call(*words, "Authorization=PHOENIX_AUTHORIZATION")
        assert (done.code, tracker.asked) == (2, []) and "PHOENIX_AUTHORIZATION" in done.err
        monkeypatch.setenv("PHOENIX_AUTHORIZATION", "Bearer very-secret-key")
        done = call(*words, "Authorization=PHOENIX_AUTHORIZATION", "--json")
        assert (done.code, json.loads(done.out)["changed"]) == (0, 4), done.err
        assert tracker.asked[0][3] == "Bearer very-secret-key"
        assert "4 spans read, 0 of them new" in call(*words[:-1]).out
        monkeypatch.setenv("PHOENIX_AUTHORIZATION", "Bearer very-secret\nkey")
        done = call(*words, "Authorization=PHOENIX_AUTHORIZATION")
        assert done.code == 3 and "a header is invalid" in done.err and "very-secret" not in done.err
        monkeypatch.setenv("PHOENIX_AUTHORIZATION", "Bearer very-secret-key")
        tracker.says = [LOCKED]
        done = call(*words, "Authorization=PHOENIX_AUTHORIZATION")
        assert done.code == 3 and "401: not you" in done.err and "very-secret" not in done.err
        done = call(*words, "Bearer very-secret-key")
        assert done.code == 2 and "very-secret" not in done.err
    judged = call("watch", "run", "--rules", tmp_path / "rules.yaml", "--once", "--json")
    (rule,) = json.loads(judged.out)["rules"]
    assert rule["decisions"] == {"judged": 2}
