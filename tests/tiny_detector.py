"""A detector without training: its graph doubts every word that the context lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from magistrate.detectors.encoding import END, OUTPUT, TYPES
from magistrate.detectors.folder import MANIFEST, NETWORK, TOKENIZER, WEIGHTS, Manifest, digest_of
from magistrate.signals.overlap import words

SURE = 4.0  # the logit of what is new; the negative one of what is known


def write_tokenizer(path: Path, texts: Iterable[str]) -> None:
    """A tokenizer that knows the words of some texts."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    known = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *dict.fromkeys(word for text in texts for word in words(text)),
    ]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(known)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))


def write_byte_tokenizer(path: Path, texts: Iterable[str]) -> None:
    """A byte-level BPE tokenizer, as that of SmolLM2, that knows the common words of some texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def write_detector(
    folder: Path,
    texts: Iterable[str],
    *,
    window: int = 64,
    name: str = "tiny",
    tokenizer: Callable[[Path, Iterable[str]], None] = write_tokenizer,
) -> Path:
    """A folder whose network says `SURE` of words that are not in the context, and of the whole the most."""
    import numpy as np
    import openvino
    from openvino import opset13 as ops

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer(folder / TOKENIZER, texts)
    table = np.full(TYPES, -SURE, np.float32)
    table[OUTPUT : OUTPUT + 3] = SURE
    table[:OUTPUT] = table[END] = -SURE
    ids = ops.parameter([-1, -1], np.int64, "ids")
    types = ops.parameter([-1, -1], np.int64, "types")
    tokens = ops.gather(ops.constant(table), types, ops.constant(0))
    # The ids change nothing, but a graph has to use what it is given.
    tokens = ops.add(tokens, ops.multiply(ops.convert(ids, "f32"), ops.constant(np.float32(0))))
    whole = ops.reduce_max(tokens, ops.constant(np.array([1])), keep_dims=True)
    for node, called in ((ids, "ids"), (types, "types"), (tokens, "tokens"), (whole, "sample")):
        node.output(0).get_tensor().set_names({called})
    openvino.save_model(openvino.Model([tokens, whole], [ids, types]), str(folder / NETWORK))
    manifest = Manifest(
        name=name,
        window=window,
        scale=1.0,
        offset=0.0,
        token_threshold=0.5,
        trained_on=("begin",),
        recipe={},
        files={each: digest_of(folder / each) for each in (NETWORK, WEIGHTS, TOKENIZER)},
    )
    (folder / MANIFEST).write_text(manifest.text(), encoding="utf-8")
    return folder


def change(folder: Path, **values: object) -> None:
    """Change what a manifest says."""
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")
