"""Capabilities of a server: its own description, its features with a model, the file that stores them.

Capabilities are stored in `servers.json` in Magistrate's home, so that no server is probed twice: per
address and model, with a digest of the server's description at that time. The file contains no keys and
nothing of what is judged. An unreadable file counts as empty.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Literal, TypeGuard

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from magistrate._paths import home
from magistrate.engines.base import Capability, EngineInfo
from magistrate.engines.remote.client import Requests
from magistrate.errors import EngineBusy, EngineError, EngineGone, EngineTimeout, MagistrateError, SpecError

OFFICIAL = "https://api.openai.com/v1"
VERSION = 1  # of the probes; older results are not used
LISTED = 256  # most likely tokens requested from llama.cpp's server
SHOWN = 4  # the most failed requests or models that `ways` lists
SHOWN_MODELS = 20  # the most models that an error lists
UNKNOWN_WINDOW = 1 << 20  # tokens; the server rejects what does not fit
# Fields of a model's entry that contain its context window.
LENGTHS = (
    "max_model_len",
    "loaded_context_length",
    "context_length",
    "context_window",
    "max_context_length",
)
# Fields that are the same in every listing.
STABLE = ("id", "owned_by", "root", "max_model_len", "digest", "quantization", "meta")

FILE = "servers.json"
MAX_ENTRIES = 256  # servers and models that are stored, the newest ones
MAX_BYTES = 4 * 1024 * 1024  # the largest file that is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the engine, given after the model's name, as in `openai:MODEL,draws=10`.

    `choose` is the best method that the server offers unless you name a lesser one; `sampled` makes
    `draws`. `likelihood=forced` scores a text with one call per token if the server does not score prompts.
    `stream` reads texts as they are generated. An unusable answer is requested again up to `anew` times. A
    model that thinks may write `thoughts` tokens before its answer. `window` is the context window in
    tokens, if the server does not report it. `probe=anew` tests the server's capabilities again.
    """

    choose: Literal["best", "top_k", "sampled", "label_only"] = "best"
    draws: int = 20
    likelihood: Literal["offered", "forced"] = "offered"
    stream: bool = False
    anew: int = 2
    thoughts: int = 2048
    window: int = 0
    probe: Literal["kept", "anew"] = "kept"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's description of itself and of a model.

    `server` is its name, `window` the context window in tokens (0: unknown), `llama` whether it has
    llama.cpp's own API, `cuts` whether it is known to truncate what does not fit, `identity` a digest of
    the description, and `slots` how many requests it answers at once (0: unknown). `named` are the models
    that it lists, if the requested one is not among them although the server answers for it.
    """

    server: str
    window: int
    llama: bool
    cuts: bool
    identity: str
    slots: int = 0
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCapabilities:
    """The capabilities found for a server and a model; what was not found has its default.

    `server` is the server's name in its own words. `budget` is the parameter for the most tokens, `samples`
    whether a temperature is accepted. `ways` are the names of the constraints that were enforced, the
    strongest first. `top` is how many of the most likely tokens are listed, `thinks` where thoughts are,
    and `continues` how a partial answer is continued.

    `native` is whether prompts can be token lists, with llama.cpp's own API. Then `bos` are the tokens at
    the beginning of a prompt, `end` those that end an answer, and `spaced` is whether the tokenizer puts a
    space before every text. `tokenizes` is whether the server tokenizes chats, `scores` how prompts get
    log-probabilities. `seeds` is whether a seed repeats a draw, `caches` whether cached tokens are
    reported.

    `window` is the context window in tokens, 0 if unknown, and `cuts` whether the server truncates what
    does not fit. `broken` are requests that failed even when repeated. What they would have shown counts as
    absent but is unknown, so capabilities with any are not stored.
    """

    server: str = "unknown"
    window: int = 0
    budget: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    samples: bool = True
    ways: tuple[str, ...] = ()
    top: int = 0
    thinks: Literal["", "apart", "tags", "closed"] = ""
    continues: Literal["", "as is", "continue_final_message"] = ""
    native: bool = False
    bos: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    spaced: bool = False
    tokenizes: bool = False
    scores: Literal["", "prompt_logprobs", "echo"] = ""
    seeds: bool = False
    caches: bool = False
    cuts: bool = False
    broken: tuple[str, ...] = ()


def engine_info(
    base_url: str, model: str, server: ServerInfo, found: ServerCapabilities, options: Options
) -> EngineInfo:
    """Return the engine's info, given the capabilities and the options."""
    can: set[Capability] = {"generate", "choose"}
    if found.ways:
        can.add("constraints")
    if found.native or found.scores:
        if options.choose == "best":
            can.add("exact_probability")
        if found.scores or options.likelihood == "forced":
            can.add("likelihood")
    if found.native:
        can.add("data_isolation")
    if found.seeds:
        can.add("repeatable")
    fingerprint = hashlib.sha256(f"openai {base_url} {model} {server.identity}".encode()).hexdigest()
    window = options.window or found.window
    ways = _ways(found, options, window)
    if server.slots:
        ways["slots"] = (
            f"{server.slots}: the number of requests sent at first; it grows while answers come quickly"
        )
    if server.named:
        ways["weights"] = (
            f"not those of {model!r}, which the server does not list: {', '.join(server.named[:SHOWN])}"
        )
    return EngineInfo("openai", model, fingerprint, window or UNKNOWN_WINDOW, frozenset(can), ways)


def choose_method(found: ServerCapabilities, options: Options) -> str:
    """Return the method of `choose`: the best one that was found and that the options allow."""
    if options.choose in ("sampled", "label_only"):
        return options.choose
    if options.choose == "best" and (found.native or found.scores):
        return "exact"
    if found.thinks and not found.native:
        return "label_only"
    if found.top or found.native:
        return "top_k"
    return "label_only"


def _ways(found: ServerCapabilities, options: Options, window: int) -> dict[str, str]:
    """Return `EngineInfo.ways`: how the engine does what can be done in several ways, and what is unknown."""
    method = choose_method(found, options)
    scored = {"prompt_logprobs": "prompt_logprobs", "echo": "echo and logprobs"}.get(found.scores, "")
    ways = {
        "server": found.server,
        "weights": "not pinned: any model that the server has under this name",
        "constraints": ", ".join(found.ways) or "requested in the prompt, checked locally",
        "choose": f"top_k of {found.top or LISTED}" if method == "top_k" else method,
        "likelihood": scored,
        "data": "tokens" if found.native else "escaped: texts that look like special tokens are broken up",
        "count": "exact" if found.native or found.tokenizes else "estimated, on the high side",
        "window": str(window) if window else "unknown; the server rejects what does not fit",
        "continue": "tokens" if found.native else found.continues or "requested in the prompt",
        "thinking": {"apart": "in a separate field", "": "none seen"}.get(found.thinks, "in tags"),
        "seed": "repeats a sample" if found.seeds else "not shown to repeat a sample",
        "prefix cache": "told" if found.caches else "not told",
        "stream": "yes" if options.stream else "no",
    }
    if found.broken:
        more = f", and {len(found.broken) - SHOWN} more" if len(found.broken) > SHOWN else ""
        ways["probing"] = (
            f"met {'; '.join(found.broken[:SHOWN])}{more}: the capability counts as missing and will be "
            "tested again"
        )
    if not found.samples:
        ways["sampling"] = "set by the server; it does not accept a temperature"
    if method == "sampled":
        ways["choose"] = f"sampled, {options.draws} draws at temperature 1"
    if not scored:
        forced = found.native and options.likelihood == "forced"
        hint = "; likelihood=forced requests it token by token" if found.native else ""
        ways["likelihood"] = "forced, one call per token" if forced else f"no{hint}"
    return ways


# --- a server's description of itself ---------------------------------------------------------------


async def server_info(client: Requests, model: str) -> ServerInfo:
    """Ask the server for its description. Raises `SpecError` for a model that it does not have, and
    `EngineError` if it cannot be reached."""
    entries = await _listed_models(client)  # first: if nobody answers, nothing else is requested
    # Pages where servers of each kind describe themselves. OpenAI's own has none.
    paths = () if client.base_url == OFFICIAL else ("/props", "/version", "/api/version", "/get_server_info")
    pages = await asyncio.gather(*(_page(client, path) for path in paths))
    props, version, ollama, sglang = pages or [{}] * 4
    llama = "default_generation_settings" in props and "total_slots" in props
    listed = [entry["id"] for entry in entries]
    aliases = chain(*(each["aliases"] for each in entries if isinstance(each.get("aliases"), list)))
    names = {*listed, *(alias for alias in aliases if isinstance(alias, str))}
    names |= {name.removesuffix(":latest") for name in listed}
    if llama:  # it lists the path of its file if it was started without a name
        names |= {short for name in listed for short in (PurePath(name).name, PurePath(name).stem)}
    # llama.cpp's server has one model and uses it whatever name is given.
    if listed and model not in names and not (llama and len(listed) == 1):
        known = ", ".join(listed[:SHOWN_MODELS]) + (", …" if len(listed) > SHOWN_MODELS else "")
        raise SpecError(f"{client.base_url} has no model {model!r}; it has: {known}")
    entry = next((each for each in entries if each["id"] in (model, f"{model}:latest")), None)
    entry = entry or (entries[0] if llama and entries else {})
    name = _name(llama, props, version, ollama, sglang, entry)
    settings = props.get("default_generation_settings")
    lengths = [
        settings.get("n_ctx") if isinstance(settings, dict) else None,
        *(entry.get(length) for length in LENGTHS),
        sglang.get("context_length"),
        await _loaded_window(client, model) if ollama else 0,
    ]
    window = next((length for length in lengths if _positive(length)), 0)
    facts = {
        "probes": VERSION,
        "server": name,
        "window": window,
        "entry": {key: entry.get(key) for key in STABLE},
        "template": props.get("chat_template"),
        "sglang": sglang.get("model_path"),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    slots = props.get("total_slots") or sglang.get("max_running_requests")
    return ServerInfo(
        name,
        window,
        llama,
        "version" in ollama,
        digest,
        slots=slots if _positive(slots) else 0,
        named=() if not listed or model in names else tuple(listed),
    )


async def _listed_models(client: Requests) -> list[dict[str, Any]]:
    """Return the entries of the list of models; empty if the server has no list."""
    try:
        answer = await client.get("models")
    except (EngineTimeout, EngineBusy):
        raise
    except EngineError as error:
        missing = (404, 405) if isinstance(error, EngineGone) else range(300, 600)
        if error.status in missing:
            return []
        raise
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        return []
    return [each for each in entries if isinstance(each, dict) and isinstance(each.get("id"), str)]


async def _page(client: Requests, path: str) -> dict[str, Any]:
    """Return the JSON object at a path; empty if there is none."""
    try:
        answer = await client.get(path)
    except MagistrateError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _name(
    llama: bool,
    props: dict[str, Any],
    version: dict[str, Any],
    ollama: dict[str, Any],
    sglang: dict[str, Any],
    entry: dict[str, Any],
) -> str:
    """Return the server's kind and version; the page that answered tells the kind."""
    if llama:
        return f"llama.cpp {_printable(props.get('build_info'))}".strip()
    if "model_path" in sglang:
        return f"SGLang {_printable(sglang.get('version'))}".strip()
    if "version" in ollama:
        return f"Ollama {_printable(ollama['version'])}"
    owner = _printable(entry.get("owned_by"))
    if "version" in version:
        return f"{'vLLM' if owner == 'vllm' else owner or 'server'} {_printable(version['version'])}"
    return f"unknown, owned by {owner}" if owner else "unknown"


async def _loaded_window(client: Requests, model: str) -> int:
    """Return the window with which Ollama has loaded the model; it silently truncates longer texts."""
    for each in (await _page(client, "/api/ps")).get("models") or ():
        named = isinstance(each, dict) and each.get("name") in (model, f"{model}:latest")
        if named and _positive(each.get("context_length")):
            return int(each["context_length"])
    return 0


def _positive(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**9


def _printable(value: Any) -> str:
    text = "".join(char for char in str(value) if char.isprintable())
    return "" if value is None else text[:60]


# --- the file ------------------------------------------------------------------------------------


def recall(address: str, model: str, identity: str) -> ServerCapabilities | None:
    """Return the stored capabilities of `model` at `address` while the server was `identity`, or None."""
    found = _entries(home() / FILE).get(_key(address, model))
    if not isinstance(found, dict) or found.get("identity") != identity:
        return None
    try:
        return TypeAdapter(ServerCapabilities).validate_python(found.get("findings"))
    except ValidationError:
        return None


def remember(address: str, model: str, identity: str, found: ServerCapabilities) -> None:
    """Store the capabilities. If the folder is not writable, the server is probed again next time."""
    path = home() / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=10):
            entries = _entries(path)
            entries.pop(_key(address, model), None)
            entries[_key(address, model)] = {"identity": identity, "findings": asdict(found)}
            newest = dict(list(entries.items())[-MAX_ENTRIES:])
            part = path.with_name(f"{FILE}.part")
            part.write_text(json.dumps(newest, indent=1, ensure_ascii=False), encoding="utf-8")
            part.replace(path)
    except (OSError, TimeoutError):
        return


def _entries(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _key(address: str, model: str) -> str:
    return f"{address} {model}"
