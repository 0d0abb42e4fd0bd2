"""A number of more digits than Python reads is a clear error or a failure wherever foreign digits come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magistrate.judges import registry
from magistrate.runs.execute import judge_one
from standins import Standin, ollama_like, running
from terminal import Call

DIGITS = "9" * 5000


def check(call: Call, *words: Any, code: int, says: str) -> None:
    """The command ends with `code`, and with one sentence that says what is wrong."""
    done = call(*words)
    assert done.code == code, (words[:2], done)
    assert says in done.err and "Traceback" not in done.err and len(done.err) < 6000, done.err[-500:]


@pytest.mark.parametrize("where", ["body", "text", "models"])
def test_in_what_a_server_answers(where: str, call: Call) -> None:
    usual = ollama_like()

    class Counting(Standin):
        def answer(self, method: str, path: str, body: Any, key: str) -> Any:
            status, said = super().answer(method, path, body, key)
            if where == "text" and "closes at six" in json.dumps(body):
                said["choices"][0]["message"]["content"] = f'{{"reasons": ["x"], "score": {DIGITS}}}'
            if where == "text" or (method == "GET") != (where == "models"):
                return status, said
            return status, json.dumps(said).encode()[:-1] + f', "n": {DIGITS}}}'.encode()

    with running(Counting(pages=usual.pages)) as standin:
        words = (
            "--context",
            "It closes at five.",
            "--output",
            "It closes at six.",
            "--judge",
            "hallucination",
        )
        done = call("judge", *words, "--model", "openai:model-a,anew=0", "--base-url", standin.url)
    assert done.code in (2, 3) and "Traceback" not in done.err, done
    assert "faithful" not in done.out
    if where == "text":
        assert "invalid_output" in done.out + done.err, done


def test_in_files(tmp_path: Path, call: Call) -> None:
    row = tmp_path / "row.jsonl"
    row.write_text(f'{{"output": "x", "context": "y", "n": {DIGITS}}}\n')
    listed = tmp_path / "list.jsonl"
    listed.write_text('{"output": "x", "context": "y", "n": ["z"]}\n')
    schema = tmp_path / "schema.json"
    schema.write_text(f'{{"type": "integer", "maximum": {DIGITS}}}')
    check(call, "run", row, "--judge", "novelty", code=2, says="row.jsonl:1")
    check(call, "generate", "hi", "--schema", schema, code=2, says="too many digits")
    for place in (DIGITS, "²", "-1"):
        mapped = ("run", listed, "--judge", "novelty", "--map", f"input=n.{place}")
        check(call, *mapped, code=2, says="no column")


def test_in_judged_texts() -> None:
    """Judges of code read any digits: superscripts, those of other scripts, and very many of them."""
    import asyncio

    from magistrate.engines.none import NoEngine
    from magistrate.types import Failure, Sample

    wrong = []
    texts = (DIGITS, f"12.{DIGITS} % of €{DIGITS} on 3 May {DIGITS}", "①② ²³ ٣٤", "٣" * 5000)
    for name in registry.judge_entries():
        judge = registry.judge(name)
        if judge.info.asks or judge.info.lacks or name == "regex":  # a pattern of its own is another matter
            continue
        for text in texts:
            sample = Sample("1", text, (f"{DIGITS} x",), input="q", expected=f"{DIGITS}1")
            outcome = asyncio.run(judge_one(sample, judge, NoEngine()))
            if isinstance(outcome, Failure):
                wrong.append(f"{name}: {outcome.message[:200]}")
    assert wrong == []
