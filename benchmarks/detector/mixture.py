"""Writes a recipe's sources as one file of labelled samples, for trainings that read such files.

Run: .venv-train/bin/python -m benchmarks.detector.mixture DATA RECIPE --examples N --to FILE.jsonl.gz

Whole contexts are drawn, with all statements about them, because statements about one context are read
together. From each source it takes as many faithful as hallucinated outputs, each at most once.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.detector.make_large import sources
from magistrate.datasets.samples import to_row
from magistrate.training.detector.recipe import Recipe, Source, read_recipe, samples
from magistrate.training.synthetic import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

SLACK = 4  # most samples that one label may be ahead


def drawn(
    recipe: Recipe, folder: Path, lexicon: Lexicon, examples: int, longest: int
) -> Iterator[tuple[Source, list[list[Sample]]]]:
    """Yield each source with its drawn groups, each of one context of at most `longest` characters."""
    total = sum(source.share for source in recipe.sources)
    for source in recipe.sources:
        groups = list(_groups(samples(folder, source, recipe, lexicon), longest))
        random.Random(f"{recipe.seed}/{source.name}").shuffle(groups)
        wanted, found, taken = round(examples * source.share / total), list[list[Sample]](), Counter[str]()
        for group in groups:
            if taken.total() >= wanted:
                break
            if kept := list(_even(group, taken)):
                found.append(kept)
        yield source, found


def _groups(every: Sequence[Sample], longest: int) -> Iterator[list[Sample]]:
    found: dict[tuple[str, ...], list[Sample]] = {}
    for each in every:
        known = each.label in (FAITHFUL, HALLUCINATED) and each.output and all(each.sources)
        if known and sum(map(len, each.sources)) + len(each.output or "") <= longest:
            found.setdefault(each.sources, []).append(each)
    yield from found.values()


def _even(group: Sequence[Sample], taken: Counter[str]) -> Iterator[Sample]:
    """Yield samples such that neither label gets far ahead of the other."""
    for each in group:
        assert each.label is not None
        other = HALLUCINATED if each.label == FAITHFUL else FAITHFUL
        if taken[each.label] < taken[other] + SLACK:
            taken[each.label] += 1
            yield each


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--longest", type=int, default=2400, help="characters of a context and an output")
    parser.add_argument("--wordnet", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/detector"))
    told = parser.parse_args()
    folder = sources(told.data, told.work / "data")
    recipe = read_recipe(told.recipe)
    every = list[list[Sample]]()
    for source, groups in drawn(recipe, folder, Lexicon.read(told.wordnet), told.examples, told.longest):
        labels = Counter(each.label for group in groups for each in group)
        print(f"{source.name:<28}{len(groups):>7} contexts {dict(labels)}", flush=True)
        every += groups
    random.Random(recipe.seed).shuffle(every)
    told.to.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(told.to, "wt", encoding="utf-8") as file:
        for each in (sample for group in every for sample in group):
            file.write(json.dumps(to_row(each), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
