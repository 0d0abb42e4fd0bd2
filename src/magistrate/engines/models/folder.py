"""Read model folders: the files that the engine needs, and their description of the model (`ModelCard`).

There are two kinds: folders that were converted here, with a `magistrate.json`, and OpenVINO folders as
published on hubs, with `config.json` and the usual other files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magistrate._paths import models_dir
from magistrate.engines.models import disk
from magistrate.engines.models.catalogue import USUAL, Weights, named
from magistrate.engines.models.selftest import SelfTest, expected
from magistrate.errors import ModelError

FORMAT = 1
CONVERSION = 3  # increased when the same GGUF would give another folder: older conversions are then repeated
CARD = "magistrate.json"
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length")  # keys for the context length
NEEDED = ("openvino_model.xml", "openvino_model.bin", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The description of a model in its folder; None if the folder does not contain the value.

    `fingerprint` is a sha256 that identifies the weights. `context_length` is in tokens. The first of
    `eos_ids` ends a turn. Models that were converted here have `gguf_sha256` and `weights`.
    """

    name: str
    source: str
    fingerprint: str
    architecture: str | None
    licence: str | None
    context_length: int | None
    vocab_size: int | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    chat_template: str | None
    gguf_sha256: str | None = None
    weights: Weights | None = None

    @property
    def selftest(self) -> SelfTest | None:
        """The model's self-test, or None if the catalogue has no values for it."""
        return expected(self.gguf_sha256, self.weights or USUAL)


def check(folder: Path) -> None:
    """Raise `ModelError` if an OpenVINO model's folder is incomplete; it names the missing files."""
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} is not a complete OpenVINO model: it lacks {', '.join(missing)}; it needs "
            f"{', '.join(NEEDED)}; download the whole repository, or export the model with its tokenizer"
        )


def describe(folder: Path) -> ModelCard:
    """Read a model folder's card. Raises `ModelError` for missing or damaged files."""
    check(folder)
    template = chat_template(folder)
    card = read_json(folder / CARD) if (folder / CARD).exists() else None
    if card is not None:
        return ModelCard(
            name=card["name"],
            source=card["source"],
            fingerprint=card["fingerprint"],
            architecture=card["architecture"],
            licence=card["licence"],
            context_length=card["context_length"],
            vocab_size=card["vocab_size"],
            eos_ids=tuple(card["eos_ids"]),
            bos_id=card["bos_id"],
            chat_template=template,
            gguf_sha256=card["gguf_sha256"],
            weights=card["weights"],
        )
    return _published(folder, template)


def converted_folder(sha256: str, weights: Weights) -> Path:
    """Return the folder for the conversion of the GGUF with that hash, whether it exists or not."""
    return models_dir() / named(f"{sha256[:16]}-v{CONVERSION}", weights).replace(":", "-")


def is_converted(sha256: str, weights: Weights) -> bool:
    """Return whether the GGUF with that hash is already converted and its folder is complete."""
    folder = converted_folder(sha256, weights)
    try:
        check(folder)
        card = read_json(folder / CARD)
        size = (folder / "openvino_model.bin").stat().st_size
    except (ModelError, OSError):
        return False
    found = tuple(card.get(name) for name in ("format", "gguf_sha256", "conversion", "bin_bytes", "weights"))
    return found == (FORMAT, sha256, CONVERSION, size, weights)


def _published(folder: Path, template: str | None) -> ModelCard:
    _check_graph(folder / NEEDED[0])
    parts = [disk.sha256(folder / name) for name in NEEDED[:3]]
    name = folder.resolve().name
    fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return published(folder, name=name, source=f"folder:{name}", fingerprint=fingerprint, template=template)


def published(folder: Path, *, name: str, source: str, fingerprint: str, template: str | None) -> ModelCard:
    """Make the card of a published model from `config.json` and the usual other files.

    Raises `ModelError` if they are damaged or do not define which token ends a turn.
    """
    configuration = read_json(folder / "tokenizer_config.json")
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    generation = folder / "generation_config.json"
    chosen = {**config, **(read_json(generation) if generation.exists() else {})}
    length = next((config[key] for key in CONTEXT if key in config), configuration.get("model_max_length"))
    # A tokenizer without a limit writes a huge number.
    if not isinstance(length, int) or length > 1 << 30:
        length = None
    return ModelCard(
        name=name,
        source=source,
        fingerprint=fingerprint,
        architecture=config.get("model_type"),
        licence=None,
        context_length=length,
        vocab_size=config.get("vocab_size"),
        eos_ids=_endings(folder, configuration, chosen.get("eos_token_id")),
        bos_id=chosen.get("bos_token_id"),
        chat_template=template,
    )


def _check_graph(path: Path) -> None:
    """Raise `ModelError`, without loading the file, if it is not a graph or cannot generate text."""
    graph = path.read_bytes()
    if b"<net" not in graph[:1000] or b"<layers" not in graph:
        raise ModelError(f"{path} is not an OpenVINO graph or is damaged: download the repository again")
    if b'type="ReadValue"' not in graph:
        raise ModelError(
            f"{path} has no state: the model is not a text generator (it may be an encoder), or was exported "
            "without its cache; export it with: optimum-cli export openvino --task text-generation-with-past"
        )


def _endings(folder: Path, configuration: dict[str, Any], declared: Any) -> tuple[int, ...]:
    """Return the declared end tokens; the tokenizer's own end token, which ends a turn, comes first."""
    ids = [] if declared is None else declared if isinstance(declared, list) else [declared]
    named = configuration.get("eos_token")
    content = named.get("content") if isinstance(named, dict) else named
    if content is not None:
        added = read_json(folder / "tokenizer.json").get("added_tokens", [])
        ids = [token["id"] for token in added if token["content"] == content] + ids
    if not ids:
        raise ModelError(
            f"{folder} does not define the token that ends a turn; add generation_config.json with "
            "eos_token_id"
        )
    return tuple(dict.fromkeys(int(token_id) for token_id in ids))


def chat_template(folder: Path) -> str | None:
    """Return the chat template in a folder or in its tokenizer's settings, or None."""
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    inside = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(inside, list):
        inside = next((row.get("template") for row in inside if row.get("name") == "default"), None)
    return inside if isinstance(inside, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises `ModelError` if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read ({error}); it is damaged: pull or download it again"
        ) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} contains no JSON object; it is damaged: pull or download it again")
    return value
