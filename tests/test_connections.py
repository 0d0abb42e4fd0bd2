"""What one visitor without a token can hold of a server: few connections, and none for long."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from magistrate.server import limits
from magistrate.server.app import create_app, warm_up
from magistrate.server.serve import PROXIES_VARIABLE, make_server
from magistrate.server.settings import Settings
from served import TOKEN, running

HEAD = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
Port = int


@pytest.fixture(scope="module", autouse=True)
def _warm_up() -> None:
    """What a server imports when it starts, so that the time that it has to start in is enough."""
    warm_up()


@contextmanager
def a_server(folder: Path, **more: Any) -> Iterator[Port]:
    settings = Settings(store=str(folder / "runs.db"), token=TOKEN, **more)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    with listener, running(make_server(create_app(settings), settings), listener):
        yield listener.getsockname()[1]


def connected(port: Port, sent: bytes = b"", host: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(host, 0))
    made.sendall(sent)
    return made


def said(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def is_well(port: Port, host: str = "127.0.0.1") -> bool:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=host)) as client:
        return client.get(f"http://127.0.0.1:{port}/healthz", timeout=20).status_code == 200


def open_for(port: Port, sent: bytes, drip: bytes) -> float:
    """Seconds until the server closes a connection on which `drip` comes again and again."""
    with connected(port, sent) as visitor:
        began = time.monotonic()
        visitor.settimeout(0.1)
        while time.monotonic() < began + 10:
            try:
                visitor.sendall(drip)
                if not visitor.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        return time.monotonic() - began


def test_the_head_of_a_request_has_to_come_in_time(tmp_path: Path) -> None:
    cases = {
        "nothing": (b"", b""),
        "half a head": (HEAD, b""),
        "half a head, byte by byte": (HEAD, b"x"),
        "half a second head": (HEAD + b"\r\n" + HEAD, b"x"),
        "a body that nobody reads": (HEAD + b"content-length: 999\r\n\r\n", b"x"),
    }
    with a_server(tmp_path, head_seconds=0.5) as port, ThreadPoolExecutor(len(cases)) as pool:
        took = pool.map(lambda case: open_for(port, *case), cases.values())
        late = {name: seconds for name, seconds in zip(cases, took, strict=True) if seconds > 8}
        assert is_well(port)
    assert not late


def test_who_is_too_slow_is_told(tmp_path: Path) -> None:
    with a_server(tmp_path, head_seconds=0.3) as port, connected(port, HEAD) as visitor:
        assert said(visitor).startswith(b"HTTP/1.1 408 ")


def test_one_address_has_so_many_connections_and_others_still_get_in(tmp_path: Path) -> None:
    with a_server(tmp_path, connections_each=20) as port, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(port, HEAD))
        with connected(port, HEAD) as one_more:
            assert said(one_more).startswith(b"HTTP/1.1 429 ")
        assert is_well(port, "127.0.0.2")
        stack.close()
        assert is_well(port)


def test_half_open_connections_leave_files_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "open_files", lambda: 80)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with a_server(tmp_path, head_seconds=60) as port, ExitStack() as stack:
        for number in range(200):
            stack.enter_context(connected(port, HEAD, f"127.0.1.{number}"))
        assert is_well(port, "127.0.0.2"), "the one that has waited longest makes room"
        mine = 200
        assert len(list(Path("/proc/self/fd").iterdir())) - opened - mine < 80


def test_a_proxy_has_no_limit_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROXIES_VARIABLE, "127.0.0.0/30")
    with a_server(tmp_path, connections_each=8) as port, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(port, HEAD))
        assert is_well(port)


def test_many_requests_over_one_connection_go_on(tmp_path: Path) -> None:
    with (
        a_server(tmp_path, head_seconds=0.5) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for _ in range(8):
            assert client.get("/healthz").status_code == 200
            time.sleep(0.1)
        big = client.post(
            "/api/judge", json={"output": "x" * 500_000}, headers={"authorization": f"Bearer {TOKEN}"}
        )
        assert big.status_code == 422
