"""The examples of a recipe, read once and kept in packed files until their source changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from magistrate.detectors.windows import Reader
from magistrate.training.detector.examples import Example, examples
from magistrate.training.detector.recipe import Recipe, digest, draw, samples, shares
from magistrate.training.synthetic import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pool:
    """Examples by source and label, and how often each of them is drawn."""

    of: Mapping[Key, Sequence[Example]]
    shares: Mapping[Key, float]
    seed: int

    def round(self, number: int) -> list[Example]:
        """The examples of one round, the same for the same number."""
        sizes = {key: len(each) for key, each in self.of.items()}
        return [self.of[key][place] for key, place in draw(sizes, self.shares, self.seed, number)]


def pool(recipe: Recipe, folder: Path, tokenizer: Path, lexicon: Lexicon, cache: Path) -> Pool:
    """The examples of all sources; those that were read before come from `cache`."""
    reader = Reader(Tokenizer.from_file(str(tokenizer)), recipe.window)
    found: dict[Key, list[Example]] = {}
    cache.mkdir(parents=True, exist_ok=True)
    for source in recipe.sources:
        path = cache / f"{source.name}-{digest(folder, source, recipe)}.npz"
        if not path.is_file():
            _write(path, list(examples(samples(folder, source, recipe, lexicon), reader)))
        for example in _read(path):
            label = HALLUCINATED if example.hallucinated else FAITHFUL
            found.setdefault((source.name, label), []).append(example)
    sizes = {key: len(each) for key, each in found.items()}
    return Pool(found, shares(recipe, sizes), recipe.seed)


def _write(path: Path, every: Sequence[Example]) -> None:
    part = path.with_suffix(".part.npz")
    np.savez(
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
