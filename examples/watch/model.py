"""A stand-in for a model server: answers OpenAI chat requests from a script, some of them wrongly."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("script.jsonl")


def script(path: Path = SCRIPT) -> dict[str, dict[str, Any]]:
    """Return the reply to each question: an `answer`, `hallucinated` or not, or a status as `error`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {each["question"]: each for each in map(json.loads, lines)}


@contextmanager
def serving(said: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the base URL of a scripted server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = asked["messages"][-1]["content"].rpartition("Question: ")[2]
            found = said.get(question, {"error": 404})
            status = found.get("error", 200)
            body = {"error": {"message": "not now"}} if "error" in found else chat(found["answer"])
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Do not log to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def chat(answer: str) -> dict[str, Any]:
    """Return a chat completion with this answer."""
    message = {"role": "assistant", "content": answer}
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 90, "completion_tokens": 12, "total_tokens": 102},
    }
