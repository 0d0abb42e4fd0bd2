"""The process that a contender is measured in: `python -m magistrate.bench.child NAME`.

It reads JSON lines and answers each with one. The first is its set-up, `{"weights": {...}, "threads": n}`,
answered with `{"version", "works", "seconds"}`; the others are `{"work", "in_flight", "items", "warm"}`,
answered with the fields of a `Measured`, where `warm` are items to answer first, unmeasured. The work
`memory` is answered here. What goes wrong is answered as `{"error": reason}`. Whatever else writes to
standard output is led to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from magistrate.bench.contender import CONTENDERS, Contender, Item, Measured, Weights, made
from magistrate.errors import EngineError, SpecError

LEVELLESS = ("prefill",)  # works without a number in flight
ITEMLESS = ("mask",)  # works that take nothing at all
MEGABYTE = 1e6
_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


def main(name: str) -> None:
    """Serve one contender until standard input ends."""
    requests, answers = _channels()

    def answer(value: Mapping[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    contender: Contender | None = None
    for line in requests:
        try:
            request = json.loads(line)
            if contender is None:
                contender, loaded = _loaded(name, request)
                answer(loaded)
            else:
                answer(asdict(_measured(contender, request)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # contenders are foreign code; some raise what is no Exception
            answer({"error": reason(error)})
    if contender is not None:
        contender.close()


def reason(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error.name}"
    known = isinstance(error, EngineError | SpecError)
    return text if known and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def _channels() -> tuple[Iterator[str], IO[str]]:
    """The parent's two ends, kept for this module alone: other code sees an empty input, and an output
    that is standard error."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    sys.stdout.flush()
    os.dup2(2, 1)
    return iter(requests.readline, ""), answers


def _loaded(name: str, setup: Mapping[str, Any]) -> tuple[Contender, Mapping[str, Any]]:
    paths = setup["weights"]
    weights = Weights(
        Path(paths["ir"]), Path(paths["gguf"]) if paths["gguf"] else None, Path(paths["tokenizer"])
    )
    contender = made(CONTENDERS[name].target if name in CONTENDERS else name)
    version = contender.version()
    start = time.perf_counter()
    contender.load(weights, int(setup["threads"]))
    seconds = time.perf_counter() - start
    return contender, {"version": version, "works": sorted(contender.works), "seconds": seconds}


def _measured(contender: Contender, request: Mapping[str, Any]) -> Measured:
    work = request["work"]
    if work == "memory":
        return Measured(1, 0, 0.0, 1, memory())
    if work not in contender.works:
        raise SpecError(f"cannot do {work}")
    method = getattr(contender, work)
    if work in ITEMLESS:
        measured = method()
    else:
        levels = () if work in LEVELLESS else (int(request["in_flight"]),)
        if warm := _items(request.get("warm", ())):
            method(warm, *levels)
        measured = method(_items(request["items"]), *levels)
    assert isinstance(measured, Measured)
    return measured


def _items(rows: list[Mapping[str, Any]]) -> list[Item]:
    return [Item(**{**row, "tokens": tuple(row["tokens"])}) for row in rows]


def memory() -> Mapping[str, float]:
    """Resident set of this process in megabytes (10^6 bytes): `peak`, with the largest of its own
    children added, and `now` where /proc tells. Raises `EngineError` where the system does not say."""
    try:
        import resource
    except ModuleNotFoundError:
        raise EngineError("this system does not tell a process how much memory it uses") from None
    own, children = (
        resource.getrusage(who).ru_maxrss * _UNIT / MEGABYTE
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    status = Path("/proc/self/status")
    if not status.exists():
        return {"peak": own + children}
    # What a process inherits of who started it is in ru_maxrss, but not here.
    told = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
    own, now = (int(told[name].split()[0]) * 1024 / MEGABYTE for name in ("VmHWM", "VmRSS"))
    return {"peak": own + children, "now": now}


if __name__ == "__main__":
    main(sys.argv[1])
