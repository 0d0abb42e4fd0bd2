"""The folder of a detector: its manifest with recipe, calibration and metrics, and its files."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magistrate.detectors.windows import LEAST_WINDOW
from magistrate.errors import ModelError, SpecError
from magistrate.metrics.calibration import EVEN, shifted_odds, sigmoid

MANIFEST = "detector.json"
LONGEST_NAME = 80
WEIGHTS, GRAPH, TOKENIZER, CARD = "model.safetensors", "graph.onnx", "tokenizer.json", "README.md"
UPDATE = "update.safetensors"  # the trained difference between a large encoder and the folder's weights
FILES = (WEIGHTS, GRAPH, TOKENIZER)  # the files a detector is loaded from
SHIPPED = Path(__file__).with_name("shipped")  # the detector in the package
LARGEST = 1_000_000  # bytes of a manifest, at most


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


Readings = tuple[Literal["pairs"]] | tuple[Literal["pairs"], Literal["windows"]]
BOTH: Readings = ("pairs", "windows")


class Figure(_Part):
    """AUROC and balanced accuracy at the manifest's threshold on one set, with 95 % intervals.

    `left_out` means that the measured detector had the same recipe but no data of that set's family.
    """

    set: str
    n: int
    left_out: bool
    auroc: tuple[float, float, float]
    balanced_accuracy: tuple[float, float, float]


class Manifest(_Part):
    """The content of `detector.json`.

    If half of all outputs are hallucinated, the probability that one is hallucinated is `1 / (1 +
    exp(-(scale * logit + offset)))`. At `token_threshold` and above a word is shown as unsupported.
    `readings` are how it reads an output: each sentence beside the passage nearest to it (`pairs`), and also
    all of them in their whole context (`windows`). `window` is in tokens, `heads` the number of attention
    heads per layer. `files` are the sha256 of the other files in the folder. `update_of` is the sha256 of the
    weights that `update.safetensors` adds to, empty if there is none.
    """

    kind: Literal["detector"] = "detector"
    format: Literal[3] = 3
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    readings: Readings = BOTH
    window: int = Field(ge=LEAST_WINDOW)
    heads: int = Field(gt=0)
    scale: float = Field(gt=0)
    offset: float
    token_threshold: float = Field(gt=0, lt=1)
    trained_on: tuple[str, ...]
    recipe: dict[str, Any]
    figures: tuple[Figure, ...] = ()
    files: dict[str, str]
    update_of: str = ""

    def probability(self, logit: float, base_rate: float = EVEN) -> float:
        """Return the probability of hallucinated, in [0, 1], if a share `base_rate` of outputs is."""
        return sigmoid(shifted_odds(self.scale * logit + self.offset, base_rate))

    @cached_property
    def digest(self) -> str:
        """Digest of all values that affect results: different digests mean different detectors."""
        values = self.model_dump(mode="json", exclude={"name", "figures", "recipe"})
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a detector's folder. Raises `SpecError` if it is missing or invalid."""
    path = folder / MANIFEST
    if not path.is_file():
        raise SpecError(
            f"{folder} is not the folder of a detector: it has no {MANIFEST}; 'magistrate train detector "
            "--to FOLDER' writes one"
        )
    if path.stat().st_size > LARGEST:
        raise SpecError(f"{path} is larger than the limit for a manifest ({LARGEST:,} bytes)")
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise SpecError(f"{path} is not the manifest of a detector: {where}: {first['msg']}") from None


def json_of(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises `ModelError` if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} contains no JSON object")
    return value


def digest_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise `ModelError` if a file is missing or differs from the manifest."""
    for name in FILES:
        path = folder / name
        if name not in manifest.files or not path.is_file():
            raise ModelError(
                f"the detector in {folder} lacks {name}; train it again, or copy the whole folder"
            )
        if digest_of(path) != manifest.files[name]:
            raise ModelError(f"{path} does not match {MANIFEST}: it is damaged, or from another detector")
