"""Measures each judge on labelled sets with the installed models: validity, quotes, quality, cost.

Run: .venv/bin/python benchmarks/judges.py [--set NAME …] [--judge SPEC …] [--model NAME …] [--write]

SETs are `summedits` (its first 50 rows), `article` (the 200 items of the article on structured generation,
HaluEval QA) and `criteria` (the seven pairs of the package); the first two are read from MAGISTRATE_DATA_DIR.
Every judge has its own engine, warm and with an empty cache. Each row is appended to judges.jsonl
as it comes, with the commit and the day; `--write` puts tables of the newest rows into docs/judges.md, also
without measuring anything (`--set` none). For `article` two judges run without their constraints as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import magistrate
from magistrate import Limits, _async
from magistrate.engines.base import Option
from magistrate.report.formatting import decimal
from magistrate.types import HALLUCINATED, Outcome, Prompt, Sample, Verdict

ROWS = Path(__file__).with_name("judges.jsonl")
PAGE = Path(__file__).parent.parent / "docs" / "judges.md"
SETS = {
    "summedits": ("summedits", 50),
    "article": ("halueval-qa:article200", None),
    "criteria": ("criteria", None),
}
MODELS = ("smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct")
JUDGES = (
    *("faithfulness", "faithfulness:prior=empty_context", "faithfulness:permute=true"),
    *("faithfulness:explain=before", "sentences", "hallucination"),
    *("candidates", "candidates:least=1", "candidates:least=1,unit=sentences"),
    *("rubric", "rubric:free_stage=false"),
    *("windows", "passages", "relevance", "context_relevance", "moderation"),
)
IN_FLIGHT = 32  # samples in flight
FREE = ("hallucination:constrained=false", "candidates:constrained=false")
SHORT = (
    *("faithfulness", "sentences", "hallucination", "candidates", "candidates:least=1"),
    *("rubric", "rubric:free_stage=false"),
)
PLAN = {"summedits": JUDGES, "article": (*SHORT, *FREE), "criteria": SHORT}


def measured(name: str, spec: str, model: str) -> dict[str, Any]:
    """Evaluate one judge on one set, and return a row of results."""
    data, limit = SETS[name]
    engine = magistrate.LocalEngine(model)
    try:
        options = (Option("yes", ("Yes",)), Option("no", ("No",)))
        _async.run(engine.choose(Prompt.of("Is it warm? Yes or No?"), options))
        with tempfile.TemporaryDirectory() as folder:
            run = magistrate.evaluate(
                data,
                spec,
                model=engine,
                limit=limit,
                store=Path(folder) / "runs.db",
                limits=Limits(concurrency=IN_FLIGHT, deadline=3600),
                cache=False,
                progress=False,
            )
            report = run.summary().judges[0]
            outcomes, samples = run.outcomes(), {sample.id: sample for sample in run.samples()}
            seconds = run.summary().run.seconds
    finally:
        engine.close()
    metrics = report.result.metrics if report.result else {}
    quotes = list(quoted(outcomes, samples))
    n = len(outcomes)
    return {
        "set": name,
        "judge": spec,
        "model": model,
        "commit": commit(),
        "day": date.today().isoformat(),
        "n": n,
        "verdicts": report.n_ok,
        "failures": report.failures,
        "abstentions": report.abstentions,
        "said": report.verdicts,
        "with_quote": sum(bool(outcome.claims) for outcome in outcomes if isinstance(outcome, Verdict)),
        "quotes": len(quotes),
        "quotes_found": sum(found for found, _ in quotes),
        "quote_length": sum(length for _, length in quotes) / len(quotes) if quotes else None,
        "read": report.usage.prompt / n,
        "cached": report.usage.cached / n,
        "written": report.usage.generated / n,
        "seconds": seconds / n,
        **{metric: [each.value, each.low, each.high] for metric, each in metrics.items()},
        **({"criteria": dict(caught(outcomes, samples))} if name == "criteria" else {}),
        "recipe": report.recipe,
    }


def quoted(outcomes: Iterable[Outcome], samples: dict[str, Sample]) -> Iterator[tuple[bool, int]]:
    """Yield for every quote of every claim whether its text is at its offsets, and its length."""
    for outcome in outcomes:
        sample = samples[outcome.sample_id]
        for claim in outcome.claims if isinstance(outcome, Verdict) else ():
            places = [(sample.output or "", claim.output_quote, claim.output_text)]
            if claim.context_quote is not None and claim.context_index is not None:
                source = sample.sources[claim.context_index]
                places.append((source, claim.context_quote, claim.context_text))
            for text, span, quote in places:
                yield bool(quote) and text[span.start : span.end] == quote, span.end - span.start


def caught(outcomes: Sequence[Outcome], samples: dict[str, Sample]) -> Iterator[tuple[str, str]]:
    """Yield for every criterion the result of its pair: `caught`, `ranked` or `missed`."""
    pairs: dict[str, dict[str, Outcome]] = {}
    for outcome in outcomes:
        sample = samples[outcome.sample_id]
        pairs.setdefault(sample.metadata["criterion"], {})[str(sample.label)] = outcome
    for criterion, pair in pairs.items():
        good, bad = pair["faithful"], pair["hallucinated"]
        if not isinstance(good, Verdict) or not isinstance(bad, Verdict):
            yield criterion, "no verdict"
        elif bad.label == HALLUCINATED != good.label:
            yield criterion, "caught"
        else:
            yield criterion, "ranked" if bad.score > good.score else "missed"


def commit() -> str:
    """Return the measured commit, with `+` if files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=PAGE.parent).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + (
        "+" if git("status", "--porcelain", "src") else ""
    )


# --- tables --------------------------------------------------------------------------------------


def newest() -> list[dict[str, Any]]:
    """Return the last row of every set, judge and model, in the order of the plan."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    rows = {(row["set"], row["model"], row["judge"]): row for row in map(json.loads, lines)}
    order = [(name, model, spec) for name in SETS for model in MODELS for spec in PLAN[name]]
    return [rows[key] for key in order if key in rows]


def written(page: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the page with its measured parts generated from `rows`."""
    for name, table in (
        ("summedits", judged_table),
        ("article", article_table),
        ("criteria", criteria_table),
    ):
        own = [row for row in rows if row["set"] == name]
        body = "\n\n".join(
            f"{model}, {day(each)}:\n\n{table(each)}"
            for model in MODELS
            if (each := [row for row in own if row["model"] == model])
        )
        before, begin, rest = page.partition(f"<!-- measured: {name} -->\n")
        _, end, after = rest.partition("<!-- end: measured -->")
        page = f"{before}{begin}{body}\n{end}{after}"
    return page


def day(rows: Sequence[dict[str, Any]]) -> str:
    """Return when and at which commits rows were measured."""
    commits = dict.fromkeys(row["commit"] for row in rows)
    return f"measured {max(row['day'] for row in rows)} at {', '.join(commits)}"


def judged_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of validity, quotes, quality and cost."""
    head = ["judge", "valid", "quotes found", "with a quote", "length", "balanced accuracy", "AUROC"]
    head += ["tokens read", "written", "s a sample"]
    return markdown(
        head,
        [
            [
                f"`{row['judge']}`",
                valid(row),
                f"{row['quotes_found']}/{row['quotes']}" if row["quotes"] else "–",
                f"{row['with_quote'] / row['verdicts']:.0%}" if row["quotes"] else "–",
                f"{row['quote_length']:.0f}" if row["quotes"] else "–",
                estimate(row, "balanced_accuracy"),
                ranking(row),
                f"{row['read']:.0f} ({row['cached']:.0f} cached)",
                f"{row['written']:.0f}",
                f"{row['seconds']:.2f}",
            ]
            for row in rows
        ],
    )


def article_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of the article's comparison."""
    head = ["judge", "valid", "accuracy", "balanced accuracy", "AUROC", "commoner label", "s a sample"]
    return markdown(
        head,
        [
            [
                f"`{row['judge']}`",
                valid(row),
                estimate(row, "accuracy"),
                estimate(row, "balanced_accuracy"),
                ranking(row),
                commoner(row["said"]),
                f"{row['seconds']:.2f}",
            ]
            for row in rows
        ],
    )


def criteria_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of criteria that each judge catches."""
    names = list(rows[0]["criteria"])
    return markdown(
        ["judge", *names], [[f"`{row['judge']}`", *(row["criteria"][name] for name in names)] for row in rows]
    )


def valid(row: dict[str, Any]) -> str:
    """Format the number of verdicts, and the reasons of the other outcomes."""
    others = {**row["failures"], **row["abstentions"]}
    told = ", ".join(f"{n} {reason}" for reason, n in others.items())
    return f"{row['verdicts']}/{row['n']}" + (f" ({told})" if told else "")


def estimate(row: dict[str, Any], metric: str) -> str:
    """Format a metric as `.62 [.55, .69]`, or a dash."""
    value, low, high = row.get(metric) or (None, None, None)
    if value is None:
        return "–"
    return decimal(value) + (f" [{decimal(low)}, {decimal(high)}]" if low is not None else "")


def ranking(row: dict[str, Any]) -> str:
    """Format the AUROC, and say if it is no better than chance."""
    _, low, high = row.get("auroc") or (None, None, None)
    if low is None or high is None or low > 0.5:
        return estimate(row, "auroc")
    return f"{estimate(row, 'auroc')} {'at chance' if high >= 0.5 else 'the wrong way round'}"


def commoner(said: dict[str, int]) -> str:
    """Return the more frequent label and its share."""
    if not said:
        return "–"
    label = max(said, key=said.__getitem__)
    return f"{said[label] / sum(said.values()):.0%} {label}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure the requested judges, append the rows, and write the page."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--set", dest="sets", action="append", choices=[*SETS, "none"])
    words.add_argument("--judge", dest="judges", action="append", metavar="SPEC")
    words.add_argument("--model", dest="models", action="append", metavar="NAME")
    words.add_argument("--write", action="store_true", help="put the newest rows into docs/judges.md")
    said = words.parse_args()
    for name in said.sets or SETS:
        for model in (said.models or MODELS) if name != "none" else ():
            for spec in said.judges or PLAN[name]:
                row = measured(name, spec, model)
                with ROWS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                facts = [
                    name,
                    model,
                    spec,
                    valid(row),
                    *(f"{m} {estimate(row, m)}" for m in ("balanced_accuracy", "auroc")),
                ]
                print(" · ".join([*facts, f"{row['seconds']:.2f} s a sample"]), flush=True)
    if said.write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), newest()), encoding="utf-8")
        print(f"wrote {PAGE.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
