"""What a recipe's mixture holds: rows, balance and licences of each source, and what outputs alone give away.

Run: .venv/bin/python benchmarks/detector/report.py RECIPE FOLDER [--wordnet W] [--most 3000]

*Output alone* is the AUROC, over five parts by context, of a logistic regression on the words and word pairs
of the output, and *new words* that of the share of its words that the context lacks; .50 is a coin. A
source that either gives away teaches a shortcut: cap it, or balance it.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict

from magistrate.features.words import words
from magistrate.training.detector.recipe import Source, read_recipe, samples
from magistrate.training.synthetic import Lexicon
from magistrate.types import HALLUCINATED, Sample

FEWEST = 60  # samples of the rarer label for an AUROC


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wordnet", type=Path)
    parser.add_argument("--most", type=int, default=3000, help="rows of a source that are looked at")
    told = parser.parse_args()
    recipe, lexicon = read_recipe(told.recipe), Lexicon.read(told.wordnet)
    print("| source | share | rows | faithful | output alone | new words | licences |")
    print("| --- " * 7 + "|")
    for source in recipe.sources:
        fewer = source.model_copy(update={"originals": min(source.originals, told.most // 4)})
        every = samples(told.folder, fewer, recipe, lexicon)
        print(row(source, every, told.most), flush=True)


def row(source: Source, every: Sequence[Sample], most: int) -> str:
    """Return one line of the table."""
    licences = Counter(str(each.metadata.get("licence", "made")) for each in every)
    some = random.Random(1).sample(list(every), min(most, len(every)))
    truth = np.array([each.label == HALLUCINATED for each in some])
    alone, new = "-", "-"
    if min(truth.sum(), (~truth).sum()) >= FEWEST:
        alone = f"{output_alone(some, truth):.2f}"
        new = f"{roc_auc_score(truth, [novel(each) for each in some]):.2f}"
    names = ", ".join(name for name, _ in licences.most_common(3))
    faithful = sum(each.label != HALLUCINATED for each in every) / len(every)
    return (
        f"| {source.name} | {source.share:g} | {len(every):,} | {faithful:.2f} | {alone} | {new} | {names} |"
    )


def output_alone(some: Sequence[Sample], truth: np.ndarray) -> float:
    """Return how well a model ranks that sees only the output."""
    groups = np.unique(["\n".join(each.context) for each in some], return_inverse=True)[1]
    features = HashingVectorizer(ngram_range=(1, 2), n_features=1 << 18).transform(
        each.output or "" for each in some
    )
    model = LogisticRegression(class_weight="balanced", max_iter=1000)
    folds = GroupKFold(min(5, len(set(groups))))
    found = cross_val_predict(model, features, truth, groups=groups, cv=folds, method="predict_proba")
    return float(roc_auc_score(truth, found[:, 1]))


def novel(sample: Sample) -> float:
    """Return the share of the output's words that the context and the question lack."""
    known = set(words("\n".join((*sample.context, sample.input or ""))))
    said = words(sample.output or "")
    return sum(word not in known for word in said) / max(len(said), 1)


if __name__ == "__main__":
    main()
