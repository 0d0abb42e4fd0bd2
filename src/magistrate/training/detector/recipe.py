"""The recipe of a detector's training data: sources with shares and caps, read from YAML, sampled by a seed.

`samples` reads a source and derives the samples that its settings ask for. `pool` converts them to examples,
which are cached in packed files until their source changes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from magistrate._yaml import DIALECT, read_document
from magistrate.detectors.windows import Reader
from magistrate.errors import InputError
from magistrate.training.detector.derived import asked, framed, without_a_sentence
from magistrate.training.detector.examples import Example, Reading, examples
from magistrate.training.synthetic import Lexicon, perturb
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Span

SUFFIX = ".jsonl.gz"
LONGEST = 40_000  # characters after which a context is cut
LONGEST_EXAMPLE = 100_000  # tokens, more than any window has


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Part):
    """One file of labelled pairs.

    `share` is its weight among all examples, relative to the other sources. No example is used more than
    `cap` times. Labels are drawn alternately, so that no source is associated with one label. `edits` is the
    number of variant pairs, one wrong and one harmless, made of each faithful output, and `originals` the
    number of outputs that are varied; with `only_edits` the rows themselves are not used. Rows whose
    `metadata.kind` is in `without` are skipped. At most `most` rows are read. `parts` adds faithful outputs
    with a context that lacks one of the sentences they need. `framed` is the share of rows for which a
    statement about their statement is made, `asked` the share for which a question with a right and a wrong
    answer is made.
    """

    name: str
    share: float = Field(gt=0)
    cap: float = Field(default=4, gt=0)
    edits: int = Field(default=0, ge=0)
    originals: int = Field(default=4000, ge=0)
    only_edits: bool = False
    without: tuple[str, ...] = ()
    most: int = Field(default=1_000_000, gt=0)
    parts: bool = False
    framed: float = Field(default=0, ge=0, le=1)
    asked: float = Field(default=0, ge=0, le=1)


class Recipe(_Part):
    """All that determines the data of a training. The same recipe, files and seed give the same examples.

    With `shipped_only`, rows are skipped unless `metadata.ship` says that weights trained on them may be
    distributed. Examples of more than `longest` tokens are skipped. With `reading: pairs` an example is one
    sentence of an output with the passage of the context nearest to it, with `windows` a window of both
    texts; with `both` there are examples of either kind.
    """

    seed: int = 1
    window: int = Field(default=256, ge=128)
    examples: int = Field(gt=0)
    shipped_only: bool = True
    reading: Reading | Literal["both"] = "windows"
    longest: int = Field(default=LONGEST_EXAMPLE, gt=0)
    sources: tuple[Source, ...]

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The kinds of examples."""
        return ("windows", "pairs") if self.reading == "both" else (self.reading,)


def read_recipe(path: Path) -> Recipe:
    """Read the recipe in a YAML file. Raises `SpecError`, with line and key, if it is invalid."""
    return read_document(path).read_as(Recipe)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, for editors."""
    return {"$schema": DIALECT, **Recipe.model_json_schema(), "title": "A recipe of training data"}


def rows(folder: Path, source: Source, *, shipped_only: bool) -> Iterator[Sample]:
    """Yield the samples of a source, in the order of its file. Raises `InputError` if the file is missing."""
    path = folder / f"{source.name}{SUFFIX}"
    if not path.is_file():
        raise InputError(f"there is no {path}, which the recipe refers to")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            told = row["metadata"]
            if (shipped_only and not told.get("ship")) or told.get("overlap_dev"):
                continue
            if told.get("kind") in source.without:
                continue
            yield Sample(
                id=row["id"],
                input=row["input"],
                context=tuple(text[:LONGEST] for text in row["context"]),
                output=row["output"],
                label=row["label"],
                spans=tuple(Span(start, end) for start, end in row["spans"]),
                metadata=told,
            )


def samples(folder: Path, source: Source, recipe: Recipe, lexicon: Lexicon) -> list[Sample]:
    """Return the rows of a source and the samples derived from them, by the recipe's seed."""
    every = list(rows(folder, source, shipped_only=recipe.shipped_only))
    every.sort(key=lambda each: _mixed(f"{recipe.seed}/{source.name}", each))
    every = every[: source.most]
    found = [] if source.only_edits else list(every)
    if source.edits:
        clean = [each for each in every if each.label == FAITHFUL][: source.originals]
        found += perturb(clean, seed=recipe.seed, lexicon=lexicon, per_sample=2 * source.edits)
    if source.parts:
        found += without_a_sentence(every, recipe.seed)
    if source.framed:
        found += framed(every, recipe.seed, source.framed)
    if source.asked:
        found += asked(every, recipe.seed, source.asked, lexicon)
    return found


def _mixed(seed: str, sample: Sample) -> bytes:
    """Sort key: contexts in an order that depends on the seed, the rows of one context next to each other."""
    return hashlib.sha256("\n".join((seed, *sample.context)).encode(errors="surrogatepass")).digest()


ROUND = 16_000  # examples that are drawn, sorted by length and split into batches together


def shares(recipe: Recipe, sizes: Mapping[tuple[str, str], int]) -> Mapping[tuple[str, str], float]:
    """Return the share of each source and label among all examples. `sizes` counts the available examples.

    The surplus of a source whose examples would exceed its cap goes to the other sources.
    """
    wanted: dict[tuple[str, str], float] = {}
    limit: dict[tuple[str, str], float] = {}
    for source in recipe.sources:
        labels = [label for label in (FAITHFUL, HALLUCINATED) if sizes.get((source.name, label))]
        for label in labels:
            key = source.name, label
            wanted[key] = source.share / len(labels)
            limit[key] = sizes[key] * source.cap / recipe.examples
    found: dict[tuple[str, str], float] = {}
    left = 1.0
    while wanted:
        total = sum(wanted.values())
        full = {key for key, share in wanted.items() if share / total * left >= limit[key]}
        if not full:
            return found | {key: share / total * left for key, share in wanted.items()}
        for key in sorted(full):
            found[key] = limit[key]
            wanted.pop(key)
        left = 1.0 - sum(found.values())
    return found


def draw(
    sizes: Mapping[tuple[str, str], int], share: Mapping[tuple[str, str], float], seed: int, number: int
) -> list[tuple[tuple[str, str], int]]:
    """Return the examples of a round as source, label and index, the same for the same seed.

    Every example of a source is drawn once before any is drawn again.
    """
    found = []
    for key in sorted(share):
        begin, end = (round(share[key] * ROUND * at) for at in (number, number + 1))
        size = sizes[key]
        for place in range(begin, end):
            found.append((key, _order(seed, key[0], place // size, size)[place % size]))
    return found


@lru_cache(maxsize=256)  # a round is drawn every few seconds on a GPU
def _order(seed: int, source: str, turn: int, size: int) -> Sequence[int]:
    """Return an order that both labels of a source share, so that a row and its variant come together."""
    order = list(range(size))
    random.Random(f"{seed}/{source}/{turn}").shuffle(order)
    return order


def digest(folder: Path, source: Source, recipe: Recipe) -> str:
    """Return a digest of a source's file and of all settings that affect how it is read."""
    path = folder / f"{source.name}{SUFFIX}"
    if not path.is_file():
        raise InputError(f"there is no {path}, which the recipe refers to")
    told = source.model_dump(exclude={"share", "cap"}, exclude_defaults=True) | recipe.model_dump(
        include={"seed", "window", "shipped_only", "reading"}
    )
    found = hashlib.sha256(json.dumps(told, sort_keys=True, default=list).encode())
    with path.open("rb") as file:
        found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]


Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pool:
    """Examples by source and label, and the share of each."""

    of: Mapping[Key, Sequence[Example]]
    shares: Mapping[Key, float]
    seed: int

    def round(self, number: int) -> list[Example]:
        """Return the examples of one round, the same for the same number."""
        sizes = {key: len(each) for key, each in self.of.items()}
        return [self.of[key][place] for key, place in draw(sizes, self.shares, self.seed, number)]


def pool(recipe: Recipe, folder: Path, tokenizer: Path, lexicon: Lexicon, cache: Path) -> Pool:
    """Return the examples of all sources. Those that were read before are loaded from `cache`."""
    reader = Reader(Tokenizer.from_file(str(tokenizer)), recipe.window)
    found: dict[Key, list[Example]] = {}
    cache.mkdir(parents=True, exist_ok=True)
    for source in recipe.sources:
        path = cache / f"{source.name}-{digest(folder, source, recipe)}.npz"
        if not path.is_file():
            _write(path, list(examples(samples(folder, source, recipe, lexicon), reader, recipe.readings)))
        for example in _read(path):
            if example.length > recipe.longest:
                continue
            label = HALLUCINATED if example.hallucinated else FAITHFUL
            found.setdefault((source.name, label), []).append(example)
    sizes = {key: len(each) for key, each in found.items()}
    return Pool(found, shares(recipe, sizes), recipe.seed)


def _write(path: Path, every: Sequence[Example]) -> None:
    part = path.with_suffix(".part.npz")
    np.savez_compressed(
        part,
        ids=np.concatenate([each.ids for each in every] or [np.zeros(0, np.uint16)]),
        tokens=np.concatenate([each.tokens for each in every] or [np.zeros(0, np.int8)]),
        bounds=np.array([at for each in every for at in each.bounds], np.uint16),
        truths=np.array([truth for each in every for truth in each.truths], np.uint8),
        lengths=np.array([each.length for each in every], np.uint16),
        seconds=np.array([each.second for each in every], np.uint16),
        sentences=np.array([len(each.truths) for each in every], np.uint16),
        hallucinated=np.array([each.hallucinated for each in every], bool),
    )
    part.replace(path)


def _read(path: Path) -> list[Example]:
    with np.load(path) as held:
        kept = {name: held[name] for name in held.files}
    found = []
    at = bound = token = truth = 0
    columns = (kept[name].tolist() for name in ("lengths", "seconds", "sentences", "hallucinated"))
    for length, second, count, hallucinated in zip(*columns, strict=True):
        bounds = tuple(kept["bounds"][bound : bound + count + 1].tolist())
        size = bounds[-1] - bounds[0]
        found.append(
            Example(
                ids=kept["ids"][at : at + length],
                second=second,
                bounds=bounds,
                truths=tuple(kept["truths"][truth : truth + count].tolist()),
                tokens=kept["tokens"][token : token + size],
                hallucinated=hallucinated,
            )
        )
        at, bound, token, truth = at + length, bound + count + 1, token + size, truth + count
    return found
