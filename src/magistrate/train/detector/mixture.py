"""What a detector is trained on: labelled samples, and changed ones made from those that are faithful."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from magistrate.train import holding
from magistrate.train.synthetic import Lexicon, perturb
from magistrate.train.synthetic.drafts import Guess
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

LEAST_WORDS = 5  # of an output that is worth changing
HELD_OUT = 0.1  # of all contexts: they calibrate, and training never sees them


@dataclass(frozen=True, slots=True)
class Portion:
    """How much of one source is taken, at most: `labelled` samples as they are, `originals` to be changed.

    `continued` of the faithful are gone on with by a language model. Where no labels are learnt, what has
    none is taken to be faithful.
    """

    labelled: int
    originals: int
    variants: int = 4
    continued: int = 0


class Writing(Protocol):
    """A language model that writes what training needs, as `train.detector.writer` has one."""

    def continued(self, samples: Sequence[Sample], seed: int) -> Iterator[Sample]: ...

    def guesses(self, samples: Sequence[Sample]) -> Mapping[str, Sequence[Guess]]: ...


@dataclass(frozen=True, slots=True)
class Mixture:
    """Samples to train on, and others of other contexts to calibrate on; `counts` says what each part has."""

    train: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    counts: Mapping[str, int]


def mixed(
    sources: Mapping[str, tuple[Iterable[Sample], Portion]],
    lexicon: Lexicon,
    seed: int,
    held_out: float = HELD_OUT,
    writer: Writing | None = None,
) -> Mixture:
    """Samples of every source by its portion, the same for the same seed whatever others there are beside it.

    A context that is held out of one source is held out of all: what shares none with others is not moved.
    Without a `writer` nothing is continued, and no word is one that a model expects. Of a source whose labels
    are not learnt what is held out is changed too, so that it has both labels.
    """
    train: list[Sample] = []
    kept: list[Sample] = []
    counts: Counter[str] = Counter()
    usable = {name: _usable(*source) for name, source in sources.items()}
    apart: set[str] = set()
    for known in usable.values():
        contexts = [context_of(each) for each in known]
        chosen = holding.held_out(contexts, held_out, seed)
        apart.update(context for context, out in zip(contexts, chosen, strict=True) if out)
    for name, (_, portion) in sources.items():
        seen = [each for each in usable[name] if context_of(each) not in apart]
        unseen = [each for each in usable[name] if context_of(each) in apart]
        labelled = _first(seen, portion.labelled, f"{seed}/{name}")
        made = _changed(seen, portion, portion.originals, lexicon, seed, writer)
        ends = _continued(seen, portion.continued, seed, writer)
        train += [*labelled, *made, *ends]
        few = max(portion.labelled, portion.originals) // 5
        if portion.labelled:
            kept += _first(unseen, few, f"{seed}/{name}/held")
        else:
            kept += _changed(unseen, portion, few, lexicon, seed, writer)
        counts[name] += len(labelled)
        counts[f"{name}, changed"] += len(made)
        if writer is not None:
            counts[f"{name}, gone on with"] += len(ends)
    return Mixture(tuple(train), tuple(kept), counts)


def _usable(samples: Iterable[Sample], portion: Portion) -> list[Sample]:
    """Those with an output, and with a label where labels are learnt."""
    labels = (FAITHFUL, HALLUCINATED) if portion.labelled else (FAITHFUL, HALLUCINATED, None)
    return [each for each in samples if each.output and each.label in labels]


def _changed(
    samples: Sequence[Sample],
    portion: Portion,
    originals: int,
    lexicon: Lexicon,
    seed: int,
    writer: Writing | None,
) -> list[Sample]:
    """Variants of some of the samples that are not labelled hallucinated."""
    taken = _first(_clean(samples), originals, f"{seed}/clean")
    guesses = writer.guesses(taken) if writer is not None else {}
    return list(perturb(taken, seed=seed, lexicon=lexicon, per_sample=portion.variants, guesses=guesses))


def _continued(samples: Sequence[Sample], count: int, seed: int, writer: Writing | None) -> list[Sample]:
    """Some of the faithful outputs, and the same with ends that a model made up."""
    if writer is None or not count:
        return []
    return list(writer.continued(_first(_clean(samples), count, f"{seed}/continued"), seed))


def _clean(samples: Sequence[Sample]) -> list[Sample]:
    """Those that are not labelled hallucinated, and long enough to be changed."""
    return [
        each
        for each in samples
        if each.label != HALLUCINATED and len((each.output or "").split()) >= LEAST_WORDS
    ]


def context_of(sample: Sample) -> str:
    """What samples of one context share."""
    return "\n".join(sample.sources) or sample.id


def _first(samples: Sequence[Sample], count: int, seed: str) -> list[Sample]:
    return sorted(samples, key=lambda each: _share(each.id, seed))[:count]


def _share(text: str, seed: int | str) -> float:
    """A number in [0, 1) that a text always has."""
    digest = hashlib.sha256(f"{seed}/{text}".encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) / 2**64
