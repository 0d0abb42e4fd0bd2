"""What a GGUF file says of its model, and the files of its tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magistrate.engines.catalog import ModelCard, disk
from magistrate.engines.catalog.entries import by_hash
from magistrate.engines.catalog.folder import chat_template
from magistrate.engines.catalog.rewrite import read
from magistrate.engines.catalog.tokenizer import bos_id, eos_ids, tokenizer_files
from magistrate.errors import ModelError

BESIDE = ("tokenizer.json", "tokenizer_config.json")


def opened(path: Path, scratch: Path) -> ModelCard:
    """The card of a GGUF file, and its tokenizer's files written into `scratch`.

    They are those in the file where it has a byte-level tokenizer whose rules are known, else those that lie
    beside it, of which every added token is held against the file's own. Raises `ModelError` where there are
    neither, or where they are another model's.
    """
    source = read(path)
    metadata, kind = source.metadata, source.architecture
    try:
        files = tokenizer_files(metadata)
    except ModelError as error:
        _take_those_beside(path, scratch, metadata, error)
    else:
        for name, content in files.items():
            (scratch / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    sha256 = disk.sha256(path)
    known = by_hash(sha256)
    length = metadata.get(f"{kind}.context_length")
    return ModelCard(
        name=known.name if known else path.stem,
        source=f"file:{path.name}",
        fingerprint=sha256,
        architecture=kind,
        licence=known.licence if known else metadata.get("general.license"),
        context_length=None if length is None else int(length),
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        eos_ids=tuple(eos_ids(metadata)),
        bos_id=bos_id(metadata),
        chat_template=metadata.get("tokenizer.chat_template") or chat_template(scratch),
        gguf_sha256=sha256,
    )


def _take_those_beside(path: Path, scratch: Path, metadata: Mapping[str, Any], why: ModelError) -> None:
    files = [path.parent / name for name in (*BESIDE, "chat_template.jinja")]
    if not all(file.is_file() for file in files[:2]) or "tokenizer.ggml.tokens" not in metadata:
        told = str(why).rpartition("; use an OpenVINO folder")[0] or str(why)
        raise ModelError(
            f"{told}; put {' and '.join(BESIDE)} of the model that it was made of into the folder of "
            f"{path.name}"
        ) from why
    for file in files:
        if file.is_file():
            shutil.copy(file, scratch / file.name)
    try:
        added = json.loads(files[0].read_text(encoding="utf-8")).get("added_tokens", [])
        pairs = [(int(token["id"]), str(token["content"])) for token in added]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{files[0]} cannot be read ({error}); download it again") from error
    tokens = metadata["tokenizer.ggml.tokens"]
    for number, content in pairs:
        if number >= len(tokens) or tokens[number] != content:
            raise ModelError(
                f"{files[0]} is another model's tokenizer: its token {number} is {content!r}, which "
                f"{path.name} does not have there"
            )
