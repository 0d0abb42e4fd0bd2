"""Time to compile five schemas and to compute their masks, compared with xgrammar and outlines-core.

Run: .venv/bin/python -m benchmarks.constraints [--peers PYTHON] [--limit SECONDS] [--json]

PYTHON belongs to an environment with xgrammar and outlines-core. Without it only our own results are
printed. A peer that exceeds the limit for a schema, or rejects it, is printed as such. All get the same
vocabulary (the default model's, 49,152 tokens), the same schema and the same answer, token by token. Only
the quotes of the rubric are replaced by any text of up to 400 characters for the peers, which do not
support quotes.

It prints milliseconds to compile, microseconds per mask, and the slowest mask. The time per mask is the
median along the answer, the first time and again with the same compiled constraint (including what a mask
engine caches). Each result uses one process and one thread. `first` is for a text never written under that
constraint before.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

from benchmarks.contenders import workload
from magistrate.constraints import Constraint, Quote, QuoteOf, constraint
from magistrate.constraints.masks import MaskEngine
from magistrate.constraints.quote import pieces
from magistrate.datasets import load
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.models import default, describe, pull

PEERS = ("xgrammar", "outlines-core")
CONTEXT_TOKENS = 4000
DEPTH = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One engine on one schema; on failure `why` gives the reason and the numbers are None."""

    schema: str
    engine: str
    compile_ms: float | None = None
    first_us: float | None = None
    again_us: float | None = None
    slowest_us: float | None = None
    masks: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, our constraint for it, and an answer that fits it."""

    name: str
    shape: Constraint
    schema: Mapping[str, Any]  # the schema that peers get
    answer: str


class Flag(BaseModel):
    hallucinated: bool


class Verdict(BaseModel):
    reason: Annotated[str, Field(min_length=30, max_length=50)]
    label: Literal["supported", "unsupported"]


class Claim(BaseModel):
    reasoning: Annotated[str, Field(max_length=300)]
    kind: Literal["contradiction", "unsupported", "agreement"]
    output_quote: Annotated[Quote, QuoteOf("output")]
    context_quote: Annotated[Quote, QuoteOf("context")] | None


class Rubric(BaseModel):
    claims: Annotated[list[Claim], Field(max_length=8)]


class Tree(BaseModel):
    value: Annotated[int, Field(ge=0, le=99)]
    children: Annotated[list[Tree], Field(max_length=2)]


def text_of(tokenizer: ChatTokenizer, tokens: int) -> tuple[str, str]:
    """Return a context of `tokens` tokens from the built-in set, and an output."""
    samples = list(load("quickstart"))
    text, index = "", 0
    while len(tokenizer.encode(text).tokens) < tokens:
        # Numbered, because the set is short and repeated text is quoted from its first occurrence.
        text += f"Document {index}. " + " ".join(samples[index % len(samples)].context) + " "
        index += 1
    # On one line: with a bounded length xgrammar allows no escapes, and would refuse a line break.
    return " ".join(text.split()), " ".join(sample.output for sample in samples[:3])


def cases(tokenizer: ChatTokenizer) -> list[Case]:
    """Return the five schemas."""
    context, output = text_of(tokenizer, CONTEXT_TOKENS)

    def run(text: str, start: int, count: int) -> str:
        return "".join(pieces(text, "words")[start : start + count]).strip()

    claim = {
        "reasoning": "The brochure gives nine as the hour, and the answer says ten.",
        "kind": "contradiction",
    }
    claims = [
        claim | {"output_quote": run(output, place, 9), "context_quote": run(context, 700 * place + 9, 21)}
        for place in range(4)
    ]
    claims += [
        claim | {"kind": "unsupported", "output_quote": run(output, 12, 15), "context_quote": None}
    ] * 4
    values = [f"topic {n:04}" for n in range(2000)]
    tree = {"value": 1, "children": [{"value": 22, "children": [{"value": 3, "children": []}]}] * 2}
    shapes: list[tuple[str, Any, Mapping[str, Any] | None, Any]] = [
        ("flag", constraint(Flag), None, {"hallucinated": True}),
        (
            "verdict",
            constraint(Verdict),
            None,
            {"reason": "The brochure says nine, the answer ten.", "label": "unsupported"},
        ),
        (
            "rubric, 8 claims",
            constraint(Rubric).over(context=context, output=output),
            rubric_without_quotes(),
            {"claims": claims},
        ),
        ("tree, 4 levels", constraint(Tree, depth=DEPTH), None, tree),
        ("enum, 2,000 values", constraint({"enum": values}), None, values[1234]),
    ]
    return [
        Case(
            name, shape, given or shape.schema, json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        )
        for name, shape, given, answer in shapes
    ]


def rubric_without_quotes() -> Mapping[str, Any]:
    """Return the rubric for peers without quotes: text of up to 400 characters instead, or null."""
    schema: dict[str, Any] = json.loads(json.dumps(workload.RUBRIC))
    properties = schema["properties"]["claims"]["items"]["properties"]
    properties["context_quote"] = {"anyOf": [properties["context_quote"], {"type": "null"}]}
    return schema


def ours(case: Case, masks: MaskEngine, tokens: list[int]) -> Row:
    """Measure our engine. Gives the texts and compiles the constraint again, whatever was compiled before."""
    start = time.perf_counter()
    shape = case.shape.over(**case.shape.texts) if case.shape.quotes else case.shape
    matcher = masks.matcher(shape)
    compiled = time.perf_counter() - start
    walks = []
    for walk in (matcher, masks.matcher(shape)):
        own = []
        for token in tokens:
            start = time.perf_counter()
            allowed = walk.allows(token)  # computes the mask, one bit per token like the peers
            own.append(1e6 * (time.perf_counter() - start))
            assert allowed
            walk.consume([token])
        assert walk.accepting
        walks.append(own)
    return figures(case.name, "magistrate", 1000 * compiled, walks)


def figures(schema: str, engine: str, compile_ms: float, walks: list[list[float]]) -> Row:
    """Return the row of two walks along the same answer."""
    first, again = walks
    return Row(schema, engine, compile_ms, median(first), median(again), max(first), len(first))


def peers(case: Case, engine: str, python: str, asked: dict[str, Any], limit: float) -> Row:
    """Measure a peer in its own process."""
    question = json.dumps({**asked, "engine": engine, "schema": json.dumps(case.schema)})
    command = [python, "-W", "ignore", str(Path(__file__).with_name("constraints_peer.py"))]
    try:
        done = subprocess.run(
            command, input=question, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return Row(case.name, engine, why=f"not done in {limit:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        return Row(case.name, engine, why=lines[-1][:60])
    answer = json.loads(done.stdout)
    if not answer["accepted"]:
        return Row(case.name, engine, answer["compile_ms"], why="refuses the answer")
    return figures(case.name, engine, answer["compile_ms"], answer["masks_us"])


def table(rows: list[Row]) -> Table:
    """Return the rows as a table for people."""
    shown = Table("schema", "engine", "compile, ms", "mask, µs", "again", "slowest", "masks", box=None)
    for row in rows:
        numbers = [row.compile_ms, row.first_us, row.again_us, row.slowest_us]
        texts = ["–" if number is None else f"{number:,.1f}" for number in numbers]
        shown.add_row(row.schema, row.engine, *texts, str(row.masks) if row.masks else row.why)
    return shown


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--peers", metavar="PYTHON", help="a Python with xgrammar and outlines-core")
    words.add_argument("--limit", type=float, default=60.0, help="seconds a peer may take for a schema")
    words.add_argument("--json", action="store_true")
    chosen = words.parse_args()
    folder = pull(default())
    card = describe(folder)
    assert card.vocab_size is not None
    tokenizer = ChatTokenizer(folder, card)
    masks = MaskEngine(tokenizer.json, card.vocab_size, tokenizer.ends)
    vocabulary = [
        [base64.b64encode(text).decode(), token] for text, token in masks.vocabulary_bytes().items()
    ]
    rows = []
    for case in cases(tokenizer):
        tokens = list(tokenizer.encode(case.answer).tokens)
        rows.append(ours(case, masks, tokens))
        asked = {
            "vocabulary": vocabulary,
            "size": card.vocab_size,
            "end": tokenizer.ends[0],
            "tokens": tokens,
        }
        for engine in PEERS if chosen.peers else ():
            rows.append(peers(case, engine, chosen.peers, asked, chosen.limit))
    if chosen.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
    else:
        Console().print(table(rows))


if __name__ == "__main__":
    main()
