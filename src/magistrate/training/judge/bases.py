"""The base model of a training: a Hugging Face folder, a GGUF file, or a model of the catalogue or a hub."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magistrate._paths import models_dir
from magistrate.detectors.folder import json_of
from magistrate.engines.models import ModelCard, default, disk, entries
from magistrate.engines.models.catalogue import ModelEntry
from magistrate.engines.models.gguf.rewrite import opened
from magistrate.engines.models.gguf.tokenizer import tokenizer_files
from magistrate.engines.models.pull import fetch
from magistrate.errors import MissingExtra, ModelError, SpecError

HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?")
WANTED = ("*.json", "*.safetensors", "*.jinja", "merges.txt")  # files of a hub's repository; no code
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"),
    *("chat_template.jinja", "added_tokens.json", "vocab.json", "merges.txt"),
)
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
LIBRARIES = ("torch", "transformers", "safetensors", "gguf")


@dataclass(frozen=True, slots=True)
class Base:
    """A base model: a `folder`, or a `gguf` with its tokenizer's files in `tokenizer`.

    `digest` is a sha256 of its weights, `source` its origin. `licence` is None if unknown.
    """

    name: str
    source: str
    digest: str
    tokenizer: Path
    folder: Path | None = None
    gguf: Path | None = None
    licence: str | None = None

    def card(self) -> ModelCard:
        """Return the model card. Raises `ModelError` for a model that cannot chat."""
        return card_of(self.tokenizer, self)

    def load(self, dtype: str = "float32") -> Any:
        """Load the causal language model on the CPU. Raises `ModelError` if that fails."""
        transformers = quiet_transformers()
        settings: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "dtype": dtype}
        if self.gguf is not None:
            place, settings["gguf_file"] = self.gguf.parent, self.gguf.name
        else:
            assert self.folder is not None
            place, settings["use_safetensors"] = self.folder, True
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # its progress bar cannot be switched off
                model = transformers.AutoModelForCausalLM.from_pretrained(place, **settings)
        except Exception as error:  # the library raises many types
            told = " ".join(str(error).split())[:300]
            raise ModelError(f"{self.source} cannot be loaded for training: {told}") from error
        # A loaded GGUF still claims to be quantized, though its weights are not, and cannot be saved then.
        model.config.__dict__.pop("quantization_config", None)
        model.hf_quantizer, model.is_quantized = None, False
        return model


def check_libraries() -> None:
    """Raise `MissingExtra` if a package that training needs is not installed, before anything is read."""
    for module in LIBRARIES:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "train")


def quiet_transformers() -> Any:
    """Return the library with its progress bars and warnings switched off."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def base_of(named: str | None, scratch: Path, report: disk.Report = disk.quiet) -> Base:
    """Return the base of that name or path. None means the small built-in one.

    A GGUF's tokenizer is written into `scratch`. Raises `SpecError` for an unknown model, `ModelError` for an
    incomplete one.
    """
    named = named or default().name
    known = next((each for each in entries() if each.name == named), None)
    if known is not None:
        return _gguf(_fetched(known, report), scratch, known.name, str(known.source), known.licence)
    path = Path(named).expanduser()
    if path.is_file():
        return _gguf(path, scratch, path.stem, f"file:{path.name}", None)
    if path.is_dir():
        return _folder(path, path.resolve().name, f"folder:{path.resolve().name}")
    found = HUB.fullmatch(named)
    if found is None or path.suffix.lower() == ".gguf":
        raise SpecError(
            f"there is no base {named!r}: give a Hugging Face folder, a GGUF file, OWNER/NAME of a hub, or "
            f"one of {', '.join(each.name for each in entries())}"
        )
    place = _downloaded(found["repo"], found["revision"])
    return _folder(place, found["repo"].partition("/")[2], f"hub:{named}")


def card_of(folder: Path, base: Base) -> ModelCard:
    """Return the card of a Hugging Face folder, as the tokenizer of prompts needs it."""
    settings = json_of(folder / "tokenizer_config.json")
    config = json_of(folder / "config.json") if (folder / "config.json").is_file() else {}
    generation = folder / "generation_config.json"
    chosen = {**config, **(json_of(generation) if generation.is_file() else {})}
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(template, list):
        template = next((each["template"] for each in template if each.get("name") == "default"), None)
    return ModelCard(
        name=base.name,
        source=base.source,
        fingerprint=base.digest,
        architecture=config.get("model_type"),
        licence=base.licence,
        context_length=config.get("max_position_embeddings"),
        vocab_size=config.get("vocab_size"),
        eos_ids=_ends(folder, settings, chosen.get("eos_token_id")),
        bos_id=chosen.get("bos_token_id"),
        chat_template=template if isinstance(template, str) else None,
    )


def _ends(folder: Path, settings: Mapping[str, Any], declared: Any) -> tuple[int, ...]:
    """Return the tokens that end a turn, the tokenizer's own first."""
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    named = settings.get("eos_token")
    content = named.get("content") if isinstance(named, dict) else named
    added = json_of(folder / "tokenizer.json").get("added_tokens", [])
    ids = [token["id"] for token in added if token["content"] == content] + ids
    if not ids:
        raise ModelError(
            f"{folder} does not define the token that ends a turn (eos_token); use an instruct model"
        )
    return tuple(dict.fromkeys(int(each) for each in ids))


def _folder(path: Path, name: str, source: str) -> Base:
    weights = sorted(path.glob("*.safetensors"))
    missing = [each for each in NEEDED if not (path / each).is_file()]
    if missing or not weights:
        lacks = ", ".join([*missing, *([] if weights else ["model.safetensors"])])
        raise ModelError(f"{path} cannot be trained: it lacks {lacks}; give a Hugging Face folder or a GGUF")
    digest = hashlib.sha256("\n".join(disk.sha256(each) for each in weights).encode()).hexdigest()
    return Base(name, source, digest, path, folder=path, licence=_licence(path))


def _licence(folder: Path) -> str | None:
    """Return the licence in the front matter of a model card."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    found = re.search(r"^license:\s*([\w.-]+)\s*$", card.read_text("utf-8", "replace")[:4000], re.MULTILINE)
    return found[1] if found else None


def _gguf(path: Path, scratch: Path, name: str, source: str, licence: str | None) -> Base:
    opened_file = opened(path)
    metadata, kind = opened_file.metadata, opened_file.architecture
    tokenizer = scratch / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    for each, content in tokenizer_files(metadata).items():
        (tokenizer / each).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    config = {
        "model_type": kind,
        "max_position_embeddings": opened_file.context_length,
        "vocab_size": opened_file.vocab_size,
    }
    (tokenizer / "config.json").write_text(json.dumps(config), encoding="utf-8")
    told = licence or metadata.get("general.license")
    return Base(name, source, disk.sha256(path), tokenizer, gguf=path.resolve(), licence=told)


def _fetched(entry: ModelEntry, report: disk.Report) -> Path:
    """Return the GGUF of a catalogue model, stored next to the converted models."""
    target = models_dir() / f"gguf-{entry.sha256[:16]}"
    made = target / "model.gguf"
    if not made.is_file():
        with disk.claimed(target, report) as scratch:
            if not made.is_file():
                half = scratch / "model"
                half.mkdir()
                fetch(entry, scratch, report).rename(half / "model.gguf")
                disk.publish(half, target, scratch)
    return made


def _downloaded(repo: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra("huggingface_hub", "hub") from None
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(WANTED)))
    except Exception as error:  # the client raises many types
        told = " ".join(str(error).split())[:300]
        raise ModelError(
            f"cannot download {repo}: {told}; check the name and the network, or give an existing folder"
        ) from error
