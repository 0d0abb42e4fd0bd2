"""Servers on this machine that take what Magistrate sends, and give the answers they were told."""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import StreamRequestHandler, TCPServer
from typing import Any


class Collector:
    """A server that gives the answers it was told, one after another, the last for ever."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], bytes]] = []

    def take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((path, headers, body))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def listening(collector: Collector) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more, answer = collector.take(self.path, headers, body)
            self.send_response(status)
            for name, value in {**more, "content-length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Mailbox:
    """What an SMTP server took: the sender, the recipients, and the mail; `refuses` is its answer to DATA."""

    def __init__(self, refuses: str = "") -> None:
        self.mails: list[tuple[str, list[str], str]] = []
        self.logins: list[str] = []
        self.refuses = refuses


@contextmanager
def mail_server(box: Mailbox) -> Iterator[int]:
    """A server that speaks as much SMTP as a client needs; the port that it listens on."""

    class Handler(StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            sender, to = "", list[str]()
            self.say("220 here")
            while line := self.rfile.readline().decode().strip():
                word, _, rest = line.partition(" ")
                match word.upper():
                    case "EHLO":
                        self.say("250-here")
                        self.say("250 AUTH PLAIN")
                    case "AUTH":
                        box.logins.append(b64decode(rest.split()[-1]).decode())
                        self.say("235 welcome")
                    case "MAIL":
                        sender = rest.partition(":")[2].split()[0]
                        self.say("250 ok")
                    case "RCPT":
                        to.append(rest.partition(":")[2].split()[0])
                        self.say("250 ok")
                    case "DATA" if box.refuses:
                        self.say(box.refuses)
                    case "DATA":
                        self.say("354 go on")
                        lines = list(iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), "."))
                        box.mails.append((sender, to, "\n".join(lines)))
                        self.say("250 taken")
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("250 ok")

    with TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
