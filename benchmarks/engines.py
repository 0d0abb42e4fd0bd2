"""Judges the same ten samples with every judge over several engines: their capabilities and agreement.

    python benchmarks/engines.py record ENGINE [--base-url URL] [--as NAME] [--judge WORDS ...]
    python benchmarks/engines.py table
    python benchmarks/engines.py close ENGINE OTHER [--base-url URL] [--samples N]

ENGINE is a value for `--model`: a model of the catalogue, `transformers:FOLDER`, `openai:MODEL`. `record`
judges the first ten samples of the built-in set with every judge that calls a model and needs no folder of
its own. It stores outcomes and capabilities in benchmarks/engines.jsonl, one line per engine. Judges
already recorded for the same engine are executed again only if `--judge` names them. Each engine may be
recorded in its own environment, with its packages. `table` prints the results, compared with the first
line; `make docs` writes it to docs/engines.md. `close` sends the same calls to two engines, where URL is
the address of OTHER, and prints how far apart their probabilities are: of the answers that `faithfulness`
chooses among, and of every output token after the prompt of the judge `likelihood`.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from magistrate import _async
from magistrate._version import __version__
from magistrate.datasets import load
from magistrate.engines.base import Engine, EngineSettings, Option, require
from magistrate.errors import CapabilityError, SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge, planned_calls
from magistrate.judges.likelihood import prompts
from magistrate.report.export import outcome_data
from magistrate.runs.execute import judge_one
from magistrate.types import Sample

FILE = Path(__file__).with_name("engines.jsonl")
SAMPLES = 10
DEADLINE = 600.0
ANSWERS = (Option("Yes", ("Yes",)), Option("No", ("No",)))  # the answers to the question of `faithfulness`


def asking_judges() -> list[str]:
    """Return a specification of every judge that calls a model and needs no folder or file."""
    found = []
    for name in registry.judge_entries():
        words = f"{name}:first=novelty,then=faithfulness,low=0,high=1" if name == "cascade" else name
        try:
            made = registry.judge(words)
        except SpecError:  # it needs a folder or a file as an option
            continue
        if made.info.asks and not made.info.lacks:
            found.append(words)
    return found


def record(
    engine: Engine, name: str, words: Sequence[str], samples: Sequence[Sample], *, again: bool = False
) -> None:
    """Store the engine's properties and every judge's outcomes with it, each as soon as it is known.

    With an earlier record of the same engine, only the judges in `again` are executed again.
    """
    info = engine.info
    line = {
        "engine": name,
        "kind": info.name,
        "model": info.model,
        "fingerprint": info.fingerprint[:12],
        "can": sorted(info.can),
        "ways": dict(info.ways),
        "context_window": info.context_window,
        "machine": platform.machine(),
        "package": __version__,
    }
    before = next((each for each in read() if each["engine"] == name), {})
    # Not by the fingerprint: a server's includes its address, whose port changes.
    same = all(before.get(key) == line[key] for key in ("kind", "model", "can", "package"))
    known = before.get("judges", {}) if same else {}
    keep({**line, "judges": known})
    for each in words:
        if again or each not in known:
            start = time.perf_counter()
            known[each] = said(registry.judge(each), engine, samples)
            keep({**line, "judges": known})
            print(f"{name}: {each}: {time.perf_counter() - start:.1f} s", flush=True)


def said(judge: Judge, engine: Engine, samples: Sequence[Sample]) -> Any:
    """Return the outcomes by sample id, or the reason why the engine lacks what the judge needs."""
    try:
        require(engine.info, judge.info.needs, judge.info.name)
    except CapabilityError as error:
        return str(error)
    told = {}
    for sample in samples:
        outcome = outcome_data(_async.run(judge_one(sample, judge, engine, deadline=DEADLINE)), steps=False)
        names = ("kind", "label", "score", "probability", "code", "reason", "message")
        told[sample.id] = {each: outcome[each] for each in names if outcome.get(each) is not None}
    return told


def keep(line: dict[str, Any]) -> None:
    """Write a line in place of the one of the same engine, or append it."""
    lines = read()
    names = [each["engine"] for each in lines]
    if line["engine"] in names:
        lines[names.index(line["engine"])] = line
    else:
        lines.append(line)
    FILE.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines), encoding="utf-8")


def read() -> list[dict[str, Any]]:
    """Return the records of all engines."""
    if not FILE.exists():
        return []
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def agreement(lines: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table: for each judge, every engine compared with the first.

    A cell gives, for samples with a verdict of both, on how many the labels agree, and the mean and largest
    difference of the scores.
    """
    first, *others = lines
    rows = []
    for judge, reference in first["judges"].items():
        row = [f"`{judge}`", f"{verdicts(reference)}/{SAMPLES}"]
        rows.append(row + [cell(reference, each["judges"].get(judge)) for each in others])
    columns = ["judge", f"{first['engine']}: verdicts", *(each["engine"] for each in others)]
    return columns, rows


def verdicts(judged: Any) -> int:
    """Return how many outcomes are verdicts."""
    return 0 if isinstance(judged, str) else sum("label" in each for each in judged.values())


def cell(reference: Any, judged: Any) -> str:
    """Return the agreement of one judge over two engines."""
    if judged is None:
        return "not asked"
    if isinstance(judged, str):
        return "cannot: " + judged.partition(" needs ")[2].partition(",")[0]
    both = [
        (reference[key], judged[key])
        for key in reference
        if "label" in reference[key] and "label" in judged.get(key, {})
    ]
    if not both:
        return f"{verdicts(judged)}/{SAMPLES} verdicts"
    same = sum(one["label"] == other["label"] for one, other in both)
    apart = [abs(one["score"] - other["score"]) for one, other in both]
    missing = f"; {verdicts(judged)}/{SAMPLES} verdicts" if verdicts(judged) < SAMPLES else ""
    return f"{same}/{len(both)} labels, Δ {sum(apart) / len(apart):.3f} (at most {max(apart):.3f}){missing}"


def close(one: Engine, other: Engine, samples: Sequence[Sample]) -> list[str]:
    """Return how far apart two engines' results for the same calls are, one line per verb."""
    return [_async.run(chosen(one, other, samples)), _async.run(likely(one, other, samples))]


async def chosen(one: Engine, other: Engine, samples: Sequence[Sample]) -> str:
    """Compare the probabilities of yes, and how often both engines prefer the same answer."""
    judge = registry.judge("faithfulness")
    apart, alike = [], 0
    for sample in samples:
        prompt = planned_calls(judge, sample)[0].prompt
        ours, theirs = [await engine.choose(prompt, ANSWERS) for engine in (one, other)]
        alike += ours.best == theirs.best
        if ours.probabilities is not None and theirs.probabilities is not None:
            apart.append(abs(ours.probabilities["Yes"] - theirs.probabilities["Yes"]))
    said = f"choose: {len(samples)} questions, the likelier answer is the same in {alike}"
    return f"{said}; probabilities {told(apart)}" if apart else f"{said}; there are no probabilities"


async def likely(one: Engine, other: Engine, samples: Sequence[Sample]) -> str:
    """Compare the log-probabilities of every output token, where both engines tokenize alike."""
    if unable := [engine.info.model for engine in (one, other) if "likelihood" not in engine.info.can]:
        return f"likelihood: {', '.join(unable)} cannot"
    apart, texts = [], 0
    for sample in samples:
        prompt, text = prompts(sample)[0], sample.output or ""
        ours, theirs = [await engine.likelihood(prompt, text) for engine in (one, other)]
        if ours.offsets == theirs.offsets:
            texts += 1
            apart += [abs(a - b) for a, b in zip(ours.logprobs, theirs.logprobs, strict=True)]
    said = f"likelihood: {texts} of {len(samples)} texts are cut into the same tokens"
    return f"{said}, {len(apart)} in all; log-probabilities {told(apart)}, in nats" if apart else said


def told(apart: Sequence[float]) -> str:
    """Format the differences."""
    return f"{sum(apart) / len(apart):.4f} apart on average, {max(apart):.4f} at most"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("engine")
    one.add_argument("--base-url")
    one.add_argument("--as", dest="name")
    one.add_argument("--judge", action="append")
    commands.add_parser("table")
    two = commands.add_parser("close")
    two.add_argument("engine")
    two.add_argument("other")
    two.add_argument("--base-url")
    two.add_argument("--samples", type=int, default=SAMPLES)
    given = parser.parse_args()
    if given.command == "close":
        engines = (
            registry.engine(given.engine),
            registry.engine(given.other, EngineSettings(base_url=given.base_url)),
        )
        print("\n".join(close(*engines, list(load("quickstart", limit=given.samples)))))
        return
    if given.command == "record":
        engine = registry.engine(given.engine, EngineSettings(base_url=given.base_url))
        samples = list(load("quickstart", limit=SAMPLES))
        name = given.name or given.engine
        record(engine, name, given.judge or asking_judges(), samples, again=bool(given.judge))
    columns, rows = agreement(read())
    for row in (columns, *rows):
        print(" | ".join(row))


if __name__ == "__main__":
    main()
