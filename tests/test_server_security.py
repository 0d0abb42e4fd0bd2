"""Who may ask the server what: names, tokens, sessions, other sites, bodies, and headers of every answer."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi import Body, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from playwright.sync_api import sync_playwright

from magistrate.errors import SpecError
from magistrate.server.limits import (
    ALARM,
    FIRST_WAIT,
    FORGOTTEN,
    FREE,
    IN_LINE,
    LONGEST_WAIT,
    POLL,
    WINDOW,
    TokenAttempts,
    client_of,
)
from magistrate.server.roles import WITH_TOKEN
from magistrate.server.security import POLICY, Sessions, local_path, protect
from magistrate.server.settings import Settings
from served import TOKEN, Clock, exchange, served

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
COOKIE = "magistrate_session_8421"
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
RIGHT = {"authorization": f"Bearer {TOKEN}"}
HEADERS = (
    "content-security-policy",
    "x-content-type-options",
    "referrer-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "permissions-policy",
    "cache-control",
)


def an_app() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    @app.get("/runs/{run}")
    @app.get("/healthz")
    @app.get("/readyz")
    @app.get("/static/style.css")
    def shown() -> PlainTextResponse:
        return PlainTextResponse("shown")

    @app.post("/change")
    @app.delete("/change")
    async def changed(request: Request) -> int:
        return len(await request.body())

    @app.post("/data")
    def data(body: Annotated[dict[str, Any], Body()]) -> int:
        return len(body)

    @app.get("/own")
    def own() -> PlainTextResponse:
        return PlainTextResponse("own", headers={"content-security-policy": "default-src 'self'"})

    @app.get("/error")
    def error() -> None:
        raise RuntimeError("this is meant")

    return app


def settings(**more: Any) -> Settings:
    return Settings(**{"store": "runs.db", **more})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locked(clock: Clock) -> Iterator[httpx.Client]:
    """A visitor of a server with a token."""
    app = protect(an_app(), settings(token=TOKEN), clock=clock)
    with served(app) as address, httpx.Client(base_url=address) as client:
        yield client


@pytest.fixture(scope="module")
def free() -> Iterator[httpx.Client]:
    """A visitor of a server without a token, which takes bodies of 1,000 bytes within half a second."""
    few = settings(body_bytes=1000, body_seconds=0.5, allowed_hosts=("Judge.Example",))
    with served(protect(an_app(), few)) as address, httpx.Client(base_url=address) as client:
        yield client


def sign_in(client: httpx.Client, token: str = TOKEN, **more: str) -> httpx.Response:
    return client.post("/login", data={"token": token, **more}, headers={"sec-fetch-site": "same-origin"})


# --- names of the server -------------------------------------------------------------------------


def test_loopback_and_allowed_names_are_answered(free: httpx.Client) -> None:
    for host in [
        "127.0.0.1",
        "127.0.0.1:9",
        "127.8.9.1",
        "localhost",
        "LOCALHOST:80",
        "localhost.",
        "[::1]",
        "[::1]:8421",
        "judge.example",
        "Judge.Example:443",
        "judge.example.",
    ]:
        assert free.get("/", headers={"host": host}).text == "shown", host


def test_other_names_are_refused_and_the_answer_says_so(free: httpx.Client) -> None:
    for host, status in [
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil-judge.example", 421),
        ("sub.judge.example", 421),
        ("10.0.0.1", 421),
        ("[2001:db8::1]:80", 421),
        ("0.0.0.0", 421),
        ("", 400),
        ("localhost:", 400),
        ("localhost:x", 400),
        ("localhost:80:80", 400),
        ("me@localhost", 400),
        ("localhost/x", 400),
        ("[::1", 400),
        ("::1", 400),
        ("a" * 300, 400),
    ]:
        answer = free.get("/healthz", headers={"host": host})
        assert answer.status_code == status, host
        assert ("--allow-host" if status == 421 else "Host header") in answer.json()["detail"], host
        assert answer.headers["content-security-policy"] == POLICY, host


def test_a_request_without_a_name_or_with_two_is_refused(free: httpx.Client) -> None:
    address = str(free.base_url).rstrip("/")
    for head in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    ):
        assert exchange(address, head).startswith(b"HTTP/1.1 400 "), head


def test_where_other_machines_come_in_addresses_and_this_machines_name_are_answered_and_others_are_not() -> (
    None
):
    open_to_all = protect(an_app(), settings(host="0.0.0.0", token=TOKEN))
    with served(open_to_all) as address, httpx.Client(base_url=address, headers=RIGHT) as client:
        for host in ("10.0.0.1:8421", "[2001:db8::1]", socket.gethostname(), "localhost"):
            assert client.get("/", headers={"host": host}).status_code == 200, host
        assert client.get("/", headers={"host": "evil.example"}).status_code == 421


def test_there_are_no_web_sockets() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"localhost")], "query_string": b""}
    asyncio.run(protect(an_app(), settings())(scope, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


# --- the token -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/static/style.css", "/login"])
def test_health_static_files_and_the_form_need_no_token(locked: httpx.Client, path: str) -> None:
    assert locked.get(path).status_code == 200
    assert locked.head(path).status_code in (200, 405)  # 405 is the application's


@pytest.mark.full
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/runs/x",
        "/healthz/",
        "/healthz/x",
        "/static",
        "/staticx",
        "//static/style.css",
        "/login/x",
        "/nope",
        "/STATIC/style.css",
        "/metrics",
        "/%6cogin/x",
        "/openapi.json",
    ],
)
def test_everything_else_does(locked: httpx.Client, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS"):
        answer = locked.request(method, path)
        assert answer.status_code == 401, method
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "Bearer TOKEN" in locked.get(path).json()["detail"]


def test_open_paths_are_open_for_reading_only(locked: httpx.Client) -> None:
    for path in ("/healthz", "/static/style.css"):
        assert locked.post(path).status_code == 401


@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER   {TOKEN}"])
def test_the_right_token_opens_everything(locked: httpx.Client, header: str) -> None:
    given = {"authorization": header}
    assert locked.get("/", headers=given).text == "shown"
    assert locked.post("/change", content=b"12", headers=given).json() == 2


@pytest.mark.full
@pytest.mark.parametrize(
    "header",
    [
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong-token-of-some-length",
        TOKEN.encode(),
        b"Token " + TOKEN.encode(),
        b"Basic " + TOKEN.encode(),
        b"Bearer" + TOKEN.encode(),
        b"Bearer " + TOKEN[:-1].encode(),
        b"Bearer " + TOKEN.encode() + b"x",
        b"Bearer " + TOKEN.encode() + b" " + TOKEN.encode(),
        b"Bearer " + TOKEN.upper().encode(),
        b"Bearer " + TOKEN.encode() + b", Bearer " + TOKEN.encode(),
        b'Bearer "' + TOKEN.encode() + b'"',
        "Bearer gerechtigkeit-für-alle-ümläute".encode(),
        b"Bearer \xff\xfe\xff\xfe",
        b"Bearer " + b"x" * 10_000,
        b"",
    ],
)
def test_anything_else_opens_nothing(locked: httpx.Client, header: bytes) -> None:
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: " + header + b"\r\n\r\n"
    answer = exchange(str(locked.base_url).rstrip("/"), head)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert TOKEN.encode() not in answer


def test_two_tokens_at_once_open_nothing_even_if_one_is_right(locked: httpx.Client) -> None:
    for other in (b"Bearer " + TOKEN.encode(), b"Basic x"):
        given = [(b"authorization", b"Bearer " + TOKEN.encode()), (b"authorization", other)]
        assert locked.get("/", headers=given).status_code == 401
        assert locked.get("/", headers=given[::-1]).status_code == 401


def test_headers_without_end_are_refused_and_the_server_lives(locked: httpx.Client) -> None:
    address = str(locked.base_url).rstrip("/")
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + b"x" * 20_000
    assert exchange(address, head).startswith(b"HTTP/1.1 400 ")
    assert locked.get("/", headers=RIGHT).status_code == 200


def test_a_token_in_the_address_opens_nothing(locked: httpx.Client) -> None:
    for path in ("/", "/login"):
        answer = locked.get(path, params={"token": TOKEN, "access_token": TOKEN})
        assert answer.status_code == (200 if path == "/login" else 401)
        assert "set-cookie" not in answer.headers
        assert TOKEN not in answer.text


def test_without_a_token_nobody_is_asked_for_one(free: httpx.Client) -> None:
    assert free.get("/").text == "shown"
    assert free.get("/", headers={"authorization": "Bearer whatever-it-may-be"}).text == "shown"
    assert free.get("/login?next=/runs/1").headers["location"] == "/runs/1"
    assert free.post("/logout").headers["location"] == "/"


# --- people --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "following"),
    [
        ("/", None),
        ("/runs/x?tag=a%26b&q=%C3%BC", "/runs/x?tag=a%26b&q=%C3%BC"),
        ("/runs/a%2Fb", "/runs/a%2Fb"),
        ("//evil.example/", None),
        ("/%5Cevil.example", "/%5Cevil.example"),
        ("/" + "x" * 5000, None),
    ],
)
def test_a_browser_is_sent_to_the_form_and_from_there_back(
    locked: httpx.Client, path: str, following: str | None
) -> None:
    address = str(locked.base_url).rstrip("/")
    sent = exchange(
        address,
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nConnection: close\r\n\r\n".encode(),
    )
    assert sent.startswith(b"HTTP/1.1 303 ")
    location = re.search(rb"location: (\S+)", sent)
    assert location is not None
    asked = urlsplit(location[1].decode())
    assert (asked.scheme, asked.netloc, asked.path) == ("", "", "/login")
    assert parse_qs(asked.query).get("next", [None])[0] == following
    if following is not None:
        assert sign_in(locked, next=following).headers["location"] == following


def test_a_browser_that_wanted_to_change_something_signs_in_and_begins_anew(locked: httpx.Client) -> None:
    answer = locked.post("/change", headers={**BROWSER, "sec-fetch-site": "same-origin"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


@pytest.mark.parametrize(
    ("shown", "there"),
    [
        ("http://127.0.0.1:8421/runs/x?tag=a", "/login?next=%2Fruns%2Fx%3Ftag%3Da"),
        ("https://evil.example//evil.example/", "/login"),
        ("http://[", "/login"),
        ("", "/login"),
    ],
)
def test_a_script_of_the_page_is_told_where_the_whole_page_should_go(
    locked: httpx.Client, shown: str, there: str
) -> None:
    given = {**BROWSER, "hx-request": "true", "hx-current-url": shown}
    answer = locked.get("/", headers=given)
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, there)


def test_the_form_can_be_read_and_sends_the_reader_on(locked: httpx.Client) -> None:
    answer = locked.get("/login", params={"next": '/runs/"><script>alert(1)</script>'})
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert '<form class="login" method="post" action="/login">' in answer.text
    assert '<label for="token">' in answer.text
    assert "<script>alert" not in answer.text
    assert 'name="next" value="/runs/&#34;&gt;&lt;script&gt;' in answer.text


def test_signing_in_gives_a_cookie_that_is_not_the_token_and_scripts_do_not_see(locked: httpx.Client) -> None:
    answer = sign_in(locked, next="/runs/1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/1")
    name, _, rest = answer.headers["set-cookie"].partition("=")
    value, *attributes = rest.split("; ")
    assert name == COOKIE
    assert {each.lower() for each in attributes} >= {"httponly", "samesite=strict", "path=/", "max-age=43200"}
    assert "secure" not in {each.lower() for each in attributes}  # it would be lost without HTTPS
    assert TOKEN not in value and len(value) > 40
    assert locked.get("/", headers=BROWSER).text == "shown"
    assert locked.post("/change", headers={"sec-fetch-site": "same-origin"}).json() == 0
    assert locked.get("/login?next=/runs/1").headers["location"] == "/runs/1"


def test_the_cookie_travels_by_https_only_where_the_page_did() -> None:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(protect(an_app(), settings(token=TOKEN)))
        async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
            return await client.post("/login", data={"token": TOKEN})

    assert "; secure" in asyncio.run(asked()).headers["set-cookie"].lower()


def test_a_pasted_token_may_have_blanks_around_it(locked: httpx.Client) -> None:
    assert sign_in(locked, f"  {TOKEN}\r\n").status_code == 303


@pytest.mark.parametrize("token", ["", " ", "wrong", TOKEN + "x", "ümläute \x00\u202e", "x" * 100_000])
def test_a_wrong_token_gets_the_form_again(locked: httpx.Client, token: str) -> None:
    answer = sign_in(locked, token, next="/runs/1")
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert 'name="next" value="/runs/1"' in answer.text
    assert "set-cookie" not in answer.headers
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_what_is_no_form_is_refused(locked: httpx.Client) -> None:
    assert locked.post("/login", json={"token": TOKEN}).status_code == 415
    many = "&".join(f"a{number}=1" for number in range(1000))
    form = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    assert locked.post("/login", content=many, headers=form).status_code == 400
    assert locked.post("/login", content=b"\xff\xfe%", headers=form).status_code == 401
    assert locked.put("/login").headers["allow"] == "GET, HEAD, POST"
    assert locked.get("/logout").headers["allow"] == "POST"


@pytest.mark.full
@pytest.mark.parametrize(
    "following",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "/ /evil.example",
        "\\\\evil.example",
        "javascript:alert(1)",
        "evil.example",
        "/x\r\nset-cookie: a=b",
        "/login",
        "/login?next=/login",
        "/logout#x",
        "/" + "x" * 4000,
        "",
    ],
)
def test_nobody_is_sent_elsewhere(locked: httpx.Client, following: str) -> None:
    assert local_path(following) == "/"
    assert sign_in(locked, next=following).headers["location"] == "/"


def test_a_session_ends_after_twelve_hours_and_with_signing_out(locked: httpx.Client, clock: Clock) -> None:
    sign_in(locked)
    clock.now += 12 * 3600 - 1
    assert locked.get("/").status_code == 200
    clock.now += 1
    assert locked.get("/").status_code == 401
    sign_in(locked)
    kept = locked.cookies[COOKIE]
    answer = locked.post("/logout", headers={"sec-fetch-site": "same-origin"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert COOKIE not in locked.cookies
    assert locked.get("/", headers={"cookie": f"{COOKIE}={kept}"}).status_code == 401


def test_signing_in_again_ends_the_session_before(locked: httpx.Client) -> None:
    sign_in(locked)
    before = locked.cookies[COOKIE]
    sign_in(locked)
    assert locked.get("/").status_code == 200
    locked.cookies.clear()
    assert locked.get("/", headers={"cookie": f"{COOKIE}={before}"}).status_code == 401


def test_of_several_cookies_of_the_name_one_has_to_be_right(locked: httpx.Client) -> None:
    sign_in(locked)
    right = locked.cookies[COOKIE]
    locked.cookies.clear()
    for cookies, status in [
        (f"{COOKIE}=wrong; {COOKIE}={right}", 200),
        (f"{COOKIE}={right};{COOKIE}=", 200),
        (f"other=1; {COOKIE}={right}", 200),
        (f"{COOKIE}=wrong; {COOKIE}=worse", 401),
        (f"x{COOKIE}={right}", 401),
        (f"{COOKIE} {right}", 401),
        (f'{COOKIE}="{right}"', 401),
        (f"{COOKIE}={TOKEN}", 401),
        ("=;;=", 401),
    ]:
        assert locked.get("/", headers={"cookie": cookies}).status_code == status, cookies


def test_a_server_that_begins_anew_knows_no_sessions(locked: httpx.Client) -> None:
    sign_in(locked)
    with served(protect(an_app(), settings(token=TOKEN))) as address:
        answer = httpx.get(address, cookies={COOKIE: locked.cookies[COOKIE]})
    assert answer.status_code == 401


def test_sessions_are_bounded_and_the_newest_are_kept(clock: Clock) -> None:
    sessions = Sessions(clock, 60)
    other = sessions.begin(b"other")
    ids = [sessions.begin(b"token") for _ in range(1500)]
    assert sessions.token_of(sessions.begin(b"third")) == b"third"
    assert sessions.token_of(other) == b"other", "nobody ends the sessions of others"
    assert len(set(ids)) == 1500
    assert [sessions.token_of(each) for each in (ids[0], ids[501], ids[502], ids[-1])] == [
        None,
        None,
        b"token",
        b"token",
    ]


# --- wrong tokens --------------------------------------------------------------------------------


def wrong(client: httpx.Client, number: int = 0) -> httpx.Response:
    return client.get("/", headers={"authorization": f"Bearer this-token-is-wrong-{number}"})


def test_after_five_wrong_tokens_in_a_minute_an_address_waits_longer_each_time(
    locked: httpx.Client, clock: Clock
) -> None:
    assert [wrong(locked, number).status_code for number in range(FREE)] == [401] * FREE
    with ThreadPoolExecutor(1) as pool:
        for number, wait in enumerate((1, 2, 4), FREE):
            answer = pool.submit(wrong, locked, number)
            time.sleep(0.2)
            clock.now += wait - 0.1
            time.sleep(2 * POLL)
            assert not answer.done()
            clock.now += 0.1
            assert answer.result(20).status_code == 401
        # A right token waits in the same line, and makes nobody wait longer.
        answer = pool.submit(locked.get, "/", headers=RIGHT)
        time.sleep(2 * POLL)
        assert not answer.done()
        clock.now += 8
        assert [answer.result(20).status_code, locked.get("/", headers=RIGHT).status_code] == [200, 200]


def test_whoever_asks_at_once_guesses_no_faster_and_the_owner_gets_in() -> None:
    numbers, clock = itertools.count(), Clock()
    app = protect(an_app(), settings(token=TOKEN), clock=clock)
    limits = httpx.Limits(max_connections=64)
    with served(app) as address, httpx.Client(base_url=address, limits=limits, timeout=30) as client:
        elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=address, transport=elsewhere) as other, ThreadPoolExecutor(17) as pool:
            sign_in(client)
            session = {"cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
            client.cookies.clear()
            began = time.monotonic()
            end = began + 2.5

            def pass_time() -> None:
                while (past := time.monotonic() - began) < 2.5:
                    clock.now = 1000 + past
                    time.sleep(0.01)
                while not over.wait(0.01):
                    clock.now += 1

            over = threading.Event()
            pool.submit(pass_time)

            def guesses() -> list[tuple[int, str]]:
                found = []
                while time.monotonic() < end:
                    answer = wrong(client, next(numbers))
                    found.append((answer.status_code, answer.headers.get("retry-after", "")))
                return found

            told = [pool.submit(guesses) for _ in range(15)]
            time.sleep(1)
            assert other.get("/", headers=RIGHT).status_code == 200, "another address waits for nobody"
            assert other.get("/", headers=session).status_code == 200
            assert client.get("/", headers=session).status_code == 200, "who is signed in goes on"
            found = [answer for each in told for answer in each.result(60)]
            looked_at = [status for status, _ in found if status == 401]
            away = [float(after) for status, after in found if status == 429]
            assert len(looked_at) <= FREE + IN_LINE + 2, "626 a second were, before"
            assert len(looked_at) + len(away) == len(found) and away and min(away) >= 1
            assert client.get("/", headers=RIGHT).status_code == 200, "after a wait"
            over.set()


def test_the_form_and_the_header_are_counted_together(locked: httpx.Client, clock: Clock) -> None:
    for number in range(FREE - 2):
        wrong(locked, number)
    assert [sign_in(locked, f"wrong {number}").status_code for number in range(2)] == [401, 401]
    with ThreadPoolExecutor(IN_LINE) as pool:
        waiting = [pool.submit(wrong, locked, FREE + number) for number in range(IN_LINE)]
        time.sleep(0.5)
        answer = sign_in(locked, "wrong again")
        assert (answer.status_code, "Try again in" in answer.text) == (429, True)
        assert int(answer.headers["retry-after"]) >= 1 and not any(each.done() for each in waiting)
        while not all(each.done() for each in waiting):
            clock.now += LONGEST_WAIT
            time.sleep(POLL)


@pytest.mark.full
def test_the_same_wrong_token_again_does_not_count(locked: httpx.Client) -> None:
    assert {wrong(locked).status_code for _ in range(10 * FREE)} == {401}
    assert locked.get("/", headers=RIGHT).status_code == 200


def test_slow_mistakes_are_forgiven(locked: httpx.Client, clock: Clock) -> None:
    for number in range(30):
        assert wrong(locked, number).status_code == 401
        clock.now += 16  # four in a minute


def test_a_request_without_a_token_is_no_wrong_one(locked: httpx.Client) -> None:
    for _ in range(2 * FREE):
        assert locked.get("/").status_code == 401
        assert locked.get("/", headers={"authorization": "Basic eDp5"}).status_code == 401
        assert locked.get("/", headers={"cookie": f"{COOKIE}=old"}).status_code == 401


def guessed(attempts: TokenAttempts, n: int, *clients: str) -> None:
    """`n` wrong tokens that each of some addresses shows."""

    async def show() -> None:
        for client in clients:
            for number in range(n):
                assert await attempts.check(client, f"{client} {number}".encode()) == "wrong"

    asyncio.run(show())


def test_addresses_are_counted_apart_and_not_too_many_are_remembered(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[TokenAttempts.__module__], "MOST_ADDRESSES", 100)
    attempts = TokenAttempts(TOKEN, clock)
    guessed(attempts, FREE, "first")
    assert (attempts.wait("first"), attempts.wait("second")) == (FIRST_WAIT, 0)
    guessed(attempts, 1, *(f"other {number}" for number in range(100)))
    assert attempts.wait("first") == 0  # forgotten for those who came later


def test_while_many_guess_an_address_waits_after_its_first_wrong_token(clock: Clock) -> None:
    attempts = TokenAttempts(TOKEN, clock)
    guessed(attempts, 1, *(f"one of many {number}" for number in range(ALARM)))
    assert attempts.wait("one of many 0") == attempts.wait("new") == 0
    guessed(attempts, 1, "new")
    assert attempts.wait("new") == FIRST_WAIT
    assert asyncio.run(attempts.check("the owner", TOKEN.encode())) == WITH_TOKEN
    clock.now += 2 * WINDOW
    guessed(attempts, 1, "later")
    assert attempts.wait("later") == 0


def test_waits_have_a_longest_and_an_address_is_forgotten_in_the_end(clock: Clock) -> None:
    attempts = TokenAttempts(TOKEN, clock)
    guessed(attempts, FREE, "a")
    waits = []
    for number in range(20):
        waits.append(attempts.wait("a"))
        clock.now += waits[-1]
        assert asyncio.run(attempts.check("a", f"more {number}".encode())) == "wrong"
    assert waits[:4] == [1, 2, 4, 8] and set(waits[5:]) == {LONGEST_WAIT}
    clock.now += 2 * FORGOTTEN
    assert attempts.wait("a") == 0


@pytest.mark.parametrize(
    ("client", "counted"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1), "2001:db8:1:2::"),
        (("/run/socket", 0), "/run/socket"),
        (None, "unknown"),
    ],
)
def test_whom_attempts_are_counted_for(client: tuple[str, int] | None, counted: str) -> None:
    assert client_of({"client": client}) == counted


def test_no_token_is_written_to_the_log(
    locked: httpx.Client, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "magistrate")
    for number in range(FREE):
        wrong(locked, number)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(sign_in, locked)
        time.sleep(0.2)
        clock.now += FIRST_WAIT
        assert answer.result(20).status_code == 303
    (record,) = [each for each in caplog.records if each.name == "magistrate.server"]
    assert "server.wrong_tokens" in record.getMessage()
    assert "127.0.0.1" in record.getMessage()
    for secret in ("this-token-is-wrong", TOKEN, locked.cookies[COOKIE]):
        assert secret not in caplog.text


# --- other sites ---------------------------------------------------------------------------------

CROSS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}
UNSAFE = [
    ({"sec-fetch-site": "same-origin"}, True),
    ({"sec-fetch-site": "none"}, True),
    ({"sec-fetch-site": "same-site"}, False),  # another port of this machine
    ({"sec-fetch-site": "cross-site"}, False),
    ({"sec-fetch-site": "anything"}, False),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, False),
    ({"sec-fetch-site": "cross-site", "origin": "{origin}"}, False),
    ({"origin": "{origin}"}, True),
    ({"origin": "null"}, False),
    ({"origin": "https://evil.example"}, False),
    ({"origin": "{origin}.evil.example"}, False),
    ({"origin": "http://127.0.0.1:1"}, False),
    ({"origin": "http://127.0.0.1"}, False),
    ({"origin": "file://"}, False),
    ({"origin": "http://["}, False),
    ({"origin": ""}, False),
    ({"referer": "{origin}/"}, True),  # neither header, and no cookie: no browser
]


@pytest.mark.parametrize(("given", "passes"), UNSAFE, ids=str)
def test_without_a_token_only_the_servers_own_pages_change_something(
    free: httpx.Client, given: dict[str, str], passes: bool
) -> None:
    origin = str(free.base_url).rstrip("/")
    headers = {name: value.replace("{origin}", origin) for name, value in given.items()}
    for method in ("POST", "DELETE"):
        assert free.request(method, "/change", headers=headers).status_code == (200 if passes else 403)


@pytest.mark.full
@pytest.mark.parametrize(("given", "passes"), UNSAFE, ids=str)
def test_with_a_cookie_too_and_there_a_header_has_to_be(
    locked: httpx.Client, given: dict[str, str], passes: bool
) -> None:
    sign_in(locked)
    origin = str(locked.base_url).rstrip("/")
    headers = {name: value.replace("{origin}", origin) for name, value in given.items()}
    passes = passes and "referer" not in given
    answer = locked.post("/change", headers=headers)
    assert answer.status_code == (200 if passes else 403)
    if not passes:
        assert "another site" in answer.json()["detail"]


def test_a_right_bearer_token_may_come_from_anywhere(locked: httpx.Client) -> None:
    assert locked.post("/change", headers={**CROSS, **RIGHT}).status_code == 200
    assert locked.get("/", headers={**CROSS, **RIGHT}).status_code == 200


def test_the_scheme_of_a_proxy_and_its_usual_port_are_the_same_origin(free: httpx.Client) -> None:
    for origin, host in [
        ("https://judge.example", "judge.example"),
        ("https://judge.example", "judge.example:443"),
        ("https://judge.example:443", "judge.example"),
        ("http://judge.example", "JUDGE.example:80"),
        ("http://[::1]:8421", "[::1]:8421"),
    ]:
        answer = free.post("/change", headers={"origin": origin, "host": host})
        assert answer.status_code == 200, (origin, host)
    for origin, host in [
        ("https://judge.example", "judge.example:80"),
        ("ftp://judge.example", "judge.example"),
        ("https://judge.example:444", "judge.example"),
    ]:
        answer = free.post("/change", headers={"origin": origin, "host": host})
        assert answer.status_code == 403, (origin, host)


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_nobody_is_signed_in_or_out_by_another_site(locked: httpx.Client, path: str) -> None:
    answer = locked.post(path, data={"token": TOKEN}, headers=CROSS)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("mode", "dest", "passes"),
    [
        ("navigate", "document", True),
        ("navigate", "iframe", False),
        ("navigate", "object", False),
        ("no-cors", "image", False),
        ("no-cors", "script", False),
        ("cors", "empty", False),
    ],
)
def test_other_sites_may_link_here_and_load_nothing(
    free: httpx.Client, mode: str, dest: str, passes: bool
) -> None:
    for site in ("cross-site", "same-site"):
        given = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}
        assert free.get("/", headers=given).status_code == (200 if passes else 403)
        assert free.get("/", headers={**given, "sec-fetch-site": "same-origin"}).status_code == 200


class Seen:
    """An application that keeps the headers of what it is asked."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.headers: list[tuple[str, dict[bytes, bytes]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.headers.append((f"{scope['method']} {scope['path']}", dict(scope["headers"])))
        await self._app(scope, receive, send)


@pytest.mark.full
def test_a_real_browser_without_https_signs_in_and_works_and_another_site_does_not() -> None:
    """There it sends no `Sec-Fetch-Site`, and `Origin` with forms only under the right referrer policy."""
    app, other = an_app(), FastAPI()
    form = '<!doctype html><form method="post" action="{to}/change"><button>Go</button></form>'
    app.add_api_route("/form", lambda: HTMLResponse(form.format(to="")))
    seen = Seen(app)
    guarded = protect(seen, settings(host="0.0.0.0", token=TOKEN, allowed_hosts=("judge.example",)))
    names = "--host-resolver-rules=MAP judge.example 127.0.0.1, MAP evil.example 127.0.0.1"
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    with served(guarded) as ours, served(other) as theirs, sync_playwright() as playwright:
        ours, theirs = (
            address.replace("127.0.0.1", name)
            for address, name in ((ours, "judge.example"), (theirs, "evil.example"))
        )
        other.add_api_route("/form", lambda: HTMLResponse(form.format(to=ours)))
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", names])
        page = browser.new_page()
        page.goto(f"{ours}/form")
        page.get_by_label("Token of this server").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{ours}/form")
        page.get_by_role("button", name="Go").click()
        page.wait_for_url(f"{ours}/change")
        assert page.inner_text("body") == "0"
        page.goto(f"{theirs}/form")
        page.get_by_role("button", name="Go").click()
        page.wait_for_url(f"{ours}/change")
        assert "another site" in page.inner_text("body")
        browser.close()
    changes = [headers for asked, headers in seen.headers if asked == "POST /change"]
    assert [headers[b"origin"].decode() for headers in changes] == [ours]
    assert b"sec-fetch-site" not in changes[0]


# --- headers -------------------------------------------------------------------------------------


def test_every_answer_carries_the_headers(locked: httpx.Client) -> None:
    answers = [
        (200, locked.get("/", headers=RIGHT)),
        (401, locked.get("/")),
        (303, locked.get("/", headers=BROWSER)),
        (200, locked.get("/login")),
        (404, locked.get("/nope", headers=RIGHT)),
        (405, locked.put("/", headers=RIGHT)),
        (421, locked.get("/", headers={"host": "evil.example"})),
        (422, locked.post("/data", content=b"{", headers=RIGHT)),
        (500, locked.get("/error", headers=RIGHT)),
        (413, locked.post("/change", headers=RIGHT, content=b"x" * 2_000_001)),
    ]
    for status, answer in answers:
        assert answer.status_code == status
        assert all(answer.headers.get_list(name) for name in HEADERS), answer
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_a_page_may_bring_a_policy_of_its_own(locked: httpx.Client) -> None:
    answer = locked.get("/own", headers=RIGHT)
    assert answer.headers.get_list("content-security-policy") == ["default-src 'self'"]


def test_the_policy_lets_nothing_in_but_the_servers_own_files() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert (
        rules["script-src"] == rules["style-src"] == rules["connect-src"] == rules["form-action"] == "'self'"
    )
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert "unsafe" not in POLICY and "http" not in POLICY and "*" not in POLICY


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/static/style.css?v=0a1b", "public, max-age=31536000, immutable"),
        ("/static/style.css", "no-cache"),
        ("/static/style.css?v=", "no-cache"),
        ("/static/nope.css?v=0a1b", "no-store"),
        ("/?v=0a1b", "no-store"),
    ],
)
def test_only_static_files_are_kept_and_for_good_only_with_their_hash(
    free: httpx.Client, path: str, kept: str
) -> None:
    assert free.get(path).headers["cache-control"] == kept


# --- bodies --------------------------------------------------------------------------------------


def chunks(*sizes: int) -> Iterator[bytes]:
    for size in sizes:
        yield b"x" * size


def test_a_body_of_the_largest_size_passes(free: httpx.Client) -> None:
    assert free.post("/change", content=b"x" * 1000).json() == 1000
    assert free.post("/change", content=chunks(600, 400)).json() == 1000
    assert free.get("/").text == "shown"


@pytest.mark.full
@pytest.mark.parametrize("path", ["/change", "/data", "/nope", "/login"])
def test_a_longer_one_is_refused_before_it_is_read(free: httpx.Client, path: str) -> None:
    answer = free.post(path, content=b"x" * 1001)
    assert answer.status_code == 413
    assert "1,000 bytes" in answer.json()["detail"]
    assert answer.headers["connection"] == "close"
    address = str(free.base_url).rstrip("/")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**18}\r\n\r\n".encode()
    began = time.monotonic()
    assert exchange(address, head).startswith(b"HTTP/1.1 413 ")
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("path", ["/change", "/data"])
def test_one_of_unknown_length_is_counted_as_it_comes(free: httpx.Client, path: str) -> None:
    answer = free.post(path, content=chunks(600, 401), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert free.post(path, content=chunks(*[1000] * 3000)).status_code == 413


def test_who_sends_much_hears_why_it_is_not_taken(free: httpx.Client) -> None:
    for _ in range(3):
        assert free.post("/change", content=b"x" * 20_000_000).status_code == 413


@pytest.mark.full
@pytest.mark.parametrize("path", ["/change", "/data"])
@pytest.mark.parametrize("framing", ["Content-Length: 10", "Transfer-Encoding: chunked"])
def test_a_body_that_does_not_come_is_waited_for_so_long_and_no_longer(
    free: httpx.Client, path: str, framing: str
) -> None:
    address = str(free.base_url).rstrip("/")
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    began = time.monotonic()
    answer = exchange(address, head.encode())
    assert answer.startswith(b"HTTP/1.1 408 "), answer
    assert b"0.5 seconds" in answer
    assert 0.4 < time.monotonic() - began < 3


def test_one_that_comes_drop_by_drop_gets_no_more_time(free: httpx.Client) -> None:
    host, _, port = str(free.base_url).rstrip("/").removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"POST /change HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n")
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        answer = connection.recv(65536)
        stop.set()
        dripping.join()
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_slow_answer_is_not_a_slow_body() -> None:
    app = FastAPI()

    @app.post("/slow")
    async def slow(request: Request) -> int:
        length = len(await request.body())
        await asyncio.sleep(0.6)
        assert not await request.is_disconnected()
        return length

    with served(protect(app, settings(body_seconds=0.2))) as address:
        assert httpx.post(f"{address}/slow", content=b"abc").json() == 3


def test_a_visitor_who_leaves_in_the_middle_leaves_nothing_behind(free: httpx.Client) -> None:
    host, _, port = str(free.base_url).rstrip("/").removeprefix("http://").partition(":")
    for path in ("/change", "/login"):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            form = b"Content-Type: application/x-www-form-urlencoded\r\n"
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + form)
            connection.sendall(b"Content-Length: 900\r\n\r\nabc")
    assert free.get("/").text == "shown"


# --- what a server is started with ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "told"),
    [
        ("", "0 characters"),
        ("short", "5 characters"),
        ("with a blank in between", "without spaces"),
        ("gerechtigkeit-für-alle", "ASCII"),
        ("newline-in-the-end-000\n", "without spaces"),
        ("x" * 600, "600 characters"),
        ("\x00" * 20, "ASCII"),
    ],
)
def test_a_token_that_is_empty_short_or_odd_is_refused_and_not_repeated(token: str, told: str) -> None:
    with pytest.raises(SpecError, match=told) as refused:
        settings(token=token)
    assert len(token) < 5 or token not in str(refused.value)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "judge.example", "[::]", "127.0.0.1.evil.example"]
)
def test_where_other_machines_come_in_there_has_to_be_a_token(host: str) -> None:
    with pytest.raises(SpecError, match="needs a token"):
        settings(host=host)
    assert settings(host=host, token=TOKEN).token == TOKEN


@pytest.mark.parametrize("host", ["", "http://localhost", "localhost:80", "a b", "a/b", "-x", "*", "x" * 300])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(SpecError, match="a host must be a name or an address"):
        settings(host=host)
    with pytest.raises(SpecError, match="a host must be a name or an address"):
        settings(allowed_hosts=(host,))


def test_ports_and_stores_are_checked_and_secrets_are_not_shown() -> None:
    for port in (-1, 65536):
        with pytest.raises(SpecError, match="a port must be"):
            settings(port=port)
    with pytest.raises(SpecError, match="a store cannot use"):
        settings(store="mysql://x")
    made = settings(store="postgresql://me:hunter2@db.example/runs", token=TOKEN)
    assert "hunter2" not in repr(made) and TOKEN not in repr(made)
