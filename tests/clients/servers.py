"""Servers of other tools, each started in an environment of its own, and the commands that ask them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from test_clients import ENVIRONMENTS, LONGEST, started, without_settings

STARTS = 240.0  # most seconds that a server may take to start: it makes its database first

direct = build_opener(ProxyHandler({}))


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@contextmanager
def serving(
    environment: str, words: Sequence[str], settings: Mapping[str, str], folder: Path, ready: str
) -> Iterator[None]:
    """Start a server by the Python of an environment, and wait until the address `ready` answers."""
    python = ENVIRONMENTS / environment / "bin" / "python"
    assert python.exists(), f"{python.parents[1]} is not there: make test-clients"
    settings = {**settings, "PYTHONPATH": ""}  # Magistrate is not for the server to see
    with (
        (folder / "log").open("w") as log,
        started([str(python), *words], settings, stdout=log, stderr=log, cwd=folder) as server,
    ):
        until = time.monotonic() + STARTS
        while not _answers(ready):
            told = (folder / "log").read_text(encoding="utf-8")
            assert server.poll() is None and time.monotonic() < until, told
            time.sleep(0.2)
        yield


def _answers(address: str) -> bool:
    try:
        with direct.open(address, timeout=LONGEST):
            return True
    except (URLError, OSError):
        return False


def called(*words: str) -> str:
    """What a command of Magistrate prints."""
    done = subprocess.run(
        [sys.executable, "-m", "magistrate", *words],
        env=without_settings(),
        capture_output=True,
        text=True,
        timeout=LONGEST,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
