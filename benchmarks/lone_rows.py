"""How much logits change when the last token of a prompt is evaluated in a row of its own.

Run: .venv/bin/python benchmarks/lone_rows.py (needs the default model: magistrate models pull)
"""

from __future__ import annotations

import numpy as np

from magistrate.datasets import load
from magistrate.engines.embedded.backend import Row
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.openvino_backend import OpenVINOBackend
from magistrate.engines.embedded.prefix_cache import CachedSequence
from magistrate.engines.models import default, describe, locate
from magistrate.judges import instance
from magistrate.judges.base import planned_calls

PROMPTS = 12


def main() -> None:
    """Print the largest change of any logit, for a last row of one token and of two."""
    folder = locate(default().name)
    tokenizer = ChatTokenizer(folder, describe(folder))
    backend = OpenVINOBackend(folder, device="CPU", threads=available_cores(), cache_bytes=256 << 20)

    def last(tokens: list[int], cut: int) -> np.ndarray:
        sequence = CachedSequence()
        if cut:
            backend.forward([Row(sequence, tokens[:-cut], range(0))])
        rest = tokens[-cut:] if cut else tokens
        logits = backend.forward([Row(sequence, rest, range(len(rest) - 1, len(rest)))])[0].logits[0].copy()
        backend.pool.drop(sequence)
        return logits

    moved: dict[int, list[float]] = {1: [], 2: []}
    for sample in load("quickstart", limit=PROMPTS):
        (call,) = planned_calls(instance("faithfulness"), sample)
        tokens = tokenizer.tokens(call.prompt)
        whole = last(tokens, 0)
        for cut, differences in moved.items():
            differences.append(float(np.abs(last(tokens, cut) - whole).max()))
    print(f"{default().name}, {PROMPTS} prompts: largest change of a logit against reading the prompt whole")
    for cut, differences in moved.items():
        print(f"last row of {cut}: median {np.median(differences):.3f}, most {max(differences):.3f}")


if __name__ == "__main__":
    main()
