"""Twins, two statements about one document of which one is faithful, as rows that a recipe reads.

Run: .venv/bin/python benchmarks/detector/twins.py FILE … --to FOLDER

A FILE has one document a line: `{"domain", "context", "twins": [{"kind", "question", "right", "wrong"}]}`. Of
each FOLDER/NAME.jsonl.gz is written, every twin as two rows, with the wrong words marked.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

WORD = re.compile(r"\w+|[^\w\s]")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of twins, the right one before the wrong one."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        told = json.loads(line)
        for place, twin in enumerate(told["twins"]):
            for label, which in (("faithful", "right"), ("hallucinated", "wrong")):
                yield {
                    "id": f"{path.stem}-{number}-{place}-{which}",
                    "input": twin["question"],
                    "context": [told["context"]],
                    "output": twin[which],
                    "label": label,
                    "spans": changed(twin["right"], twin["wrong"]) if which == "wrong" else [],
                    "metadata": {
                        "kind": twin["kind"],
                        "source": path.stem,
                        "licence": "Apache-2.0",
                        "ship": True,
                    },
                }


def changed(right: str, wrong: str) -> list[list[int]]:
    """Half-open character offsets of what is in `wrong` and not in `right`; where words are only left out, of
    the word after them."""
    one, other = (list(WORD.finditer(text)) for text in (right, wrong))
    matcher = SequenceMatcher(None, [each.group() for each in one], [each.group() for each in other], False)
    found = []
    for tag, _, _, begin, end in matcher.get_opcodes():
        if tag == "delete":
            begin, end = min(begin, len(other) - 1), min(begin, len(other) - 1) + 1
        if tag != "equal":
            found.append([other[begin].start(), other[end - 1].end()])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--to", required=True, type=Path, metavar="FOLDER")
    told = parser.parse_args()
    told.to.mkdir(parents=True, exist_ok=True)
    for path in told.files:
        every = list(rows(path))
        with gzip.open(told.to / f"{path.stem}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in every)
        print(f"{path.stem}: {len(every)} rows")


if __name__ == "__main__":
    main()
