"""`magistrate serve` as people start and end it, what it says of itself, and what it leaves in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse
from prometheus_client.parser import text_string_to_metric_families

from magistrate.errors import MagistrateError, SpecError, StoreError
from magistrate.server import monitoring
from magistrate.server.app import create_app
from magistrate.server.monitoring import MOST_JUDGES, Metrics, Readiness, RequestMonitor
from magistrate.server.serve import PROXIES_VARIABLE, StreamCloser, bind, make_server, serve, url_of
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.types import Abstention, Failure, Verdict
from served import TOKEN, Clock, exchange, running, served
from terminal import Call

START_SECONDS, END_SECONDS = 60, 20


class Process:
    """`magistrate serve` in a process of its own."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self.program = program
        assert program.stdout is not None
        self.line = program.stdout.readline()

    @property
    def url(self) -> str:
        return self.line.strip()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """The exit code, and what else it printed."""
        self.program.send_signal(number)
        out, err = self.program.communicate(timeout=END_SECONDS)
        return self.program.returncode, out, err


Start = Callable[..., Process]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start it, on any free port where none is named, and wait for its first line."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, command: tuple[str, ...] = ("-m", "magistrate", "serve"), **more: str) -> Process:
        port = () if "--port" in words or command[0] == "-c" else ("--port", "0")
        program = subprocess.Popen(
            [sys.executable, *command, *words, *port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **more},
        )
        started.append(program)
        return Process(program)

    yield begin
    for program in started:
        if program.poll() is None:
            program.kill()
        program.communicate()


def an_app() -> FastAPI:
    """An application with slow answers and a stream without an end."""
    app = FastAPI()
    app.state.metrics, app.state.find_user = Metrics(), None
    inner = APIRouter()

    @app.get("/quick")
    def quick() -> str:
        return "quick"

    @app.get("/slow/{seconds}")
    def slow(seconds: float) -> str:
        time.sleep(seconds)
        return "slow"

    @app.get("/events")
    async def events() -> StreamingResponse:
        async def endless() -> Any:
            while True:
                yield "data: x\n\n"
                await asyncio.sleep(0.05)

        return StreamingResponse(endless(), media_type="text/event-stream")

    @app.get("/error")
    def error() -> None:
        raise RuntimeError("the sample said so")

    @inner.get("/things/{thing}")
    def thing(thing: str) -> PlainTextResponse:
        return PlainTextResponse(thing)

    app.include_router(inner, prefix="/api")
    app.include_router(monitoring.router)
    return app


@contextmanager
def serving(app: FastAPI, **more: Any) -> Iterator[str]:
    """The address of what `serve` runs, in this process."""
    settings = Settings(**{"store": "runs.db", "port": 0, **more})
    with bind(settings) as listener, running(make_server(app, settings), listener):
        yield url_of(listener).rstrip("/")


# --- the command ---------------------------------------------------------------------------------


def test_a_first_visit_the_store_is_made_and_the_page_is_there(start: Start, home: Path) -> None:
    server = start()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", server.line)
    assert (home / "magistrate.db").exists()
    assert httpx.get(f"{server.url}healthz").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}readyz").json() == {"status": "ready"}
    page = httpx.get(server.url, headers={"accept": "text/html"})
    assert page.status_code == 200 and "<html" in page.text
    assert "server" not in page.headers
    assert httpx.get(server.url, headers={"host": "evil.example"}).status_code == 421
    assert server.end() == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.full)])
def test_ctrl_c_and_a_closed_terminal_end_it_in_good_order(start: Start, number: signal.Signals) -> None:
    server = start("--host", "localhost", "--allow-host", "judge.example")
    assert httpx.get(f"{server.url}healthz", headers={"host": "judge.example"}).status_code == 200
    assert server.end(number) == (0, "", "")


@pytest.mark.full
def test_a_token_is_made_and_printed_once_where_other_machines_come_in(start: Start) -> None:
    server = start("--host", "0.0.0.0", "--verbose")
    assert server.url.startswith("http://127.0.0.1:")
    assert server.program.stderr is not None
    first = server.program.stderr.readline()
    token = first.removeprefix("token: ").strip()
    assert re.fullmatch(r"[\w-]{43}", token), first
    assert httpx.get(server.url).status_code == 401
    assert httpx.get(server.url, headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert httpx.get(server.url, headers={"authorization": f"Bearer {token}x"}).status_code == 401
    code, out, err = server.end()
    assert (code, out) == (0, "")
    assert token not in err


@pytest.mark.full
@pytest.mark.parametrize("way", ["environment", "option"])
def test_a_token_that_is_given_holds_on_this_machine_too_and_is_never_printed(start: Start, way: str) -> None:
    given = ("--token", TOKEN) if way == "option" else ()
    server = start("--verbose", *given, **({"MAGISTRATE_TOKEN": TOKEN} if way == "environment" else {}))
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/").status_code == 401
        form = client.get("/", headers={"accept": "text/html"}, follow_redirects=True)
        assert form.url.path == "/login"
        answer = client.post("/login", data={"token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert f"magistrate_session_{client.base_url.port}" in client.cookies
        assert client.get("/").status_code == 200
        assert client.get("/metrics").status_code == 200
        secrets = (TOKEN, *client.cookies.values())
    code, out, err = server.end()
    assert (code, out) == (0, "")
    assert all(secret not in err for secret in secrets)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--token", ""], "a token must have 16 to 512"),
        (["--token", "short"], "a token must have 16 to 512"),
        (["--token", "with a blank in it"], "a token must have 16 to 512"),
        (["--host", "0.0.0.0", "--token", ""], "a token must have 16 to 512"),
        (["--host", "http://localhost"], "a host must be a name or an address"),
        (["--host", "nowhere.invalid", "--token", TOKEN], "nowhere.invalid is unknown"),
        (["--host", "192.0.2.1", "--token", TOKEN], "not an address of this machine"),
        (["--allow-host", "judge.example:80"], "a host must be a name or an address"),
        (["--store", "absent.db"], "there is no store of runs at absent.db; check --store"),
        (["--store", ""], "a store needs a file"),
        (["--store", "mysql://x"], "a store cannot use"),
        (["--port", "65536"], "--port"),
    ],
)
def test_what_cannot_be_is_said_with_exit_code_2(call: Call, words: list[str], told: str) -> None:
    done = call("serve", *words)
    assert (done.code, done.out) == (2, "")
    assert told in " ".join(done.err.split())
    assert TOKEN not in done.err


def test_an_empty_variable_is_no_way_to_be_without_a_token(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGISTRATE_TOKEN", "")
    assert "a token must have 16 to 512" in call("serve").err


def test_a_port_that_is_taken_is_said_to_be(call: Call, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = call("serve", "--port", port)
    assert done.code == 2
    assert done.err == (
        f"error: port {port} on 127.0.0.1 is used by another program; choose one with --port, "
        "or --port 0 for any free one\n"
    )


def test_a_store_that_is_no_store_is_said_to_be_none_before_anybody_comes(call: Call, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("this is not a database, however long one reads in it" * 100)
    done = call("serve", "--store", broken)
    assert (done.code, done.out) == (2, "")
    assert str(broken) in " ".join(done.err.split()).replace(" ", "")


@pytest.mark.full
def test_the_log_tells_requests_where_it_is_asked_for_without_what_was_searched(start: Start) -> None:
    server = start("--verbose")
    httpx.get(f"{server.url}healthz?q=secret-words&tag=a&lone-words")
    httpx.get(server.url, headers={"host": "evil.example"})
    code, _, err = server.end()
    assert code == 0
    lines = [json.loads(line) for line in err.splitlines()]
    told = [line for line in lines if line["event"] == "server.request"]
    assert [(line["method"], line["path"], line["status"]) for line in told] == [
        ("GET", "/healthz?q&tag&…", 200),
        ("GET", "/", 421),
    ]
    assert told[0]["client"] == "127.0.0.1" and 0 <= told[0]["seconds"] < 10
    assert "secret-words" not in err and "lone-words" not in err


@pytest.mark.full
@pytest.mark.parametrize("named", [True, False])
def test_a_browser_is_opened_once_the_page_answers(
    start: Start, home: Path, tmp_path: Path, named: bool
) -> None:
    with Store.open(home / "magistrate.db") as store:
        run = store.create_run(
            dataset="d", dataset_digest="d", model="m", engine_fingerprint="f", recipes={}, name="night"
        )
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport sys, urllib.request\n"
        f"status = urllib.request.urlopen(sys.argv[1]).status\n"
        f"open({str(opened)!r}, 'w').write(f'{{sys.argv[1]}} {{status}}')\n"
    )
    browser.chmod(0o755)
    server = start("--open", *(["night"] if named else []), BROWSER=str(browser))
    end = time.monotonic() + 20
    while not (opened.exists() and opened.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    assert opened.read_text() == f"{server.url}{f'runs/{run}' if named else ''} 200"
    assert server.end()[0] == 0


def test_a_run_that_is_not_there_is_not_opened(call: Call) -> None:
    done = call("serve", "--open", "nothing")
    assert done.code == 2 and "unknown run 'nothing'" in done.err


def test_help_says_what_it_does_without_loading_a_web_framework() -> None:
    code = (
        "import sys; sys.argv = ['magistrate', 'serve', '--help']; import magistrate.cli\n"
        "try: magistrate.cli.main()\n"
        "except SystemExit: print('LOADED', *sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    words, _, loaded = done.stdout.partition("LOADED")
    assert "--allow-host" in words and "MAGISTRATE_TOKEN" in words
    assert not {"fastapi", "starlette", "uvicorn", "prometheus_client", "jinja2"} & set(loaded.split())


# --- its end -------------------------------------------------------------------------------------

SLOW = """
import sys, time
import magistrate.server.app as ours
from fastapi import FastAPI
from magistrate.server.monitoring import Metrics
def create_app(settings):
    app = FastAPI()
    app.state.metrics, app.state.find_user = Metrics(), None
    @app.get("/slow/{seconds}")
    def slow(seconds: float):
        print("begun", flush=True)
        time.sleep(seconds)
        return "slow"
    return app
ours.create_app = create_app
sys.argv = ["magistrate", "serve", "--port", "0"]
from magistrate.cli import main
main()
"""


def asked_slowly(server: Process, seconds: float) -> tuple[threading.Thread, list[Any]]:
    """A request that is under way when this returns, and what will have come of it."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(httpx.get(f"{server.url}slow/{seconds}", timeout=60))
        except httpx.HTTPError as error:
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert server.program.stdout is not None
    assert server.program.stdout.readline() == "begun\n"
    return asking, answers


@pytest.mark.full
def test_a_request_under_way_is_answered_before_it_ends(start: Start) -> None:
    server = start(command=("-c", SLOW))
    asking, answers = asked_slowly(server, 1.5)
    began = time.monotonic()
    code, _, err = server.end()
    asking.join()
    assert (code, err, answers[0].json()) == (0, "", "slow")
    assert 1 < time.monotonic() - began < 5


@pytest.mark.full
def test_one_that_takes_too_long_is_given_up_and_the_program_ends_all_the_same(start: Start) -> None:
    server = start(command=("-c", SLOW))
    asking, answers = asked_slowly(server, 60)
    began = time.monotonic()
    code, _, _ = server.end()
    asking.join()
    assert code == 0
    assert 4 < time.monotonic() - began < 9
    assert (answers[0].status_code, "ending" in answers[0].text) == (503, True)


def test_streams_of_events_end_in_good_order_and_at_once() -> None:
    app, read = an_app(), []
    settings = Settings(store="runs.db", port=0)
    server = make_server(app, settings)
    with bind(settings) as listener:
        with running(server, listener), httpx.stream("GET", f"{url_of(listener)}events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for part in answer.iter_text():
                read.append(part)
                if len(read) == 3:
                    began = time.monotonic()
                    server.should_exit = True
        assert time.monotonic() - began < 2  # and nothing was raised: the stream was complete
    assert "".join(read).startswith("data: x\n\ndata: x\n\n")


def test_a_stream_that_begins_when_all_is_ending_ends_too() -> None:
    streams = StreamCloser(an_app())
    with served(streams) as address:
        assert httpx.get(f"{address}/quick").json() == "quick"
        streams.end()
        began = time.monotonic()
        assert httpx.get(f"{address}/events").status_code == 200
        assert time.monotonic() - began < 2
        assert httpx.get(f"{address}/quick").json() == "quick"


def test_an_application_that_cannot_start_is_said_not_to(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if app.state.metrics:
            raise RuntimeError("no weights")
        yield

    app = FastAPI(lifespan=lifespan)
    app.state.metrics, app.state.find_user = Metrics(), None
    settings = Settings(store="runs.db", port=0)
    handlers = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM)
    with pytest.raises(MagistrateError, match="could not start"):
        serve(app, settings, bind(settings))
    assert "no weights" in caplog.text
    assert (signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGTERM)) == handlers


# --- where it listens ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.3.4.5", "127.3.4.5"),
    ],
)
def test_the_address_that_is_printed_can_be_opened(host: str, url: str) -> None:
    with bind(Settings(store="runs.db", host=host, port=0, token=TOKEN)) as listener:
        assert url_of(listener) == f"http://{url}:{listener.getsockname()[1]}/"
        with socket.create_connection((url, listener.getsockname()[1]), timeout=5):
            pass


def test_a_name_that_leads_to_other_machines_needs_a_token() -> None:
    with pytest.raises(SpecError, match="needs a token"):
        Settings(store="runs.db", host=socket.gethostname())


# --- proxies -------------------------------------------------------------------------------------


def test_a_proxy_is_believed_only_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "magistrate.server")
    told = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}
    cookies = []
    for named in (None, "127.0.0.1"):
        if named:
            monkeypatch.setenv(PROXIES_VARIABLE, named)
        with serving(an_app(), token=TOKEN) as address:
            answer = httpx.post(f"{address}/login", data={"token": TOKEN}, headers=told)
            cookies.append(answer.headers["set-cookie"].lower())
    assert ["; secure" in each for each in cookies] == [False, True]
    seen = [each.magistrate_fields["client"] for each in caplog.records if "server.request" in each.message]  # type: ignore[attr-defined]
    assert seen == ["127.0.0.1", "192.0.2.7"]


# --- errors --------------------------------------------------------------------------------------


def test_an_error_is_in_the_log_with_its_place_and_the_visitor_hears_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(an_app()) as address:
        answer = httpx.get(f"{address}/error?q=secret-words")
    assert answer.status_code == 500
    assert "sample" not in answer.text
    assert "content-security-policy" in answer.headers
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.name == "magistrate.server"
    told = record.getMessage()
    assert "route=/error" in told and "error=RuntimeError" in told and "at=" in told
    assert "secret-words" not in caplog.text
    assert "the sample said so" not in caplog.text


def test_an_error_outside_of_the_framework_is_answered_too() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raise RuntimeError("far out")

    with served(RequestMonitor(broken, Metrics())) as address:
        answer = httpx.get(address)
    assert (answer.status_code, "log" in answer.text, "far out" in answer.text) == (500, True, False)


def test_odd_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving(an_app()) as address:
        for _ in range(3):
            assert b" 400 " in exchange(address, b"\x16\x03\x01 nonsense\r\n\r\n")
    assert [
        each for each in caplog.records if each.levelno >= logging.WARNING and "magistrate" in each.name
    ] == []


# --- health --------------------------------------------------------------------------------------


def test_it_is_not_ready_while_its_store_is_gone_and_makes_no_new_one(tmp_path: Path) -> None:
    place = tmp_path / "runs.db"
    Store.open(place).close()
    clock = Clock()
    app = create_app(Settings(store=str(place)))
    with serving(app) as address:
        assert httpx.get(f"{address}/readyz").status_code == 200
        for each in tmp_path.glob("runs.db*"):
            each.unlink()
        time.sleep(monitoring.REMEMBERED)
        answer = httpx.get(f"{address}/readyz")
        assert answer.status_code == 503
        assert answer.json() == {"status": "not ready", "reason": f"store {place}: the file is gone"}
        assert httpx.get(f"{address}/healthz").status_code == 200
    assert not place.exists()
    assert clock.now == 1000


def test_why_it_is_not_ready_holds_no_password() -> None:
    app = create_app(Settings(store="postgresql://me:hunter2-hunter2@127.0.0.1:1/runs"))
    with serving(app) as address:
        answer = httpx.get(f"{address}/readyz", timeout=30)
    assert answer.status_code == 503
    assert "hunter2" not in answer.text
    assert "127.0.0.1:1/runs" in answer.json()["reason"]


def test_the_store_is_asked_no_more_than_once_a_second_however_many_ask() -> None:
    clock, asked = Clock(), []

    def check() -> None:
        asked.append(clock.now)
        time.sleep(0.05)
        if len(asked) > 1:
            raise StoreError("store x: gone")

    async def ask() -> tuple[list[str | None], str | None]:
        ready = Readiness(check, clock)
        many = await asyncio.gather(*(ready.reason() for _ in range(20)))
        clock.now += monitoring.REMEMBERED
        return many, await ready.reason()

    assert asyncio.run(ask()) == ([None] * 20, "store x: gone")
    assert asked == [1000.0, 1001.0]


# --- metrics -------------------------------------------------------------------------------------


def numbers(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted_by_template_so_that_nobody_can_make_up_labels() -> None:
    with serving(an_app()) as address, httpx.Client(base_url=address) as client:
        for number in range(50):
            assert client.get(f"/api/things/{number}").text == str(number)
            assert client.get(f"/nowhere/{number}").status_code == 404
            client.request(f"METHOD{number}", "/quick")
            client.get("/quick", headers={"host": f"evil{number}.example"})
        client.get("/error")
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = numbers(answer.text)
    name = "magistrate_http_requests_total"
    counted = {key[1:]: value for key, value in found.items() if key[0] == name}
    assert counted == {
        ("method=GET", "route=/api/things/{thing}", "status=200"): 50,
        ("method=GET", "route=other", "status=404"): 50,
        ("method=other", "route=/quick", "status=405"): 50,
        ("method=GET", "route=other", "status=421"): 50,
        ("method=GET", "route=/error", "status=500"): 1,
    }
    durations = ("magistrate_http_request_seconds_count", "method=GET", "route=/api/things/{thing}")
    assert found[durations] == 50


def test_a_stream_counts_with_the_time_until_it_began() -> None:
    app = an_app()
    with serving(app) as address, httpx.stream("GET", f"{address}/events") as answer:
        time.sleep(0.5)
        next(answer.iter_text())
    found = numbers(app.state.metrics.text().decode())
    assert found[("magistrate_http_request_seconds_sum", "method=GET", "route=/events")] < 0.4


def test_judgements_are_counted_by_judge_and_outcome() -> None:
    counts = Metrics()
    verdict = Verdict(sample_id="1", judge="exact", label="faithful", score=0.0)
    with counts.judging():
        assert numbers(counts.text().decode())[("magistrate_judgements_in_flight",)] == 1
    for outcome in (
        verdict,
        verdict,
        Failure("1", "exact", "timeout", "late"),
        Abstention("1", "exact", "no_context", "none"),
    ):
        counts.judged("exact", outcome)
    with pytest.raises(RuntimeError), counts.judging():
        raise RuntimeError
    found = numbers(counts.text().decode())
    assert found[("magistrate_judgements_in_flight",)] == 0
    judged = {key[2]: value for key, value in found.items() if key[0] == "magistrate_judgements_total"}
    assert judged == {"outcome=verdict": 2, "outcome=failure": 1, "outcome=abstention": 1}
    for number in range(3 * MOST_JUDGES):
        counts.judged(f"judge {number}", verdict)
    counts.judged("exact", verdict)
    found = numbers(counts.text().decode())
    judges = {key[1] for key in found if key[0] == "magistrate_judgements_total"}
    assert len(judges) == MOST_JUDGES + 1
    assert found[("magistrate_judgements_total", "judge=other", "outcome=verdict")] == 2 * MOST_JUDGES + 1
    assert found[("magistrate_judgements_total", "judge=exact", "outcome=verdict")] == 3


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = an_app(), an_app()
    with serving(first) as address:
        httpx.get(f"{address}/quick")
    assert "/quick" in first.state.metrics.text().decode()
    assert "/quick" not in second.state.metrics.text().decode()


def test_an_answer_that_is_never_given_is_counted_as_an_error() -> None:
    counts, clock = Metrics(), Clock()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        clock.now += 3
        raise RuntimeError("far out")

    async def ask() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b""}
        await RequestMonitor(broken, counts, clock=clock)(scope, None, send)  # type: ignore[arg-type]
        return sent

    assert asyncio.run(ask())[0]["status"] == 500
    found = numbers(counts.text().decode())
    assert found[("magistrate_http_requests_total", "method=GET", "route=other", "status=500")] == 1
    assert found[("magistrate_http_request_seconds_sum", "method=GET", "route=other")] == 3
