"""How far our arithmetic is from transformers in f32 on the same dequantized weights, teacher forced.

Run: .venv/bin/python benchmarks/agreement.py --peers PYTHON [MODEL ...]

PYTHON belongs to an environment with torch, transformers and gguf. It is needed only the first time,
because the results of transformers are kept in the folder of --cache. MODEL is a catalogue name,
`name:f16`, a GGUF file or an OpenVINO folder (default: the default model with q8 and with f16 weights). All
are compared with one reference, the GGUF of --gguf rewritten as Q8_0 (default: the first model's catalogue
entry, downloaded).

For each model it prints, over all positions of all prompts: the mean and 95th percentile of the absolute
difference of the next token's natural log-probability, and how often the likeliest token is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from magistrate.datasets import load
from magistrate.engines.embedded.backend import Row
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.openvino_backend import OpenVINOBackend
from magistrate.engines.embedded.prefix_cache import CachedSequence
from magistrate.engines.models import default, describe, entry, locate
from magistrate.engines.models.gguf import rewrite
from magistrate.engines.models.pull import fetch
from magistrate.judges import registry
from magistrate.judges.base import planned_calls
from magistrate.types import Data, Message, Prompt

SEED = 3
PROMPTS = 200
SHORTEST, LONGEST = 8, 1500  # tokens
RENDERED = 250  # least tokens for a whole judge prompt
JUDGES = ("faithfulness", "hallucination")
ROWS = 256  # tokens per forward pass


@dataclass(frozen=True, slots=True)
class Agreement:
    """One model compared with the reference; differences are of natural log-probabilities."""

    model: str
    prompts: int
    positions: int
    mean_difference: float
    p95_difference: float
    top1_agreement: float
    tokens_per_second: float


def prompts(tokenizer: ChatTokenizer) -> list[list[int]]:
    """Return PROMPTS token sequences, with lengths evenly spread on a log scale, in an order fixed by SEED.

    Long ones are whole judge prompts, with as many contexts of the built-in set as needed. Short ones are
    the last tokens of one user message, and end where an answer would begin.
    """
    draw = np.random.default_rng(SEED)
    samples = list(load("quickstart"))
    lengths = np.geomspace(SHORTEST, LONGEST, PROMPTS).round().astype(int)
    made = []
    for length in draw.permutation(lengths):
        order = [samples[index] for index in draw.permutation(len(samples))]
        judge = registry.judge(JUDGES[draw.integers(len(JUDGES))])
        first = order[0]
        if length < RENDERED:
            said = " ".join([first.input or "", first.output])
            tokens = tokenizer.tokens(Prompt((Message("user", (Data(said, "input"),)),)))[-length:]
        else:
            context: list[str] = []
            tokens = []
            while len(tokens) < length:
                context += order[len(context) % len(order)].context
                (call,) = planned_calls(judge, replace(first, context=tuple(context)))
                tokens = tokenizer.tokens(call.prompt)
        made.append(tokens)
    return made


def reference(
    every: list[list[int]], limit: int, gguf: Path | None, name: str, peers: str, cache: Path
) -> Path:
    """Return the file of transformers' results for at least the first `limit` texts, cached."""
    key = hashlib.sha256(json.dumps(every).encode()).hexdigest()[:8]
    kept = cache / f"reference_{name}_{key}.npz"
    if kept.exists() and len(np.load(kept)["lengths"]) >= limit:
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    print(f"asking transformers about {limit} prompts; kept as {kept}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        ask(every[:limit], gguf or fetch(entry(name), Path(scratch)), peers, Path(scratch)).replace(kept)
    return kept


def ask(texts: list[list[int]], gguf: Path, peers: str, scratch: Path) -> Path:
    """Run the Python `peers` on `gguf` rewritten as Q8_0; returns a file in `scratch`, see reference.py."""
    rewritten, asked, out = (scratch / name for name in ("q8.gguf", "asked.npz", "answers.npz"))
    rewrite.rewrite(rewrite.opened(gguf), rewritten, "q8", lambda *_: None)
    np.savez(asked, tokens=np.concatenate(texts), lengths=[len(text) for text in texts])
    command = [peers, str(Path(__file__).with_name("reference.py")), str(rewritten), str(asked), str(out)]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return out


def ours(backend: OpenVINOBackend, text: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return each next token's log-probability and the likeliest token there: both `[len(text) - 1]`."""
    sequence = CachedSequence()
    given, likeliest = [], []
    for start in range(0, len(text), ROWS):
        tokens = text[start : start + ROWS]
        logits = backend.forward([Row(sequence, tokens, range(len(tokens)))])[0].logits.astype(np.float64)
        following = text[start + 1 : start + 1 + len(tokens)]
        likeliest.append(logits.argmax(-1)[: len(following)])
        most = logits.max(-1)
        totals = most + np.log(np.exp(logits - most[:, None]).sum(-1))
        given.append(logits[np.arange(len(following)), following] - totals[: len(following)])
    backend.pool.drop(sequence)
    return np.concatenate(given), np.concatenate(likeliest)


def measured(model: str, texts: list[list[int]], answers: Path, device: str) -> Agreement:
    """Run `texts` through `model` and compare it with the reference in `answers`."""
    backend = OpenVINOBackend(locate(model), device=device, threads=available_cores(), cache_bytes=512 << 20)
    expected = np.load(answers)
    start = time.perf_counter()
    pairs = [ours(backend, text) for text in texts]
    seconds = time.perf_counter() - start
    given = np.concatenate([pair[0] for pair in pairs])
    likeliest = np.concatenate([pair[1] for pair in pairs])
    differences = np.abs(given - expected["given"][: len(given)])
    return Agreement(
        model=model,
        prompts=len(texts),
        positions=len(given),
        mean_difference=float(differences.mean()),
        p95_difference=float(np.quantile(differences, 0.95)),
        top1_agreement=float((likeliest == expected["top_ids"][: len(given), 0]).mean()),
        tokens_per_second=sum(map(len, texts)) / seconds,
    )


def main() -> None:
    """Measure and print."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("models", nargs="*", metavar="MODEL")
    words.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="a Python with transformers")
    words.add_argument("--gguf", type=Path, help="the first model's GGUF, else it is downloaded")
    words.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "magistrate-reference")
    words.add_argument("--limit", type=int, default=PROMPTS, help="the first so many of the prompts")
    words.add_argument("--device", default="CPU")
    words.add_argument("--json", action="store_true")
    said = words.parse_args()
    models = said.models or [default().name, f"{default().name}:f16"]
    folder = locate(models[0])
    card = describe(folder)
    every = prompts(ChatTokenizer(folder, card))
    name = card.name.partition(":")[0]
    answers = reference(every, min(said.limit, len(every)), said.gguf, name, said.peers, said.cache)
    texts = every[: said.limit]
    rows = [measured(model, texts, answers, said.device) for model in models]
    if said.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
        return
    print(f"against transformers in f32; reproduce: python benchmarks/agreement.py {' '.join(sys.argv[1:])}")
    print(f"{'model':<34}{'prompts':>8}{'positions':>10}{'mean':>8}{'p95':>8}{'top-1':>8}{'tok/s':>8}")
    for row in rows:
        print(
            f"{row.model[-33:]:<34}{row.prompts:>8}{row.positions:>10}{row.mean_difference:>8.4f}"
            f"{row.p95_difference:>8.4f}{row.top1_agreement:>8.4f}{row.tokens_per_second:>8.0f}"
        )


if __name__ == "__main__":
    main()
