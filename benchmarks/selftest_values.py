"""Writes the self-test of a model of the catalogue: transformers' log-probabilities in f32.

Run: .venv/bin/python benchmarks/selftest_values.py --peers PYTHON --gguf FILE NAME

PYTHON belongs to an environment with torch, transformers and gguf. FILE is the GGUF that the catalogue pins
under NAME (default: it is downloaded). The model must be installed already: magistrate models pull NAME.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from agreement import ask

from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.models import describe, disk, entry, locate, selftest
from magistrate.engines.models.gguf.rewrite import opened, rewrite
from magistrate.engines.models.pull import fetch
from magistrate.engines.models.updates import read_updates
from magistrate.errors import ModelError
from magistrate.types import Message, Prompt, Trusted

SYSTEM = "Answer in one sentence."  # else templates insert a longer default
QUESTION = "What is the capital of France?"
BEGUN = "The capital of France is"
POSITIONS = 4
RANKS = (0, 1, 2, 3, 5, 8, 11, 15)  # which of the likeliest tokens are kept at each position
MARGIN = 1.0  # nats between the likeliest token and the next, so that no rounding can swap them
FAINTEST = -12.0  # nats; for less likely tokens the differences are mostly noise
FIRST = 3  # first position: earlier ones hardly test attention


def values(tokens: list[int], answers: Path) -> dict[str, object]:
    """Return the self-test for these tokens from the reference's file, at clear positions only."""
    known = np.load(answers)
    logprobs, ids = known["top_logprobs"], known["top_ids"]
    clear = np.flatnonzero(
        (logprobs[:, 0] - logprobs[:, 1] >= MARGIN)
        & (logprobs[:, max(RANKS)] >= FAINTEST)
        & (np.arange(len(logprobs)) >= FIRST)
    )
    if len(clear) < POSITIONS:
        raise ModelError(f"only {len(clear)} positions are clear enough to test; use a longer text")
    chosen = clear[np.linspace(0, len(clear) - 1, POSITIONS).round().astype(int)]
    return {
        "by": str(known["by"]),
        "tokens": tokens,
        "positions": chosen.tolist(),
        "ids": ids[chosen][:, RANKS].tolist(),
        "logprobs": logprobs[chosen][:, RANKS].astype(float).round(5).tolist(),
    }


def main() -> None:
    """Compute the values, and write them into the catalogue."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("name")
    words.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="a Python with transformers")
    words.add_argument("--gguf", type=Path)
    said = words.parse_args()
    model = entry(said.name)
    folder = locate(model.name)
    said_so = {"system": SYSTEM, "user": QUESTION, "assistant": BEGUN}
    prompt = Prompt(tuple(Message(role, (Trusted(text),)) for role, text in said_so.items()))
    tokenizer = ChatTokenizer(folder, describe(folder))
    tokens = tokenizer.tokens(prompt)
    with tempfile.TemporaryDirectory() as scratch:
        gguf = said.gguf or fetch(model, Path(scratch))
        if disk.sha256(gguf) != model.sha256:
            raise ModelError(f"{gguf} is not the file that the catalogue pins as {model.name}")
        if model.update_file:
            merged = Path(scratch) / "merged.gguf"
            rewrite(opened(gguf), merged, "f16", disk.quiet, read_updates(model.update_file))
            gguf = merged
        # One extra token, because the reference has no result for the last position.
        found = values(tokens, ask([[*tokens, tokens[-1]]], gguf, said.peers, Path(scratch)))
    path = Path(selftest.__file__).with_name(selftest.VALUES)
    every = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    every[model.identity] = {"model": model.name, **found}
    path.write_text(json.dumps(every, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{model.name}: {len(tokens)} tokens, {POSITIONS} positions of {len(RANKS)} tokens -> {path}")


if __name__ == "__main__":
    main()
