"""The base that a detector's training starts from: a known encoder, a detector, or your own folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from magistrate.detectors.detector import Detector
from magistrate.detectors.encoders import ENCODERS, FILES, encoder, fetched
from magistrate.detectors.folder import (
    MANIFEST,
    SHIPPED,
    TOKENIZER,
    UPDATE,
    WEIGHTS,
    check_files,
    digest_of,
    json_of,
    read_manifest,
)
from magistrate.detectors.large import LARGE, folder_of_large
from magistrate.detectors.weights import EPSILON, MPNET_EPSILON, RELATIVE, float_weights, read_weights
from magistrate.errors import ModelError, SpecError


@dataclass(frozen=True, slots=True)
class Base:
    """A folder with an encoder's files, its name and digest for the recipe, and the detector it was, if any.

    `update` is the file of the low-rank update of an earlier training, if that is stored separately.
    """

    folder: Path
    name: str
    sha256: str
    trained_on: tuple[str, ...] = ()
    detector: Detector | None = None
    update: Path | None = None

    @property
    def is_large(self) -> bool:
        """Whether only low-rank updates of the encoder are trained."""
        whole = self.detector is not None and self.update is None
        return not whole and json_of(self.folder / "config.json").get("model_type") == "mpnet"


def base(words: str, scratch: Path) -> Base:
    """Return the base of a known name, downloaded if needed, or of a folder with a detector or a model.

    `shipped` is the small detector that comes with the package, `detector-large` the one that is downloaded.
    A small detector's weights are written to `scratch` as floats. Raises `SpecError` for an unknown name, and
    `ModelError` if the base cannot be downloaded or read.
    """
    if (known := encoder(words)) is not None:
        return Base(fetched(known), known.name, known.sha256)
    if words == LARGE:
        folder = folder_of_large()
    else:
        folder = SHIPPED if words == "shipped" else Path(words).expanduser()
    if (folder / MANIFEST).is_file():
        return _of_detector(folder, scratch)
    if not folder.is_dir():
        known_names = ", ".join(("shipped", LARGE, *(each.name for each in ENCODERS)))
        raise SpecError(
            f"there is no base {words!r}; known: {known_names}, and folders of detectors or with "
            f"{', '.join(FILES)}"
        )
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise ModelError(
            f"{folder} lacks {', '.join(missing)}: a base must be a detector or a Hugging Face folder of a "
            "BERT or MPNet"
        )
    return Base(folder, folder.name, digest_of(folder / WEIGHTS))


def _of_detector(folder: Path, scratch: Path) -> Base:
    """Return a detector's weights as floats, with what their shapes do not tell of their encoder."""
    from safetensors.numpy import save_file

    manifest = read_manifest(folder)
    check_files(folder, manifest)
    detector = Detector(folder, manifest)
    if manifest.update_of:
        known = encoder(manifest.update_of)
        if known is None or not (folder / UPDATE).is_file():
            raise ModelError(f"{folder} was trained on an unknown encoder, or lacks {UPDATE}")
        return Base(fetched(known), known.name, known.sha256, manifest.trained_on, detector, folder / UPDATE)
    stored = read_weights(folder / WEIGHTS)
    weights = float_weights(stored)
    is_mpnet = any(RELATIVE in name for name in weights)
    bits = 4 if any(value.dtype == np.uint8 for value in stored.values()) else 8
    config = {
        "model_type": "mpnet" if is_mpnet else "bert",
        "layer_norm_eps": MPNET_EPSILON if is_mpnet else EPSILON,
        "num_attention_heads": manifest.heads,
        "bits": bits,
    }
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, scratch / "model.safetensors")
    shutil.copyfile(folder / TOKENIZER, scratch / "tokenizer.json")
    return Base(scratch, manifest.name, manifest.files[WEIGHTS], manifest.trained_on, detector)
