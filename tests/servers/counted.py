"""A proxy before a server that counts the requests under way, and holds the first ones until so many came."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HELD = 60.0  # seconds at most that the first requests wait for each other
LATE = 0.5  # seconds in which one more than these would come


@dataclass
class Counted:
    """What came through. While `hold` is set, answers wait until `hold` requests are under way."""

    url: str = ""
    ending: str = "/completion"  # the path whose requests are counted
    hold: int = 0
    under_way: int = 0
    at_first: int = 0  # requests under way before the first was answered
    n: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def came(self) -> None:
        """Count a request, and wait while the first ones are held."""
        with self.changed:
            self.under_way += 1
            self.n += 1
            self.changed.notify_all()
            if self.hold:
                self.changed.wait_for(lambda: not self.hold or self.under_way >= self.hold, HELD)
        if self.hold:
            time.sleep(LATE)
            with self.changed:
                if self.hold:  # else another one has counted, and answers are on their way
                    self.at_first, self.hold = self.under_way, 0
                    self.changed.notify_all()

    def went(self) -> None:
        """Count an answer."""
        with self.changed:
            self.under_way -= 1


@contextmanager
def counting(address: str) -> Iterator[Counted]:
    """Serve a proxy before the server at `address` (a base URL that ends with `/v1`)."""
    target = urlsplit(address)
    counted = Counted()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._forward(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.endswith(counted.ending):
                self._forward(body)
                return
            counted.came()
            try:
                self._forward(body)
            finally:
                counted.went()

        def _forward(self, body: bytes | None) -> None:
            server = http.client.HTTPConnection(target.hostname or "", target.port, timeout=300)
            try:
                kept = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                server.request(self.command, self.path, body, kept)
                answer = server.getresponse()
                said = answer.read()
            finally:
                server.close()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        counted.url = f"http://127.0.0.1:{proxy.server_address[1]}{target.path}"
        try:
            yield counted
        finally:
            proxy.shutdown()
            thread.join()
