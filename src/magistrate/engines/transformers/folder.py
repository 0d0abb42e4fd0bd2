"""Folders of causal language models: find or download them, and check that they can be used."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from magistrate.datasets.fields import near, plain
from magistrate.engines.models import ModelCard, disk
from magistrate.engines.models.folder import chat_template, published, read_json
from magistrate.errors import MissingExtra, ModelError, SpecError

HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?")
DOWNLOADED = ("*.json", "*.safetensors", "*.jinja")  # patterns of files to download: nothing executable
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
LAYER_TYPES = {"full_attention", "sliding_attention"}  # layers whose only state is keys and values
CHANGING_ROPE = {"dynamic", "longrope", "su"}  # position scaling that changes as a text grows


def locate(model: str | Path) -> Path:
    """Return a model's folder: an existing one, or the cached one of OWNER/NAME[@REVISION] on a hub.

    A model in the hub's cache is not downloaded again, and a word in the form of a path is never looked up
    in the hub. Raises `SpecError` for anything else, and `ModelError` if it cannot be downloaded.
    """
    path = Path(model)
    with contextlib.suppress(RuntimeError):  # raised for ~NOBODY
        path = path.expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise SpecError(f"{path} is a file; give its folder")
    found = None if _is_path(model) else HUB.fullmatch(str(model))
    if found is None:
        raise SpecError(
            f"there is no folder {model}{_beside(path)}; give the folder of a model, or OWNER/NAME of a hub"
        )
    return _of_hub(found["repo"], found["revision"])


def _is_path(model: str | Path) -> bool:
    """Return whether a word can only be a local folder: it looks like a path, or starts with a folder."""
    word = str(model)
    formed = word.startswith((".", "~", "/", os.sep)) or word.endswith(("/", os.sep)) or word.count("/") > 1
    return isinstance(model, Path) or formed or Path(word.partition("/")[0]).is_dir()


def _beside(path: Path) -> str:
    if not path.parent.is_dir():
        return f": there is no folder {path.parent} either"
    try:
        return near(path.name, (child.name for child in path.parent.iterdir() if child.is_dir()))
    except PermissionError:
        return ""


def read_card(folder: Path, model: str | Path) -> tuple[ModelCard, Mapping[str, Any]]:
    """Return the card of the model in a folder, and its `config.json`.

    Raises `ModelError` if it is incomplete, or its state cannot be stored in blocks of keys and values.
    """
    if lacking := _lacking(folder):
        raise ModelError(
            f"{folder} is not a complete model for transformers: it lacks {', '.join(lacking)}; it needs "
            f"{', '.join(NEEDED)} and weights as safetensors; download the whole repository"
        )
    config = read_json(folder / "config.json")
    if why := obstacle(config):
        raise ModelError(
            f"{folder} cannot be used with a paged cache of keys and values: {why}; run it on a server and "
            "use openai:MODEL with --base-url, or choose another model"
        )
    is_folder = Path(model).expanduser().is_dir()
    name = folder.resolve().name if is_folder else str(model).partition("@")[0].partition("/")[2]
    digests = [disk.sha256(each) for each in (*_weights(folder), *(folder / name for name in NEEDED[:2]))]
    card = published(
        folder,
        name=name,
        source=f"folder:{name}" if is_folder else f"hub:{model}",
        fingerprint=hashlib.sha256("\n".join(digests).encode()).hexdigest(),
        template=chat_template(folder),
    )
    return card, config


def obstacle(config: Mapping[str, Any]) -> str:
    """Return why a model's state of a text cannot be stored in blocks of keys and values; empty if it can."""
    if "auto_map" in config:
        return "it needs its own code, which is never run"
    if config.get("is_encoder_decoder"):
        return "it is an encoder with a decoder"
    if parts := sorted(key for key in config if key.endswith("_config") and key != "quantization_config"):
        return f"it consists of several models ({', '.join(parts)})"
    if odd := sorted(set(config.get("layer_types") or ()) - LAYER_TYPES):
        return f"it has layers of type {', '.join(odd)}"
    if moving := sorted(set(_rope_types(config)) & CHANGING_ROPE):
        return f"its rotary positions depend on the length of the text ({', '.join(moving)})"
    return ""


def _weights(folder: Path) -> list[Path]:
    """Return the weight files that a folder must have: those in its index, else all that exist."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / str(name) for name in sorted(set(read_json(index).get("weight_map", {}).values()))]
    return sorted(folder.glob("*.safetensors"))


def _lacking(folder: Path) -> list[str]:
    files = [*(folder / name for name in NEEDED), *(_weights(folder) or [folder / "model.safetensors"])]
    return [file.name for file in files if not file.is_file()]


def _rope_types(value: Any) -> Iterator[str]:
    """Yield every kind of position scaling in a configuration's rope settings."""
    for key in ("rope_scaling", "rope_parameters"):
        settings = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(settings, Mapping):
            for each in (settings, *settings.values()):
                if isinstance(each, Mapping):
                    yield str(each.get("rope_type", each.get("type", "default")))


def _of_hub(repo: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub") from None
    absent: Exception | None = None
    settings: dict[str, Any] = {"revision": revision, "allow_patterns": list(DOWNLOADED)}
    try:
        kept = Path(snapshot_download(repo, local_files_only=True, **settings))
        if not _lacking(kept):
            return kept
    except Exception as error:  # the client may raise anything: not cached, so it is downloaded
        absent = error
    try:
        return Path(snapshot_download(repo, **settings))
    except Exception as error:
        raise ModelError(
            f"there is no folder {repo}, and {_hub_failure(error, revision)}; check the name, or give an "
            "existing folder"
        ) from (absent or error)


def _hub_failure(error: Exception, revision: str | None) -> str:
    """Return why the hub did not provide a model, as the end of a sentence."""
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return "the model on the hub is gated: accept its terms there and set HF_TOKEN"
        case errors.RepositoryNotFoundError():
            return "the model hub has no public model with this name (for private models, set HF_TOKEN)"
        case errors.RevisionNotFoundError():
            return f"the model hub has no revision {revision} of this model"
    message = plain(" ".join(str(error).split()), 200)
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"the model hub could not be reached ({message})"
    return f"the model hub did not provide it ({message})"
