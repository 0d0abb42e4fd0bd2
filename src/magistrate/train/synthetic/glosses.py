"""Clean text from WordNet's glosses: what people, places and things are, in plain encyclopaedic words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from magistrate.train.synthetic.wordnet import read_file
from magistrate.types import FAITHFUL, Sample

LEAST_WORDS = 7
NEIGHBOURS = (0, 1, 2, 3, 5)  # other facts in a context
NAMED = "@i"  # the pointer from a named thing to its class
JOINTS = {True: (" was ", " is ", ": "), False: (" is ", " was ", ", ", " means ")}


def glosses(folder: Path, count: int, seed: int) -> Iterator[Sample]:
    """`count` faithful samples: a context of a few definitions, and an output that retells one of them.

    `folder` holds WordNet's files; half of the samples are of named things, as far as there are so many.
    Raises `InputError` for a folder without them.
    """
    random = Random(f"{seed}/glosses")
    every = list(_definitions(read_file(folder, "data.noun").decode("ascii", "replace")))
    named = [each for each in every if each[2]]
    common = [each for each in every if not each[2]]
    half = min(len(named), count // 2)
    picked = random.sample(named, half) + random.sample(common, min(len(common), count - half))
    random.shuffle(picked)
    for number, (name, parts, is_named) in enumerate(picked):
        facts = [_fact(*each) for each in random.sample(picked, min(len(picked), random.choice(NEIGHBOURS)))]
        facts.insert(random.randint(0, len(facts)), _fact(name, parts, is_named))
        told = random.sample(parts, random.randint(1, len(parts)))
        output = f"{name}{random.choice(JOINTS[is_named])}{'; '.join(told)}."
        yield Sample(
            id=f"gloss-{number}",
            output=output[0].upper() + output[1:],
            context=(" ".join(facts),),
            label=FAITHFUL,
        )


def _definitions(text: str) -> Iterator[tuple[str, list[str], bool]]:
    """Name, parts of the definition without its examples, and whether it is a named thing."""
    for line in text.splitlines():
        if line.startswith(" "):  # the licence
            continue
        head, _, gloss = line.partition(" | ")
        fields = head.split()
        parts = [part.strip() for part in gloss.split("; ") if part.strip() and '"' not in part]
        if sum(len(part.split()) for part in parts) >= LEAST_WORDS:
            yield fields[4].replace("_", " "), parts, NAMED in fields


def _fact(name: str, parts: list[str], is_named: bool) -> str:
    told = "; ".join(parts)
    return f"{name} is {told}." if is_named else f"{name.capitalize()}: {told}."
