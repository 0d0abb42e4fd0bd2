"""Converts twins, two statements about one document of which one is faithful, to rows for recipes.

Run: .venv/bin/python benchmarks/detector/twins.py FILE … --to FOLDER

A FILE has one document per line: `{"domain", "context", "twins": [{"kind", "question", "right",
"wrong"}]}`. A twin whose sides differ in more than what is wrong has `faults` as well, the wrong parts of its
wrong side. For each FILE it writes FOLDER/NAME.jsonl.gz, with every twin as two rows and the wrong words
marked, and FOLDER/NAME-together.jsonl.gz, with outputs of several statements of which some are wrong. So
training reads a document once for several statements, instead of once per statement. FOLDER/
NAME-elsewhere.jsonl.gz has right statements about a document twice: beside it, and beside a text that is
silent on them. FOLDER/NAME-copied.jsonl.gz has sentences of a document as they are, and with two of its
values exchanged.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from magistrate.features.splitting import sentences
from magistrate.features.words import COMMON, form, stem, words
from magistrate.types import Sample

HERE = Path(__file__).parent
# No detector learns from these; HELD and ANSWERS calibrate, and `combined` is fitted to them.
EVERYDAY, ADDITIONS = HERE.parent / "everyday.jsonl", HERE.parent / "additions.jsonl"
HELD, ANSWERS, REPORTS = (HERE / f"{name}.jsonl" for name in ("held", "held-answers", "held-reports"))
WORD = re.compile(r"\w+|[^\w\s]")
ENDED = re.compile(r"[.!?]$")
SIDES = ("right", "wrong")
TOGETHER = 3  # statements per output
FULL = 6  # least words for an answer that is clear by itself
NEARBY = 60  # documents of which the most similar one is taken
SUPPORTS = 2  # sentences at most that a statement draws on, as is assumed
BESIDE = 0.4  # share of the statements that stand beside a supported one
COPIED = 3  # sentences at most that are copied together
DAYS = "Mon|Tues|Wednes|Thurs|Fri|Satur|Sun"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
VALUE = re.compile(
    rf"(?P<day>\b(?:{DAYS})day\b)|(?P<month>\b(?:{MONTHS})\b)|(?P<time>\b\d{{1,2}}[:.]\d\d\b)"
    r"|(?P<number>[$€£]?\b\d[\d,.]*(?<=\d)(?![\w:.-]*\d)(?P<unit>\s?(?:%|[^\W\d_]+))?)"
    rf"|(?P<name>(?<=[a-z,;] )(?!(?:{DAYS})day|(?:{MONTHS})\b)[A-Z][a-z-]{{2,}}(?: [A-Z][a-z-]{{2,}})*\b)"
)
LISTED = re.compile(r"\W*(?:(?:and|or)\W+)?(?:the\s+)?")  # what is between two members of a list


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
                    faults(twin) if which == "wrong" else [],
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
                        spans += [[len(output) + start, len(output) + end] for start, end in faults(twin)]
                    output += twin[side]
                wrong = [twin["kind"] for twin, side in zip(some, sides, strict=True) if side == "wrong"]
                kind = wrong[0] if len(wrong) == 1 else "several"
                yield row(f"{path.stem}-{number}+{at}-{turn}", told["context"], None, output, spans, kind)


def elsewhere(path: Path) -> Iterator[dict[str, Any]]:
    """Yield right statements about a document: each beside it, then beside a text that is silent on it.

    That text is what remains of the document without the sentences that share most words with the statement,
    or a similar document. The statements are right ones of its twins, and one sentence of the document. Some
    stand beside another statement, which either text supports.
    """
    every = list(documents(path))
    vocabulary = [content(told["context"]) for told in every]
    for number, told in enumerate(every):
        order = random.Random(f"{path.stem}/elsewhere/{number}")
        own, supported = told["context"], statements(told)
        parts = [own[start:end] for start, end in sentences(own)]
        long = [each for each in parts if len(each.split()) >= FULL]
        for place, said in enumerate((*supported, *order.sample(long, min(1, len(long))))):
            left = silent(parts, said)
            if left and order.random() < 0.5:
                other, besides = " ".join(left), (left, left)
            else:
                at = similar(number, vocabulary, order)
                other = every[at]["context"]
                besides = [each for each in supported if each != said], statements(every[at])
            with_another = order.random() < BESIDE and all(besides)
            before = order.random() < 0.5
            for label, context, some in zip(SIDES, (own, other), besides, strict=True):
                output, start = said, 0
                if with_another:
                    another = order.choice(some)
                    start = len(another) + 1 if before else 0
                    output = f"{another} {said}" if before else f"{said} {another}"
                spans = [[start, start + len(said)]] if label == "wrong" else []
                name = f"{path.stem}-{number}/{place}-{label}"
                yield row(name, context, None, output, spans, "sentence_elsewhere")


def copied(path: Path) -> Iterator[dict[str, Any]]:
    """Yield sentences of a document, and the same with two values exchanged.

    One of the values is in these sentences, the other one there as well or elsewhere in the document.
    """
    for number, told in enumerate(documents(path)):
        order = random.Random(f"{path.stem}/copied/{number}")
        own = told["context"]
        parts, begin = sentences(own), 0
        while begin < len(parts):
            some = parts[begin : begin + order.randint(1, COPIED)]
            begin += len(some)
            output = own[some[0][0] : some[-1][1]]
            choices = exchanges(output, own)
            if not choices or len(output.split()) < FULL:
                continue
            kind = order.choice(sorted({edits[0].kind for edits in choices}))
            edits = order.choice([edits for edits in choices if edits[0].kind == kind])
            name = f"{path.stem}-{number}={begin}"
            yield row(f"{name}-right", own, None, output, [], edits[0].kind)
            wrong, spans = exchanged(output, edits)
            yield row(f"{name}-wrong", own, None, wrong, spans, edits[0].kind)


class Value(NamedTuple):
    """A value in a text, half-open character offsets, its kind, and what it is exchanged for."""

    start: int
    end: int
    kind: str
    other: str


def exchanges(output: str, context: str) -> list[list[Value]]:
    """Return the ways to exchange two values of one kind: both in the output, or one for one of the context.

    Two members of a list are not exchanged, for that changes nothing.
    """
    inside, found = values(output), []
    for at, (start, end, kind) in enumerate(inside):
        own = output[start:end]
        for begin, stop, other in inside[at + 1 :]:
            new = output[begin:stop]
            if other == kind and differ(new, own) and not LISTED.fullmatch(output[end:begin]):
                found.append([Value(start, end, kind, new), Value(begin, stop, kind, own)])
        for begin, stop, other in values(context):
            new = context[begin:stop]
            if other == kind and differ(new, own) and not re.search(rf"\b{re.escape(new)}\b", output):
                found.append([Value(start, end, kind, new)])
    return found


def differ(one: str, other: str) -> bool:
    """Return whether two values have no word in common, so that one is not a short form of the other."""
    return not set(one.split()) & set(other.split())


def values(text: str) -> list[tuple[int, int, str]]:
    """Return start, end and kind of the values in a text; the kind of a number is its unit,
    that of a name the number of its words."""
    found = []
    for match in VALUE.finditer(text):
        kind, unit = str(match.lastgroup), match["unit"] or ""
        end = match.end() - len(unit)
        if match["number"]:
            kind = (
                f"{text[match.start()] if not match[0][0].isdigit() else ''}number {unit.strip().rstrip('s')}"
            )
        if match["name"]:
            kind = f"name {len(match[0].split())}"
        found.append((match.start(), end, kind.strip()))
    return found


def exchanged(output: str, edits: list[Value]) -> tuple[str, list[list[int]]]:
    """Return the output with the edits, and where they are in it."""
    text, spans, at = "", [], 0
    for each in edits:
        text += output[at : each.start]
        spans.append([len(text), len(text) + len(each.other)])
        text, at = text + each.other, each.end
    return text + output[at:], spans


def silent(parts: list[str], said: str) -> list[str]:
    """Return the sentences of a document without a statement, or without those closest to it in words."""
    shared = content(said)
    ranked = sorted(parts, key=lambda part: len(shared & content(part)), reverse=True)
    gone = {said} if said in parts else set(ranked[:SUPPORTS])
    return [each for each in parts if each not in gone]


def similar(number: int, vocabulary: list[set[str]], order: random.Random) -> int:
    """Return the number of the document that shares most words with another one, of a few drawn ones."""
    near = order.sample(range(len(vocabulary)), min(NEARBY, len(vocabulary)))
    return max(near, key=lambda each: len(vocabulary[each] & vocabulary[number]) * (each != number))


def statements(told: dict[str, Any]) -> list[str]:
    """Return the right sides of a document's twins that are statements."""
    return [each["right"] for each in told["twins"] if is_statement(each)]


def content(text: str) -> set[str]:
    """Return the stems of a text's words without the common ones."""
    return {stem(form(each)) for each in words(text) if each not in COMMON}


def is_statement(twin: dict[str, Any]) -> bool:
    """Return whether the right side of a twin is one sentence that says something of the world."""
    said = twin["right"]
    return twin["kind"] != "abstention" and is_whole(twin) and len(sentences(said)) == 1 and said[-1] == "."


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


def samples(path: Path, made: Callable[[Path], Iterator[dict[str, Any]]] = rows) -> list[Sample]:
    """Return the twins as samples, for measuring, or what another function makes of them."""
    return [
        Sample(
            id=row["id"],
            input=row["input"],
            context=tuple(row["context"]),
            output=row["output"],
            label=row["label"],
            metadata=row["metadata"],
        )
        for row in made(path)
    ]


def faults(twin: dict[str, Any]) -> list[list[int]]:
    """Half-open character offsets of what is wrong in the wrong side of a twin."""
    wrong = twin["wrong"]
    if "faults" not in twin:
        return changed(twin["right"], wrong)
    return [[wrong.index(each), wrong.index(each) + len(each)] for each in twin["faults"]]


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
    for end, made in (("", rows), ("-together", together), ("-elsewhere", elsewhere), ("-copied", copied)):
        name, every = f"{path.stem}{end}", list(made(path))
        text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in every)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{name}: {len(every)} rows")


if __name__ == "__main__":
    main()
