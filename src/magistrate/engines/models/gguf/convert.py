"""Convert a GGUF file to the OpenVINO folder that the engine loads."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magistrate.engines.models import child, disk
from magistrate.engines.models.catalogue import USUAL, Weights, named
from magistrate.engines.models.folder import (
    CARD,
    CONVERSION,
    FORMAT,
    NEEDED,
    check,
    converted_folder,
    is_converted,
)
from magistrate.engines.models.gguf import rewrite
from magistrate.engines.models.gguf.tokenizer import bos_id, eos_ids, tokenizer_files
from magistrate.engines.models.updates import read_updates
from magistrate.errors import MissingExtra, ModelError


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a GGUF, as recorded in its folder, and the weights to convert it to.

    `update` is the file of a low-rank update that is added to the weights. `sha256` then identifies both.
    """

    name: str
    source: str
    sha256: str
    licence: str | None = None
    weights: Weights = USUAL
    update: Path | None = None


def fingerprint(sha256: str, weights: Weights) -> str:
    """Return a sha256 in hexadecimal that identifies the weights of that conversion."""
    pinned = f"{sha256}\n{CONVERSION}\n" + ("" if weights == USUAL else f"{weights}\n")
    return hashlib.sha256(pinned.encode()).hexdigest()


def converted(origin: Origin, obtain: Callable[[Path], Path], report: disk.Report) -> Path:
    """Return the folder converted from `origin`; if it is missing, convert the file of `obtain(scratch)`.

    Any number of processes may call this at once: one works, the others wait for its result.
    """
    target = converted_folder(origin.sha256, origin.weights)
    if is_converted(origin.sha256, origin.weights):
        return target
    for module in ("openvino_genai", "gguf"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "local")
    with disk.claimed(target, report) as scratch:
        if not is_converted(origin.sha256, origin.weights):
            made = _convert(obtain(scratch), origin, scratch, report)
            disk.publish(made, target, scratch)
    return target


def _convert(gguf: Path, origin: Origin, scratch: Path, report: disk.Report) -> Path:
    """Convert inside `scratch` and return the finished folder there."""
    source = rewrite.opened(gguf)
    made = scratch / "model"
    made.mkdir()
    for name, content in tokenizer_files(source.metadata).items():
        _write(made / name, content)
    disk.need(scratch, rewrite.bytes_needed(source, origin.weights), f"converting {origin.name}")
    _import(source, scratch, made, origin, report)
    _write(made / CARD, _card(source, origin, made, report))
    check(made)
    return made


def _import(source: rewrite.Source, scratch: Path, made: Path, origin: Origin, report: disk.Report) -> None:
    import numpy as np

    work = scratch / "import"
    work.mkdir()
    rewritten, turns = work / "model.gguf", work / "frequencies.npy"
    updates = {} if origin.update is None else read_updates(origin.update)
    rewrite.rewrite(source, rewritten, origin.weights, report, updates)
    np.save(turns, rewrite.frequencies(source))
    arguments = ["-m", "magistrate.engines.models.gguf.importer", str(rewritten), str(turns)]
    ended = child.run(arguments, scratch, "import", None, report)
    imported = [work / name for name in NEEDED[:2]]
    if ended.status != 0 or not all(path.is_file() for path in imported):
        if any(sign in ended.stderr for sign in disk.FULL_SIGNS):
            raise ModelError(disk.full(scratch.parent))
        raise ModelError(
            f"OpenVINO could not import {source.path.name}: {ended.reason()}; if memory ran out, use a "
            "smaller model; otherwise use an OpenVINO folder of this model"
        )
    for path in imported:
        path.rename(made / path.name)


def _card(source: rewrite.Source, origin: Origin, made: Path, report: disk.Report) -> Mapping[str, Any]:
    stored = made / "openvino_model.bin"
    return {
        "format": FORMAT,
        "conversion": CONVERSION,
        "name": named(origin.name, origin.weights),
        "weights": origin.weights,
        "source": origin.source,
        "gguf_sha256": origin.sha256,
        "licence": origin.licence or source.metadata.get("general.license"),
        "architecture": source.architecture,
        "context_length": source.context_length,
        "vocab_size": source.vocab_size,
        "eos_ids": eos_ids(source.metadata),
        "bos_id": bos_id(source.metadata),
        "bin_bytes": stored.stat().st_size,
        "bin_sha256": disk.sha256(stored, report),
        "fingerprint": fingerprint(origin.sha256, origin.weights),
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
