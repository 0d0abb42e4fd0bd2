"""An application behind a guard: which responses get out, and that every one says why."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from magistrate import Guarded, ScriptedEngine
from magistrate.errors import CapabilityError, EngineGone, SpecError
from magistrate.integrations import asgi
from magistrate.integrations.asgi import GuardMiddleware
from magistrate.judges.base import JudgeInfo
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict

GOOD, BAD = {"faithful": 0.9, "hallucinated": 0.1}, {"faithful": 0.1, "hallucinated": 0.9}
SAID = {"answer": "It closes at six.", "sources": ["It closes at five."], "secret": "in the answer"}
HEADER = "magistrate-guard"


def read(scope: Mapping[str, Any], body: Any) -> Any:
    return {"answer": body["answer"], "context": body["sources"]} if scope["path"] == "/ask" else None


def an_app(body: bytes | list[bytes], *, status: int = 200, **headers: str) -> Any:
    """An application that always says this, in parts if there are several."""
    parts = [body] if isinstance(body, bytes) else body
    headers = {"content_type": "application/json", "etag": "abc", **headers}
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert "http.response.pathsend" not in scope["extensions"]
        await send({"type": "http.response.start", "status": status, "headers": named})
        for number, part in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts)})

    return app


def asked(app: Any, script: Any, path: str = "/ask", method: str = "GET", **options: Any) -> httpx.Response:
    engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
    guarded = GuardMiddleware(app, **{"read": read, "judge": "faithfulness", "model": engine} | options)

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=guarded)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path)

    return asyncio.run(main())


SAYS = an_app(json.dumps(SAID).encode(), access_control_allow_origin="*")


def test_a_faithful_answer_gets_out_as_it_is_also_in_parts() -> None:
    whole = json.dumps(SAID).encode()
    for app in (SAYS, an_app([whole[:20], b"", whole[20:]])):
        answer = asked(app, [GOOD])
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (200, whole, "abc")
        assert answer.headers[HEADER] == "allow; because=verdict"


def test_of_a_hallucinated_answer_nothing_gets_out() -> None:
    seen: list[Guarded] = []
    answer = asked(SAYS, [BAD], watch=seen.append)
    assert answer.status_code == 403 and answer.headers[HEADER] == "deny; because=verdict"
    assert "six" not in answer.text and "secret" not in answer.text and "etag" not in answer.headers
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.json()["guard"] == {
        "decision": "deny",
        "because": "verdict",
        "fail": None,
        "reason": "faithfulness says hallucinated (0.900)",
    }
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert [(each.answer, each.allowed) for each in seen] == [(SAID, False)]
    own = asked(SAYS, [BAD], status=200, fallback=lambda held: {"answer": "I do not know."})
    assert (own.status_code, own.json()) == (200, {"answer": "I do not know."})


@pytest.mark.parametrize(("way", "status"), [("open", 200), ("closed", 403)])
def test_without_a_verdict_it_is_open_or_closed_as_stated_and_says_so(way: str, status: int) -> None:
    other = {"open": "closed", "closed": "open"}[way]
    word = {"open": "allow", "closed": "deny"}[way]
    whole = json.dumps(SAID).encode()
    late = ScriptedEngine([GOOD], delay=30)
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("failure", SAYS, [EngineGone("gone")], {}),
        ("failure", SAYS, [ValueError("bug")], {}),
        ("abstention", an_app(json.dumps(SAID | {"sources": []}).encode()), [], {}),
        ("failure", an_app(b'{"answer": '), [], {}),
        ("failure", an_app(b'{"other": 1}'), [], {}),
        ("failure", an_app(gzip.compress(whole), content_encoding="gzip"), [], {}),
        ("failure", an_app([whole, b" " * 50]), [], {"most_bytes": len(whole) + 10}),
        ("timeout", SAYS, late, {"budget_ms": 50}),
    ]
    for because, app, script, more in cases:
        ways = {"on_timeout": other, "on_failure": way}
        if because == "timeout":
            ways = {"on_timeout": way, "on_failure": other}
        answer = asked(app, script, **ways, **more)
        assert answer.headers[HEADER] == f"{word}; because={because}; fail={way}", (because, more)
        assert answer.status_code == status
        if way == "closed":
            assert b"six" not in answer.content
    assert (
        asked(an_app([whole, b" " * 50]), [], on_failure="open", most_bytes=10).content == whole + b" " * 50
    )


def test_a_judge_that_computes_without_a_pause_holds_nobody_up() -> None:
    gate = threading.Event()

    class Busy:
        info = JudgeInfo("busy", labels=(FAITHFUL, HALLUCINATED), threshold=0.5, kind="code")

        async def judge(self, sample: Sample, engine: Any) -> Verdict:
            if "six" in str(sample.output):
                gate.wait(60)  # as a loop would that never awaits
            return Verdict(sample.id, "busy", FAITHFUL, 0.1)

    try:
        late = asked(SAYS, [], judge=Busy(), budget_ms=50, on_timeout="closed")
        assert late.headers[HEADER] == "deny; because=timeout; fail=closed"
        others = an_app(json.dumps(SAID | {"answer": "At five."}).encode())
        assert asked(others, [], judge=Busy()).headers[HEADER] == "allow; because=verdict"
    finally:
        gate.set()


@pytest.mark.parametrize(
    ("app", "more", "why"),
    [
        (an_app(b"<p>six</p>", content_type="text/html"), {}, "not-json"),
        (an_app(b'{"detail": "no"}', status=404), {}, "status"),
        (SAYS, {"path": "/other"}, "nothing-to-judge"),
        (SAYS, {"method": "HEAD"}, "no-body"),
    ],
)
def test_what_is_not_judged_says_so(app: Any, more: dict[str, str], why: str) -> None:
    answer = asked(app, [], **more)
    assert answer.headers.get_list(HEADER) == [f"skipped; because={why}"]
    lying = an_app(b"x", content_type="text/plain", magistrate_guard="allow; because=verdict")
    assert asked(lying, []).headers.get_list(HEADER) == ["skipped; because=not-json"]


def test_too_many_at_a_time_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "AT_ONCE", 0)
    assert asked(SAYS, [GOOD]).headers[HEADER] == "deny; because=failure; fail=closed"


def test_a_guard_that_can_never_judge_is_an_error_and_not_open() -> None:
    for options in ({"judge": "nobody"}, {"judge": "moderation"}, {"on_failure": "ajar"}, {"budget_ms": 0}):
        with pytest.raises(SpecError):
            GuardMiddleware(SAYS, **{"read": read, **options})
    deaf = ScriptedEngine([], can=frozenset({"generate"}))
    with pytest.raises(CapabilityError):
        asked(SAYS, deaf, on_failure="open", on_timeout="open")
