"""The protocol: which sets, which samples of them, and what may be tuned on which.

Version 2. The sha256 of a sample's context, ignoring case and white space, assigns it to the part `dev` (a
third) or `test`, so that no context is in both. Where a set comes with a training part, that is `dev` and
the set itself is `test`. From each part the samples with the smallest sha256 of their ids are taken, so
that a smaller draw is the beginning of a larger one. Everything chosen on a set (a threshold, the direction
of a trivial rule) is chosen on its `dev`; results are of `test`. What was fixed beforehand (a judge's own
threshold, a trained judge) has seen no set of the tested one's family.

Version 1 compared contexts exactly.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from magistrate.datasets import load
from magistrate.datasets.named import VARIABLE, at_hand, catalogue, family_of
from magistrate.errors import DatasetError, SpecError
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

PROTOCOL = 2
SEED = 0
TEST_SAMPLES = 300  # of a set, by default; of its dev part half as many
DEV_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class QualitySet:
    """A labelled set of the protocol: `test`, and `dev` if it has one, name a set with its view.

    `trap` is a warning to read before believing a high result.
    """

    name: str
    test: str
    dev: str | None = None
    task: str = ""
    trap: str = ""

    @property
    def family(self) -> str:
        """The family of sets made in the same way."""
        return family_of(self.name)


@dataclass(frozen=True, slots=True)
class Split:
    """The drawn samples of a set: `dev` to choose on, `test` to measure on."""

    name: str
    dev: tuple[Sample, ...]
    test: tuple[Sample, ...]

    @property
    def family(self) -> str:
        """The family of the set."""
        return family_of(self.name)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of both parts."""
        return self.dev + self.test


SETS = (
    QualitySet("summedits", "summedits:dev", task="summaries, minimally edited"),
    QualitySet(
        "begin", "begin:dev", task="dialogue", trap="Mostly about extractiveness: what is copied is faithful."
    ),
    QualitySet(
        "halueval-qa",
        "halueval-qa:dev",
        task="questions",
        trap="Hallucinated answers are longer; length alone gives most of them away.",
    ),
    QualitySet("halueval-dialogue", "halueval-dialogue:dev", task="dialogue"),
    QualitySet("halueval-summarization", "halueval-summarization:dev", task="summaries"),
    QualitySet("halubench", "halubench:test", task="questions"),
    QualitySet("ragtruth", "ragtruth:test", dev="ragtruth:train", task="questions, summaries, records"),
)


def named(names: Sequence[str]) -> list[QualitySet]:
    """Return the sets of these names. Raises `SpecError` that lists the known ones."""
    from magistrate.datasets.fields import near

    known = {each.name: each for each in SETS}
    for name in names:
        if name not in known:
            raise SpecError(f"the protocol has no set {name!r}{near(name, known)}; known: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def here(each: QualitySet) -> bool:
    """Return whether a set can be read without a download."""
    return all(at_hand(*ref.split(":")) for ref in (each.test, each.dev) if ref is not None)


def draw(each: QualitySet, samples: int = TEST_SAMPLES) -> Split:
    """Draw `samples` samples of a set to measure on and half as many to choose on; 0 for all.

    Raises `DatasetError` if a part has samples of one label only, because nothing can be measured there.
    """
    if each.dev is None:
        everything = list(_labelled(each.test))
        dev = [sample for sample in everything if _share(_context(sample)) < DEV_SHARE]
        test = [sample for sample in everything if _share(_context(sample)) >= DEV_SHARE]
    else:
        test, dev = list(_labelled(each.test)), list(_labelled(each.dev))
        taken = {_context(sample) for sample in test}
        dev = [sample for sample in dev if _context(sample) not in taken]
    split = Split(each.name, smallest(dev, (samples + 1) // 2), smallest(test, samples))
    for part, drawn in (("dev", split.dev), ("test", split.test)):
        if len({sample.label for sample in drawn}) < 2:
            raise DatasetError(
                f"{each.name}: the {len(drawn)} samples drawn from its {part} part have one label only; "
                "draw more with --samples"
            )
    return split


@contextmanager
def data_in(folder: Path | None) -> Iterator[None]:
    """Read sets from `folder` while the block runs; None uses the environment's setting."""
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise SpecError(f"there is no folder {folder}; --data names one with the files of labelled sets")
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def licence(each: QualitySet) -> str:
    """Return the set's licence in its own words."""
    return catalogue()[each.test.partition(":")[0]].licence


def _labelled(ref: str) -> Iterator[Sample]:
    name, _, view = ref.partition(":")
    return (sample for sample in load(name, view=view or None) if sample.label in (FAITHFUL, HALLUCINATED))


def _context(sample: Sample) -> str:
    """Return the text that decides the part. A sample without a context is its own group."""
    return " ".join("\n".join(sample.context).casefold().split()) or sample.id


def _share(text: str) -> float:
    """Return a deterministic number in [0, 1) for a text."""
    return int.from_bytes(_digest(text)[:8]) / 2**64


def smallest(samples: Iterable[Sample], count: int) -> tuple[Sample, ...]:
    ordered = sorted(samples, key=lambda sample: _digest(sample.id))
    return tuple(ordered[:count] if count else ordered)


def _digest(text: str) -> bytes:
    return hashlib.sha256(f"{PROTOCOL}/{SEED}/{text}".encode(errors="surrogatepass")).digest()
