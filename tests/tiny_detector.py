"""A detector without training: what it thinks of a word depends on the word alone.

Words of the first text are supported, those of the second (if there is one) contradicted, all others absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from magistrate.detectors.folder import FILES, GRAPH, MANIFEST, TOKENIZER, WEIGHTS, Manifest, digest_of
from magistrate.detectors.weights import write_weights
from magistrate.features.words import words
from magistrate.training.detector.graph import write_graph

MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
POSITIONS = 512
SURE = 2.0  # logits of what a word is are about this far from those of what it is not


def write_tokenizer(path: Path, texts: Iterable[str], marks: Sequence[str] = MARKS) -> list[str]:
    """A tokenizer that knows the words of some texts; answers them by their number."""
    known = [*marks, *dict.fromkeys(word for text in texts for word in [*words(text), "."])]
    tokenizer = Tokenizer(
        models.WordLevel(
            {word: number for number, word in enumerate(known)},
            unk_token=next(mark for mark in marks if "unk" in mark.lower()),
        )
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(marks))
    tokenizer.save(str(path))
    return known


def write_detector(folder: Path, texts: Sequence[str], *, window: int = 128, name: str = "tiny") -> Path:
    """A detector's folder: a BERT of one layer whose attention adds nothing to what a word is."""
    folder.mkdir(parents=True)
    known = write_tokenizer(folder / TOKENIZER, texts)
    supported, contradicted = (set(words(text)) for text in (*texts, "")[:2])
    table = np.zeros((len(known), 4), np.float32)
    for number, word in enumerate(known):
        kind = 0 if word in supported or not word.isalnum() else 1 if word in contradicted else 2
        table[number, kind], table[number, 3] = 1, -1
    layer = "encoder.encoder.layer.0"
    normal = {"weight": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
    heads = np.eye(4, dtype=np.float32)[:3] * SURE
    token = np.array([[-SURE, SURE, SURE, 0]], np.float32)
    parts = {
        "encoder.embeddings.word_embeddings.weight": table,
        "encoder.embeddings.position_embeddings.weight": np.zeros((POSITIONS, 4), np.float32),
        "encoder.embeddings.token_type_embeddings.weight": np.zeros((2, 4), np.float32),
        "kind.weight": heads,
        "whole.weight": np.zeros((3, 4), np.float32),
        "token.weight": token,
    }
    sizes = {
        **{f"attention.self.{each}": (4, 4) for each in ("query", "key", "value")},
        "attention.output.dense": (4, 4),
        "intermediate.dense": (8, 4),
        "output.dense": (4, 8),
    }
    for part, size in sizes.items():
        parts[f"{layer}.{part}.weight"] = np.zeros(size, np.float32)
        parts[f"{layer}.{part}.bias"] = np.zeros(size[0], np.float32)
    for part in ("encoder.embeddings", f"{layer}.attention.output", f"{layer}.output"):
        parts |= {f"{part}.LayerNorm.{each}": value for each, value in normal.items()}
    parts |= {"kind.bias": np.zeros(3), "whole.bias": np.zeros(3), "token.bias": np.zeros(1)}
    write_weights({key: np.asarray(value, np.float32) for key, value in parts.items()}, folder / WEIGHTS)
    write_graph(folder / WEIGHTS, 1, folder / GRAPH)
    manifest = Manifest(
        name=name,
        window=window,
        heads=1,
        scale=1.0,
        offset=0.0,
        token_threshold=0.5,
        trained_on=("begin",),
        recipe={"base": {"name": "by hand", "sha256": ""}, "tokens": 0, "data": {}},
        files={each: digest_of(folder / each) for each in FILES},
    )
    (folder / MANIFEST).write_text(manifest.text(), encoding="utf-8")
    return folder


def change(folder: Path, **values: object) -> None:
    """Write other values into a manifest."""
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")
