"""The folder of a detector: its manifest with recipe, calibration and figures, and its files."""

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
UPDATE = "update.safetensors"  # what a large encoder has learnt; its folder's weights are made with it
FILES = (WEIGHTS, GRAPH, TOKENIZER)  # that a detector is read from
SHIPPED = Path(__file__).with_name("shipped")  # the detector that comes with the package
LARGEST = 1_000_000  # bytes of a manifest


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Figure(_Part):
    """AUROC and balanced accuracy at the manifest's threshold on one set, with 95 % intervals.

    `left_out` says that the measured detector had the same recipe but no data of that set's family.
    """

    set: str
    n: int
    left_out: bool
    auroc: tuple[float, float, float]
    balanced_accuracy: tuple[float, float, float]


class Manifest(_Part):
    """What stands in `detector.json`.

    Where half of all outputs are hallucinated, the probability that one is, is
    `1 / (1 + exp(-(scale * logit + offset)))`; from `token_threshold` on a word is shown as unsupported.
    `window` is in tokens, `heads` how many attention heads a layer has.
    `files` are the sha256 of the others in the folder. `update_of` is the sha256 of the weights that
    `update.safetensors` adds to, empty where there is none.
    """

    kind: Literal["detector"] = "detector"
    format: Literal[3] = 3
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
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
        """In [0, 1], 1 for hallucinated, where a share `base_rate` of outputs is."""
        return sigmoid(shifted_odds(self.scale * logit + self.offset, base_rate))

    @cached_property
    def digest(self) -> str:
        """Of all that decides: another digest is another detector."""
        values = self.model_dump(mode="json", exclude={"name", "figures", "recipe"})
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]

    def text(self) -> str:
        """What stands in the file."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a detector's folder. Raises `SpecError` where there is none or it cannot be read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise SpecError(
            f"{folder} is no folder of a detector: it has no {MANIFEST}; "
            "'magistrate train detector --to FOLDER' writes one"
        )
    if path.stat().st_size > LARGEST:
        raise SpecError(f"{path} is larger than a manifest can be ({LARGEST:,} bytes)")
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise SpecError(f"{path} is no manifest of a detector: {where}: {first['msg']}") from None


def json_of(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ModelError` where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object")
    return value


def digest_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise `ModelError` where a file is missing or is not the one that the manifest speaks of."""
    for name in FILES:
        path = folder / name
        if name not in manifest.files or not path.is_file():
            raise ModelError(
                f"the detector in {folder} lacks {name}; train it again, or copy the whole folder"
            )
        if digest_of(path) != manifest.files[name]:
            raise ModelError(
                f"{path} is not the file that {MANIFEST} speaks of: damaged, or of another detector"
            )
