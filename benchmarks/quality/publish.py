"""Writes the table of measured quality that `magistrate judges` shows.

`python -m benchmarks.quality.publish` reads benchmarks/quality.jsonl and panels.jsonl. A judge that ships
trained on all sets is given the rows that stand for it, of judges trained without each family:
`--folds novelty 'novelty:without={family}'`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.quality.rows import BASELINE, Figure, QualityRow, newest, read
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.quality import TABLE

HEAD = """\
# How well judges were measured to judge, as `magistrate judges` shows it. Written by
# benchmarks/quality/publish.py from benchmarks/quality.jsonl and panels.jsonl; not to be edited.
# auroc and balanced_accuracy: the figure and its 95 % interval; ms: wall clock a sample.
# compared: what judges of several calls are worth beside as many votes of one question, or on pairs.
"""
COMPARED = ("judge", "model", "set", "n", "calls", "tokens")
FIGURES = ("balanced_accuracy", "difference", "right")
RECIPE = re.compile(r"judge=(?P<judge>.+?) model=\S+ prompt=(?P<prompt>.*?) constraint=")


def published(
    rows: Sequence[QualityRow],
    folds: Mapping[str, str] = MappingProxyType({}),
    panels: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the text of the table: for every judge and model the rows on sets it was not trained on.

    `panels` are rows of `benchmarks.panels`: the last of each judge, model and set counts. `folds` maps a
    judge to the specification, with `{family}`, whose rows represent it: judges trained like it, each without
    the set's family. Raises `SpecError` if there are none.
    """
    found: dict[tuple[str, str, str, str], list[QualityRow]] = {}
    for row in rows:
        if row.model == BASELINE or row.seen:
            continue
        for name in [name for name, words in folds.items() if words == row.judge]:
            judge = registry.judge(name)
            who = f"{registry.spelled(judge)}@{judge.info.version}"
            found.setdefault((who, judge.info.prompt, row.model, row.judge), []).append(row)
        if (recipe := RECIPE.match(row.recipe)) is not None and "{" not in row.judge:
            found.setdefault((recipe["judge"], recipe["prompt"], row.model, ""), []).append(row)
    if missing := [words for words in folds.values() if words not in {row.judge for row in rows}]:
        raise SpecError(f"no row is of {missing[0]!r}; measured are: {', '.join(_judges(rows))}")
    last = {(each["judge"], each["model"], each["set"]): each for each in panels}
    parts = [_part(*key, several) for key, several in sorted(found.items())]
    return "\n".join([HEAD, *parts, *(_panel(each) for _, each in sorted(last.items()))])


def _panel(row: Mapping[str, Any]) -> str:
    known = {name: row[name] for name in COMPARED}
    known |= {name: row[name] for name in FIGURES if None not in row.get(name, (None,))}
    known |= {"ties": row["ties"]} if "ties" in row else {}
    return "\n".join(
        ["[[compared]]", *(f"{name} = {json.dumps(value)}" for name, value in known.items()), ""]
    )


def _judges(rows: Sequence[QualityRow]) -> list[str]:
    return list(dict.fromkeys(row.judge for row in rows if row.model != BASELINE))


def _part(judge: str, prompt: str, model: str, folds: str, rows: Sequence[QualityRow]) -> str:
    facts = {"judge": judge, "prompt": prompt, "model": model} | ({"folds": folds} if folds else {})
    largest: dict[str, QualityRow] = {}
    for row in rows:  # one judge may have been measured under several names
        if row.set not in largest or row.n >= largest[row.set].n:
            largest[row.set] = row
    lines = ["[[measured]]", *(f"{name} = {_text(value)}" for name, value in facts.items())]
    return "\n".join(
        [*lines, "[measured.sets]", *(f"{name} = {_figures(row)}" for name, row in largest.items()), ""]
    )


def _figures(row: QualityRow) -> str:
    known: dict[str, Any] = {"n": row.n_ok}
    for name, figure in (("auroc", row.auroc), ("balanced_accuracy", row.own.get("balanced_accuracy"))):
        if (rounded := _short(figure)) is not None:
            known[name] = rounded
    if row.ms is not None:
        short = float(f"{row.ms:.3g}")
        known["ms"] = int(short) if short >= 100 else short
    return "{ " + ", ".join(f"{name} = {value}" for name, value in known.items()) + " }"


def _short(figure: Figure | None) -> list[float] | None:
    """Return three decimals; None if a part is undefined."""
    if figure is None:
        return None
    known = [round(each, 3) for each in figure if each is not None]
    return known if len(known) == len(figure) else None


def _text(value: str) -> str:
    """Return a TOML string; JSON's escapes are valid in TOML."""
    return json.dumps(value)


ROWS = Path(__file__).parent.with_suffix(".jsonl")
PANELS = ROWS.with_name("panels.jsonl")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--panels", type=Path, default=PANELS)
    parser.add_argument("--to", type=Path, default=TABLE)
    parser.add_argument("--folds", nargs=2, action="append", default=[], metavar=("JUDGE", "WORDS"))
    chosen = parser.parse_args(arguments)
    folds = dict(chosen.folds)
    panels = [json.loads(line) for line in chosen.panels.read_text(encoding="utf-8").splitlines()]
    chosen.to.write_text(published(newest(read(chosen.rows)), folds, panels), encoding="utf-8")
    print(f"wrote {chosen.to}")


if __name__ == "__main__":
    main(sys.argv[1:])
