"""Converts twins, two statements about one document of which one is faithful, to rows for recipes.

Run: .venv/bin/python benchmarks/detector/twins.py FILE … --to FOLDER

A FILE has one document per line: `{"domain", "context", "twins": [{"kind", "question", "right",
"wrong"}]}`. For each it writes FOLDER/NAME.jsonl.gz, with every twin as two rows and the wrong words
marked, and FOLDER/NAME-together.jsonl.gz, with outputs of several statements of which some are wrong. So
training reads a document once for several statements, instead of once per statement.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from magistrate.types import Sample

WORD = re.compile(r"\w+|[^\w\s]")
ENDED = re.compile(r"[.!?]$")
SIDES = ("right", "wrong")
TOGETHER = 3  # statements per output
FULL = 6  # least words for an answer that is clear by itself


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of twins, the right one before the wrong one."""
    for number, told in enumerate(documents(path)):
        for place, twin in enumerate(told["twins"]):
            for which in SIDES:
                yield row(
                    f"{path.stem}-{number}-{place}-{which}",
                    told["context"],
                    twin["question"],
                    twin[which],
                    changed(twin["right"], twin["wrong"]) if which == "wrong" else [],
                    twin["kind"],
                )


def together(path: Path) -> Iterator[dict[str, Any]]:
    """Yield outputs of up to `TOGETHER` statements about a document, and with right and wrong swapped."""
    for number, told in enumerate(documents(path)):
        order = random.Random(f"{path.stem}/{number}")
        whole = [each for each in told["twins"] if ENDED.search(each["right"]) and is_whole(each)]
        order.shuffle(whole)
        for at in range(0, len(whole) - 1, TOGETHER):
            some = whole[at : at + TOGETHER]
            first = [order.choice(SIDES) for _ in some]
            for turn, sides in enumerate((first, [SIDES[1 - SIDES.index(each)] for each in first])):
                output, spans = "", []
                for twin, side in zip(some, sides, strict=True):
                    output += " " * bool(output)
                    if side == "wrong":
                        places = changed(twin["right"], twin["wrong"])
                        spans += [[len(output) + start, len(output) + end] for start, end in places]
                    output += twin[side]
                wrong = [twin["kind"] for twin, side in zip(some, sides, strict=True) if side == "wrong"]
                kind = wrong[0] if len(wrong) == 1 else "several"
                yield row(f"{path.stem}-{number}+{at}-{turn}", told["context"], None, output, spans, kind)


def is_whole(twin: dict[str, Any]) -> bool:
    """Return whether a twin can be understood without its question."""
    return twin["question"] is None or min(len(twin[side].split()) for side in SIDES) >= FULL


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of a file, one per line."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def row(
    name: str, context: str, question: str | None, output: str, spans: list[list[int]], kind: str
) -> dict[str, Any]:
    """Return one row in the recipe format; it is wrong if it has spans."""
    told = {"kind": kind, "source": name.partition("-")[0], "licence": "Apache-2.0", "ship": True}
    return {
        "id": name,
        "input": question,
        "context": [context],
        "output": output,
        "label": "hallucinated" if spans else "faithful",
        "spans": spans,
        "metadata": told,
    }


def samples(path: Path) -> list[Sample]:
    """Return the twins as samples, for measuring."""
    return [
        Sample(
            id=row["id"],
            input=row["input"],
            context=tuple(row["context"]),
            output=row["output"],
            label=row["label"],
            metadata=row["metadata"],
        )
        for row in rows(path)
    ]


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
        write(path, told.to)


def write(path: Path, folder: Path) -> None:
    """Write the files of rows for a file of twins."""
    for name, every in ((path.stem, [*rows(path)]), (f"{path.stem}-together", [*together(path)])):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in every)
        print(f"{name}: {len(every)} rows")


if __name__ == "__main__":
    main()
