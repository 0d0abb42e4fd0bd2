"""From a GGUF to the folder that the engine loads."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magistrate._paths import models_dir
from magistrate.engines.catalog import children, disk, folder, rewrite
from magistrate.engines.catalog.tokenizer import bos_id, eos_ids, tokenizer_files
from magistrate.engines.catalog.updates import read_updates
from magistrate.engines.catalog.weights import USUAL, Weights, named
from magistrate.errors import MissingExtra, ModelError

# Raised whenever the same GGUF would become another folder: older conversions are then made anew.
CONVERSION = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a GGUF comes from: what its folder will say about it. `weights` are those it will have.

    `update` is the file of a low-rank update that is added to them; `sha256` then tells both.
    """

    name: str
    source: str
    sha256: str
    licence: str | None = None
    weights: Weights = USUAL
    update: Path | None = None


def place(sha256: str, weights: Weights) -> Path:
    """Where the conversion of the GGUF with that hash stands, or would stand."""
    return models_dir() / named(f"{sha256[:16]}-v{CONVERSION}", weights).replace(":", "-")


def is_ready(sha256: str, weights: Weights) -> bool:
    """Whether the GGUF with that hash was converted already."""
    return folder.complete(place(sha256, weights), sha256, CONVERSION, weights)


def fingerprint(sha256: str, weights: Weights) -> str:
    """What pins the weights of that conversion: a sha256 in hexadecimal."""
    pinned = f"{sha256}\n{CONVERSION}\n" + ("" if weights == USUAL else f"{weights}\n")
    return hashlib.sha256(pinned.encode()).hexdigest()


def prepared(origin: Origin, obtain: Callable[[Path], Path], report: disk.Report) -> Path:
    """The folder converted from `origin`; made now, from the file that `obtain(scratch)` gives, if need be.

    Any number of processes may call this at once: one works, the others wait for its result.
    """
    target = place(origin.sha256, origin.weights)
    if is_ready(origin.sha256, origin.weights):
        return target
    for module in ("openvino_genai", "gguf"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "local")
    with disk.claimed(target, report) as scratch:
        if not is_ready(origin.sha256, origin.weights):
            made = _convert(obtain(scratch), origin, scratch, report)
            disk.publish(made, target, scratch)
    return target


def _convert(gguf: Path, origin: Origin, scratch: Path, report: disk.Report) -> Path:
    """Convert inside `scratch`; returns the finished folder there."""
    source = rewrite.opened(gguf)
    made = scratch / "model"
    made.mkdir()
    for name, content in tokenizer_files(source.metadata).items():
        _write(made / name, content)
    disk.need(scratch, rewrite.bytes_needed(source, origin.weights), f"converting {origin.name}")
    _import(source, scratch, made, origin, report)
    _write(made / folder.CARD, _card(source, origin, made, report))
    folder.check(made)
    return made


def _import(source: rewrite.Source, scratch: Path, made: Path, origin: Origin, report: disk.Report) -> None:
    import numpy as np

    work = scratch / "import"
    work.mkdir()
    rewritten, turns = work / "model.gguf", work / "frequencies.npy"
    updates = {} if origin.update is None else read_updates(origin.update)
    rewrite.rewrite(source, rewritten, origin.weights, report, updates)
    np.save(turns, rewrite.frequencies(source))
    arguments = ["-m", "magistrate.engines.catalog.importer", str(rewritten), str(turns)]
    ended = children.run(arguments, scratch, "import", None, report)
    imported = [work / name for name in folder.NEEDED[:2]]
    if ended.status != 0 or not all(path.is_file() for path in imported):
        if any(sign in ended.stderr for sign in disk.FULL_SIGNS):
            raise ModelError(disk.full(scratch.parent))
        raise ModelError(
            f"OpenVINO could not import {source.path.name}: {ended.reason()}; if memory ran out use a "
            "smaller model, else use an OpenVINO folder of this model"
        )
    for path in imported:
        path.rename(made / path.name)


def _card(source: rewrite.Source, origin: Origin, made: Path, report: disk.Report) -> Mapping[str, Any]:
    stored = made / "openvino_model.bin"
    return {
        "format": folder.FORMAT,
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
