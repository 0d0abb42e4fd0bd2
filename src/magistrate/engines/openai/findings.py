"""What one server was seen to do with one model, and what an engine on it may therefore promise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from magistrate.engines.base import Capability, EngineInfo
from magistrate.engines.openai.options import Options

VERSION = 1  # of the probes: what older ones have found is found out anew
LISTED = 256  # likeliest tokens that llama.cpp's server is asked for
SHOWN = 4  # requests that broke which are told of
UNTOLD = 1 << 20  # tokens; where nobody tells the window it is the server that refuses what does not fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was seen; what was not seen has its default.

    `server` says what answered, in its own words. `budget` is the word for the most tokens, `samples` whether
    a temperature is taken. `ways` are the names of the constraints that held, the strongest first. `top` is
    how many likeliest tokens are listed, `thinks` where thoughts stand, `continues` how a begun answer is
    gone on with. `native` is whether prompts are made of tokens by llama.cpp's own requests: then `bos` are
    the tokens that begin one, `end` those that end an answer, and `spaced` says that the tokenizer puts a
    space before every text. `tokenizes` is whether chats are turned into tokens, `scores` how prompts get
    log-probabilities. `seeds` is whether a seed repeats a draw, `caches` whether tokens read before are told
    of. `window` is 0 where it is not told, and `cuts` is whether the server cuts what does not fit. `broken`
    are requests that met a failure of the server, also when asked again: what they would have shown counts as
    not there, but is not known, so that findings with any are not kept.
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

    def kept(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Findings | None:
        """What `kept` once wrote; None where it is something else."""
        try:
            return TypeAdapter(cls).validate_python(kept)
        except ValidationError:
            return None


def info_of(
    base_url: str,
    model: str,
    found: Findings,
    options: Options,
    identity: str,
    *,
    slots: int = 0,
    named: Sequence[str] = (),
) -> EngineInfo:
    """What the engine is and can do, from what was seen and what was asked for; `slots` and `named` are those
    of `Serving`."""
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
    fingerprint = hashlib.sha256(f"openai {base_url} {model} {identity}".encode()).hexdigest()
    window = options.window or found.window
    words = _words(found, options, window)
    if slots:
        words["slots"] = f"{slots}: as many requests are sent at first, more while answers come soon"
    if named:
        words["weights"] = (
            f"not those of {model!r}, which the server does not list: {', '.join(named[:SHOWN])}"
        )
    return EngineInfo("openai", model, fingerprint, window or UNTOLD, frozenset(can), words)


def chooses(found: Findings, options: Options) -> str:
    """The method that `choose` uses: the best that was seen and not ruled out."""
    if options.choose in ("sampled", "label_only"):
        return options.choose
    if options.choose == "best" and (found.native or found.scores):
        return "exact"
    if found.thinks and not found.native:
        return "label_only"
    if found.top or found.native:
        return "top_k"
    return "label_only"


def _words(found: Findings, options: Options, window: int) -> dict[str, str]:
    method = chooses(found, options)
    scored = {"prompt_logprobs": "prompt_logprobs", "echo": "echo and logprobs"}.get(found.scores, "")
    words = {
        "server": found.server,
        "weights": "not pinned: whatever the server has under this name",
        "constraints": ", ".join(found.ways) or "asked for in words, checked here",
        "choose": f"top_k of {found.top or LISTED}" if method == "top_k" else method,
        "likelihood": scored,
        "data": "tokens" if found.native else "escaped: what looks like special tokens is broken up",
        "count": "exact" if found.native or found.tokenizes else "estimated, rather too high",
        "window": str(window) if window else "not told; the server refuses what does not fit",
        "continue": "tokens" if found.native else found.continues or "asked for in words",
        "thinking": {"apart": "in a field of its own", "": "none seen"}.get(found.thinks, "in tags"),
        "seed": "repeats a draw" if found.seeds else "not seen to repeat a draw",
        "prefix cache": "told" if found.caches else "not told",
        "stream": "yes" if options.stream else "no",
    }
    if found.broken:
        more = f", and {len(found.broken) - SHOWN} more" if len(found.broken) > SHOWN else ""
        words["probing"] = (
            f"met {'; '.join(found.broken[:SHOWN])}{more}: what that would have shown counts as not there, "
            "and will be asked again"
        )
    if not found.samples:
        words["sampling"] = "the server's own; it takes no temperature"
    if method == "sampled":
        words["choose"] = f"sampled, {options.draws} draws at temperature 1"
    if not scored:
        forced = found.native and options.likelihood == "forced"
        hint = "; likelihood=forced asks for it token by token" if found.native else ""
        words["likelihood"] = "forced, one call a token" if forced else f"no{hint}"
    return words
