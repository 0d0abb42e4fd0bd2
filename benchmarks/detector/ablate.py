"""Trains detectors that each lack one part of what the shipped ones have, and prints what they are worth.

Run: MAGISTRATE_DATA_DIR=SETS .venv-train/bin/python -m benchmarks.detector.ablate DATA [--only NAME ...]

DATA is the folder that `make_large.py` reads, SETS that of `python -m benchmarks.quality`. All variants start
from the same MiniLM-L6, because it learns several times as fast as the encoder of the shipped detectors. They
read as many tokens of `stages/small.yaml`, of at most `MOST` rows a source, and are measured after a third of
them and at the end, on samples that none was trained on: AUROC, by both readings where a variant has both.
Two variants without a change, of other seeds, show what chance does. What is done is kept in --work, so that
the same command goes on after a stop; the figures are kept in benchmarks/ablations.jsonl. A variant takes
almost two hours on two cores; a GPU is used if there is one. With a twentieth of the tokens, two seeds differ
by more than variants do.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.detector.fit import truth_of
from benchmarks.detector.make_large import HERE, sources
from benchmarks.detector.twins import ANSWERS, HELD, elsewhere
from benchmarks.detector.twins import samples as twins
from benchmarks.quality.protocol import SETS, draw, here
from magistrate.detectors.detector import Detector
from magistrate.detectors.encoders import encoder, fetched
from magistrate.detectors.folder import BOTH, TOKENIZER, Manifest, Readings
from magistrate.detectors.windows import Window
from magistrate.training.detector.encoder import Encoder
from magistrate.training.detector.examples import UNKNOWN, UNKNOWN_TOKEN, WRONG, Reading
from magistrate.training.detector.graph import HIDDEN
from magistrate.training.detector.loop import Loss, Schedule, Training, on_labels
from magistrate.training.detector.network import Batch, Network, from_base
from magistrate.training.detector.recipe import Recipe, Source, pool, read_recipe
from magistrate.training.synthetic import Lexicon
from magistrate.types import Sample

RECIPE = HERE / "stages" / "small.yaml"
FIGURES = HERE.parent / "ablations.jsonl"
BASE = "minilm-l6"
MOST, EDITED = 3000, 400  # rows of a source, and outputs of it that are edited
TESTED = 240  # samples of a set, of the public ones as many as their dev part has
TOO_LONG = ("halueval-summarization",)  # it takes longer to read than all others together
RATE = 3e-4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MARKS = (1 / 3, 1.0)  # shares of the tokens after which a variant is measured


class OneWay(Encoder):
    """An encoder in which the output sees the context, but the context not the output."""

    def hidden(self, ids: Tensor, types: Tensor, mask: Tensor) -> list[Tensor]:
        self._unseen = (types[:, None, None, :] - types[:, None, :, None]).clamp(min=0) * HIDDEN
        return super().hidden(ids, types, mask)

    def _layer(self, layer: nn.Module, given: Tensor, added: Tensor) -> Tensor:
        return super()._layer(layer, given, added + self._unseen)


def one_way(network: Network) -> Network:
    """Return the network with an encoder whose context does not see the output."""
    network.encoder.__class__ = OneWay
    return network


def without_words(network: Network, batch: Batch) -> Tensor:
    """Return the loss of the sentences alone."""
    return on_labels(network, batch._replace(tokens=torch.full_like(batch.tokens, UNKNOWN_TOKEN)))


def without_kinds(network: Network, batch: Batch) -> Tensor:
    """Return the loss if it is unknown whether what is wrong is contradicted or not in the text."""
    wrong = (batch.truths > 0) & (batch.truths < WRONG)
    return on_labels(network, batch._replace(truths=torch.where(wrong, WRONG, batch.truths)))


def of_outputs(network: Network, batch: Batch) -> Tensor:
    """Return the loss if only the label of an output is known, not which of its words are wrong."""
    wrong = batch.hallucinated[batch.owner] > 0
    return without_words(network, batch._replace(truths=torch.where(wrong, UNKNOWN, batch.truths)))


Change = Callable[[Source], Source | None]


def lacking(*starts: str) -> Change:
    """Return the change that leaves out sources whose names start with any of `starts`."""
    return lambda source: None if source.name.startswith(starts) else source


def plain(source: Source) -> Source:
    """Return a source without what is derived from its rows by rules."""
    return source.model_copy(update={"edits": 0, "parts": False, "framed": 0.0, "asked": 0.0})


@dataclass(frozen=True)
class Variant:
    """One way to train: what of the recipe's sources is left, the loss, the network, the reading, a seed."""

    change: Change = lambda source: source
    loss: Loss = on_labels
    network: Callable[[Network], Network] = lambda network: network
    reading: Reading | Literal["both"] = "both"
    seed: int = 0

    @property
    def readings(self) -> Readings:
        """How it reads what it is measured on."""
        return ("pairs",) if self.reading == "pairs" else BOTH


VARIANTS: Mapping[str, Variant] = {
    "all": Variant(),
    "all, another seed": Variant(seed=1),
    "without the written pairs": Variant(lacking("answers-", "short-", "written-")),
    "without sentences and claims by people": Variant(lacking("nli_", "claims_", "qa_", "tables_", "facts_")),
    "without rewrites": Variant(lacking("rw_")),
    "without outputs of models": Variant(lacking("fc_", "attribution", "expertqa")),
    "without edits and other derived rows": Variant(plain),
    "context does not see the output": Variant(network=one_way),
    "loss of sentences alone": Variant(loss=without_words),
    "one kind of wrong": Variant(loss=without_kinds),
    "labels of outputs alone": Variant(loss=of_outputs),
    "on whole outputs alone": Variant(reading="windows"),
    "on sentences beside a passage alone, and so read": Variant(reading="pairs"),
}


class InTraining(Detector):
    """A detector whose network is still in training."""

    def __init__(self, network: Network, base: Path, readings: Readings, window: int) -> None:
        about = Manifest(
            name="in training",
            readings=readings,
            window=window,
            heads=network.encoder.heads,
            scale=1.0,
            offset=0.0,
            token_threshold=0.5,
            trained_on=(),
            recipe={},
            files={},
        )
        super().__init__(base, about)
        self._network = network.eval()

    @torch.no_grad()
    def _logits(self, windows: Sequence[Window]) -> list[np.ndarray]:
        found = []
        for each in windows:
            ids = torch.tensor([each.ids], device=DEVICE)
            types = torch.zeros_like(ids)
            types[:, each.second :] = 1
            found.append(self._network(ids, types, torch.ones_like(ids))[0].float().cpu().numpy())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("build/detector/ablations"))
    parser.add_argument("--only", action="append", choices=VARIANTS, help="repeatable; default: all")
    parser.add_argument("--tokens", type=float, default=15.0, help="millions, of each variant")
    parser.add_argument("--wordnet", type=Path)
    told = parser.parse_args()
    if missing := [each.name for each in SETS if not here(each)]:
        print(f"Not measured on {', '.join(missing)}, which MAGISTRATE_DATA_DIR lacks.", file=sys.stderr)
    planned = int(told.tokens * 1e6)
    known = encoder(BASE)
    assert known, "it is one of ours"
    base, data, tests = fetched(known), sources(told.data, told.work / "data"), sets()
    for name in told.only or VARIANTS:
        trained(name, planned, base, data, tests, told)
    print(table(FIGURES.read_text(encoding="utf-8").splitlines(), planned, tuple(tests)))


def sets() -> dict[str, Sequence[Sample]]:
    """Return samples that no variant is trained on, by name."""
    found: dict[str, Sequence[Sample]] = {
        "statements": twins(HELD)[:TESTED],
        "beside other texts": twins(HELD, elsewhere)[:TESTED],
        "answers": twins(ANSWERS)[:TESTED],
    }
    public = [each for each in SETS if here(each) and each.name not in TOO_LONG]
    return found | {each.name: draw(each, 2 * TESTED).dev[:TESTED] for each in public}


def trained(
    name: str,
    planned: int,
    base: Path,
    data: Path,
    tests: Mapping[str, Sequence[Sample]],
    told: argparse.Namespace,
) -> None:
    """Train a variant on `planned` tokens, and add what it is worth at each mark to the file."""
    variant = VARIANTS[name]
    recipe = changed(read_recipe(RECIPE), variant)
    rounds = pool(recipe, data, base / TOKENIZER, Lexicon.read(told.wordnet), told.work / "examples")
    schedule = Schedule(
        tokens=planned, batch=3072, rate=RATE, warmup=30, cooldown=0.3, average=0.98,
        seed=variant.seed,
    )  # fmt: skip
    folder = told.work / re.sub(r"\W+", "-", f"{name} {planned}")
    network = variant.network(from_base(base, seed=variant.seed))
    training = Training(
        network, rounds, f"{name} {schedule}", schedule, folder, loss=variant.loss, device=DEVICE
    )
    marks = [mark for mark in MARKS if mark * planned > training.tokens]

    def measure(training: Training, loss: float) -> None:
        if not marks or training.tokens < marks[0] * planned:
            return
        mark = marks.pop(0)
        mean = deepcopy(training.network)
        mean.load_state_dict(training.mean, strict=False)
        model = InTraining(mean, base, variant.readings, recipe.window)
        found = {
            name: round(roc_auc_score(truth_of(samples), model.logits(samples)), 4)
            for name, samples in tests.items()
        }
        place = {"variant": name, "planned": planned, "mark": mark, "tokens": training.tokens}
        row = json.dumps({**place, "loss": round(loss, 4), "auroc": found})
        with FIGURES.open("a", encoding="utf-8") as file:
            file.write(row + "\n")
        print(row, flush=True)

    training.run(tell=measure)


def changed(recipe: Recipe, variant: Variant) -> Recipe:
    """Return the recipe of a variant, with fewer rows of each source."""
    left = [found for each in recipe.sources if (found := variant.change(each)) is not None]
    fewer = [
        each.model_copy(update={"most": MOST, "originals": min(each.originals, EDITED)}) for each in left
    ]
    return recipe.model_copy(
        update={"sources": tuple(fewer), "reading": variant.reading, "longest": recipe.window}
    )


def table(lines: Sequence[str], planned: int, names: Sequence[str]) -> str:
    """Return the figures as a table: a variant's last ones, and the mean of its sets at both marks.

    Trainings of other lengths than `planned` tokens are left out, and figures of other sets than `names`.
    """
    rows: dict[str, dict[float, dict[str, float]]] = {}
    for row in map(json.loads, lines):
        if row["planned"] == planned and row["auroc"].keys() == set(names):
            rows.setdefault(row["variant"], {})[row["mark"]] = row["auroc"]
    found = [f"| trained | {' | '.join(names)} | mean, after a third | mean |"]
    found.append("| --- " * (len(names) + 3) + "|")
    for name in (each for each in VARIANTS if len(rows.get(each, {})) == len(MARKS)):
        early, last = (rows[name][mark] for mark in MARKS)
        values = [
            *(last[each] for each in names),
            np.mean(list(early.values())),
            np.mean(list(last.values())),
        ]
        found.append(f"| {name} | {' | '.join(f'{each:.2f}'.lstrip('0') for each in values)} |")
    return "\n".join(found)


if __name__ == "__main__":
    main()
