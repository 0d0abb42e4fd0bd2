"""Which server this is and which models it has, from what it says of itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from magistrate.engines.openai.client import Requests
from magistrate.engines.openai.findings import VERSION
from magistrate.engines.openai.options import OFFICIAL
from magistrate.engines.remote.foreign import Foreign
from magistrate.errors import EngineBusy, EngineError, EngineGone, EngineTimeout, MagistrateError, SpecError

SHOWN = 20  # models that an error names
# What a model's entry says of it that stays the same from one listing to the next.
STEADY = ("id", "owned_by", "root", "max_model_len", "digest", "quantization", "meta")


class _Entry(Foreign):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None
    context_length: int | None = None
    context_window: int | None = None
    max_context_length: int | None = None
    loaded_context_length: int | None = None
    meta: dict[str, Any] | None = None


class _Listing(Foreign):
    data: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Serving:
    """A server and a model on it: what answered, how large its window is (0: not told), whether it has
    llama.cpp's own requests or is known to cut what does not fit, and a digest of all it says of itself.

    `slots` is how many requests it answers at once (0: not told). `named` are the models that it lists, where
    the one that was asked for is not among them, though the server answers for it.
    """

    server: str
    window: int
    llama: bool
    cuts: bool
    identity: str
    slots: int = 0
    named: tuple[str, ...] = ()


async def serving(client: Requests, model: str) -> Serving:
    """What answers at the client's address. Raises `SpecError` for a model that it does not have, and what
    stands in the way of asking it at all."""
    listing = await _listing(client)  # first: where nobody is there, nobody needs to be asked further
    props, version, ollama, sglang = await asyncio.gather(
        *(_told(client, path) for path in _own_paths(client))
    )
    entries = [entry for each in listing if (entry := _entry(each)) is not None]
    raw = next((each for each in listing if isinstance(each, dict) and each.get("id") == model), {})
    aliases = {alias for each in listing if isinstance(each, dict) for alias in _texts(each.get("aliases"))}
    known = [entry.id for entry in entries]
    llama = "default_generation_settings" in props and "total_slots" in props
    # llama.cpp's server has one model and answers for it whatever name is said.
    names = {*known, *aliases, *(name.removesuffix(":latest") for name in known)}
    if llama:  # it lists the path of its file where it was given no name
        names |= {short for name in known for short in (PurePath(name).name, PurePath(name).stem)}
    if known and model not in names and not (llama and len(known) == 1):
        listed = ", ".join(known[:SHOWN]) + (", …" if len(known) > SHOWN else "")
        raise SpecError(f"{client.base_url} has no model {model!r}; it has: {listed}")
    entry = next((each for each in entries if each.id in (model, f"{model}:latest")), None)
    if entry is None and llama and entries:
        entry = entries[0]
        raw = next(each for each in listing if isinstance(each, dict) and each.get("id") == entry.id)
    name = _name(llama, props, version, ollama, sglang, entry)
    window = _window(props, sglang, entry) or (await _loaded(client, model) if ollama else 0)
    said = {
        "probes": VERSION,
        "server": name,
        "window": window,
        "entry": {key: raw.get(key) for key in STEADY},
        "template": props.get("chat_template"),
        "sglang": sglang.get("model_path"),
    }
    digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
    slots: Any = props.get("total_slots") or sglang.get("max_running_requests")
    return Serving(
        name,
        window,
        llama,
        "version" in ollama,
        digest,
        slots=int(slots) if _positive(slots) else 0,
        named=() if not known or model in names else tuple(known),
    )


def _own_paths(client: Requests) -> list[str | None]:
    """Where servers of a kind tell of themselves; OpenAI's own has no such places."""
    if client.base_url == OFFICIAL:
        return [None] * 4
    return ["/props", "/version", "/api/version", "/get_server_info"]


async def _told(client: Requests, path: str | None) -> dict[str, Any]:
    """What the server says there; nothing where it has no such place."""
    if path is None:
        return {}
    try:
        answer = await client.get(path)
    except MagistrateError:
        return {}
    return answer if isinstance(answer, dict) else {}


async def _listing(client: Requests) -> tuple[Any, ...]:
    """The models that are there; none where the server does not list them."""
    try:
        answer = await client.get("models")
    except (EngineTimeout, EngineBusy):
        raise
    except EngineGone as error:
        if error.status in (404, 405):
            return ()
        raise
    except EngineError as error:
        if (error.status or 0) >= 300:
            return ()
        raise
    try:
        return _Listing.model_validate(answer).data
    except ValidationError:
        return ()


def _entry(each: Any) -> _Entry | None:
    try:
        return _Entry.model_validate(each)
    except ValidationError:
        return None


def _name(
    llama: bool,
    props: dict[str, Any],
    version: dict[str, Any],
    ollama: dict[str, Any],
    sglang: dict[str, Any],
    entry: _Entry | None,
) -> str:
    """In its own words: the place that answered tells what kind it is."""
    if llama:
        return f"llama.cpp {_short(props.get('build_info'))}".strip()
    if "model_path" in sglang:
        return f"SGLang {_short(sglang.get('version'))}".strip()
    if "version" in ollama:
        return f"Ollama {_short(ollama['version'])}"
    owner = _short(entry.owned_by) if entry is not None and entry.owned_by else ""
    if "version" in version:
        return f"{'vLLM' if owner == 'vllm' else owner or 'server'} {_short(version['version'])}"
    return f"unknown, owned by {owner}" if owner else "unknown"


def _window(props: dict[str, Any], sglang: dict[str, Any], entry: _Entry | None) -> int:
    settings = props.get("default_generation_settings")
    if isinstance(settings, dict) and _positive(settings.get("n_ctx")):
        return int(settings["n_ctx"])
    if entry is not None:
        for told in (
            entry.max_model_len,
            entry.loaded_context_length,
            entry.context_length,
            entry.context_window,
            entry.max_context_length,
        ):
            if _positive(told):
                return int(told or 0)
    told = sglang.get("context_length")
    return int(told) if isinstance(told, int) and _positive(told) else 0


async def _loaded(client: Requests, model: str) -> int:
    """The window that Ollama has loaded the model with: what is longer it cuts without a word."""
    for each in (await _told(client, "/api/ps")).get("models") or ():
        named = isinstance(each, dict) and each.get("name") in (model, f"{model}:latest")
        if named and _positive(each.get("context_length")):
            return int(each["context_length"])
    return 0


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _short(value: Any) -> str:
    text = "".join(char for char in str(value) if char.isprintable())
    return "" if value is None else text[:60]
