"""The large detector: an encoder that is downloaded once, and a trained update that comes with the package.

`shipped_large/` holds the update (`update.safetensors`), the graph, the manifest and the card. `pull`
fetches the encoder, adds the update to its weights and writes a detector's folder with 8-bit weights. The
manifest pins the digest of these.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from magistrate._paths import models_dir
from magistrate.detectors.encoders import FILES as ENCODER_FILES
from magistrate.detectors.encoders import encoder, fetched
from magistrate.detectors.folder import (
    CARD,
    FILES,
    GRAPH,
    MANIFEST,
    TOKENIZER,
    UPDATE,
    WEIGHTS,
    Manifest,
    digest_of,
    read_manifest,
)
from magistrate.detectors.weights import mpnet_weights, read_weights, updated, write_weights
from magistrate.engines.models import disk
from magistrate.engines.models.disk import Report
from magistrate.errors import ModelError

LARGE = "detector-large"  # its name among the models, and as a base for training
SMALL_FILES = (GRAPH, UPDATE, CARD, MANIFEST)  # the files that come with the package
LEARNT = Path(__file__).with_name("shipped_large")


def manifest_of_large() -> Manifest:
    """Return the manifest of the large detector, also before download."""
    return read_manifest(LEARNT)


def place_of_large() -> Path:
    """Return the folder of the large detector after download."""
    return models_dir() / f"detector-{manifest_of_large().files[WEIGHTS][:12]}"


def is_pulled() -> bool:
    """Return whether the large detector is ready to load."""
    return (place_of_large() / MANIFEST).is_file()


def folder_of_large() -> Path:
    """Return the large detector's folder, with the manifest of the installed package.

    Raises `ModelError` if it was not downloaded yet.
    """
    if not is_pulled():
        raise ModelError(f"the large detector is not installed; run: magistrate models pull {LARGE}")
    folder = place_of_large()
    if read_manifest(folder) != manifest_of_large():  # same weights, new calibration
        with disk.on_disk(folder):
            for name in SMALL_FILES:
                shutil.copyfile(LEARNT / name, folder / name)
    return folder


def pull(report: Report = disk.quiet) -> Path:
    """Fetch the encoder and write the large detector's folder, unless it exists. Returns the folder.

    Raises `ModelError` on failure; no partial files remain. The encoder is deleted afterwards, unless it
    was there before.
    """
    target = place_of_large()
    if is_pulled():
        return target
    manifest = manifest_of_large()
    if (known := encoder(manifest.update_of)) is None:
        raise ModelError("the large detector uses an encoder that this version does not know")
    was_here = known.place.is_dir()
    base = fetched(known, report)
    with disk.claimed(target, report) as scratch:
        if not is_pulled():
            half = scratch / "detector"
            half.mkdir()
            write_merged(base, LEARNT / UPDATE, half / WEIGHTS)
            report("convert", 1, 1)
            shutil.copyfile(base / ENCODER_FILES[1], half / TOKENIZER)
            for name in SMALL_FILES:
                shutil.copyfile(LEARNT / name, half / name)
            for name in FILES:
                if digest_of(half / name) != manifest.files[name]:
                    raise ModelError(
                        f"{name} of the large detector does not have the expected content; it was deleted. "
                        "Pull again; if it happens twice, this processor computes different results: please "
                        "report it"
                    )
            disk.publish(half, target, scratch)
    if not was_here:
        shutil.rmtree(base, ignore_errors=True)
    return target


def write_merged(base: Path, update: Path, path: Path) -> None:
    """Write an encoder's weights with the update added, in the format of a detector."""
    write_weights(updated(mpnet_weights(read_weights(base / ENCODER_FILES[2])), update), path)
