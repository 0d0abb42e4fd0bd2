"""Writes the table of measured quality that `magistrate judges` shows, from the rows of `bench quality`.

`python benchmarks/publish_quality.py` reads benchmarks/quality.jsonl. A judge that ships trained on all sets
is told the rows that stand for it: `--folds auto=detector:{family}`, judges trained without each family.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from magistrate.bench.quality.publishing import published
from magistrate.bench.quality.rows import newest, read
from magistrate.judges.quality import TABLE

ROWS = Path(__file__).with_name("quality.jsonl")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--to", type=Path, default=TABLE)
    parser.add_argument("--folds", action="append", default=[], metavar="JUDGE=WORDS")
    chosen = parser.parse_args(arguments)
    folds = dict(each.split("=", 1) for each in chosen.folds)
    chosen.to.write_text(published(newest(read(chosen.rows)), folds), encoding="utf-8")
    print(f"wrote {chosen.to}")


if __name__ == "__main__":
    main(sys.argv[1:])
