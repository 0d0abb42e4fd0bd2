"""Child process: computes transformers' results in f32 on a GGUF's dequantized weights.

`python benchmarks/reference.py GGUF TOKENS.npz OUT.npz` with a Python that has torch, transformers and
gguf. TOKENS holds `tokens`, the concatenated token ids of the texts, and `lengths`. OUT gets both and, for
every position but the last of each text, `given` (natural log-probability of the next token), `top_ids` and
`top_logprobs` (the TOP likeliest tokens, likeliest first). `by` holds the versions used.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

TOP = 16
ROWS = 256  # rows of logits held at a time


def main(gguf: str, tokens: str, out: str) -> None:
    """Read, run and write; prints progress on standard error."""
    import torch
    import transformers

    path = Path(gguf).resolve()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    asked = np.load(tokens)
    texts = np.split(asked["tokens"], np.cumsum(asked["lengths"])[:-1])
    given, top_ids, top_logprobs = [], [], []
    with torch.inference_mode():
        for number, text in enumerate(texts, 1):
            ids = torch.from_numpy(text.astype(np.int64))
            hidden = model.model(ids[None]).last_hidden_state[0, :-1]
            for start in range(0, len(hidden), ROWS):
                logprobs = model.lm_head(hidden[start : start + ROWS]).log_softmax(-1)
                following = ids[1 + start : 1 + start + len(logprobs), None]
                values, indices = logprobs.topk(TOP)
                given.append(logprobs.gather(1, following)[:, 0].numpy())
                top_ids.append(indices.numpy().astype(np.int32))
                top_logprobs.append(values.numpy())
            if number % 20 == 0:
                print(f"reference: {number} of {len(texts)} texts", file=sys.stderr)
    np.savez(
        out,
        tokens=asked["tokens"],
        lengths=asked["lengths"],
        given=np.concatenate(given),
        top_ids=np.concatenate(top_ids),
        top_logprobs=np.concatenate(top_logprobs),
        by=f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
