"""Makes the model that `faithfulness` asks by default: the small instruct model of the catalogue, tuned.

Run: .venv-train/bin/python -m benchmarks.detector.make_judge DATA [--to FOLDER] [--work W]

DATA holds the sources that judge.yaml names, as NAME.jsonl.gz. Whole contexts are drawn from them, with all
statements about them, because statements about one context are read together; from each source come as many
faithful as hallucinated outputs, each at most once. `magistrate train judge` learns from them, and keeps its
state in --work (build/judge), so that the same command resumes after a stop. What ships is the low-rank
update of the model's matrices, with eight bits per number, its recipe and its card. Training takes two hours
on two cores; `--examples` sets how many statements are drawn.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from benchmarks.detector.make_large import sources
from magistrate.datasets.samples import to_row
from magistrate.detectors.folder import Figure
from magistrate.engines.models.catalogue import UPDATE, UPDATES
from magistrate.engines.models.updates import write_updates
from magistrate.judges.folders import CARD, whole
from magistrate.training.detector.recipe import Recipe, Source, read_recipe, samples
from magistrate.training.detector.training import counted, table
from magistrate.training.judge.gguf import updates_of
from magistrate.training.judge.model_folder import ADAPTER, RECIPE
from magistrate.training.synthetic import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

NAME = "smollm2-135m-judge"
SLACK = 4  # most samples that one label may be ahead
LIMITS = """\
It finds what is invented, and sees no twists: of statements in the context's own words with another number,
role or order it finds hardly more than a coin. It was trained on English texts of up to a thousand
characters; on longer ones it is at chance, and other languages and program code are outside of what it has
learnt. It answers this one question: other judges ask the model without the update. The default judge `auto`
needs no language model and is better."""
HOW = {"--rate": 8e-4, "--batch": 32, "--together": 512, "--longest": 540, "--test": 0.02, "--epochs": 0.64}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--to", type=Path, default=UPDATES / NAME)
    parser.add_argument("--work", type=Path, default=Path("build/judge"))
    parser.add_argument("--examples", type=int, default=28_000)
    parser.add_argument("--longest", type=int, default=1000, help="characters of a context and an output")
    parser.add_argument("--wordnet", type=Path)
    told = parser.parse_args()
    recipe = read_recipe(Path(__file__).with_name("judge.yaml"))
    drawn_to, counts_to = told.work / "mixture.jsonl.gz", told.work / "mixture.json"
    if not counts_to.is_file():
        folder = sources(told.data, told.work / "data")
        every = drawn(recipe, folder, Lexicon.read(told.wordnet), told.examples, told.longest)
        counts = write(every, drawn_to, recipe.seed)
        counts_to.write_text(json.dumps(counts), encoding="utf-8")
    trained = told.work / NAME
    if not (trained / RECIPE).is_file():
        train(drawn_to, trained)
    mixture = {
        "mixture": recipe.model_dump(mode="json"),
        "examples": json.loads(counts_to.read_text("utf-8")),
    }
    ship(trained, told.to, mixture)


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


def write(every: Iterator[tuple[Source, list[list[Sample]]]], to: Path, seed: int) -> dict[str, int]:
    """Write the drawn samples in random order of contexts. Returns the number of each source's labels."""
    counts, shuffled = dict[str, int](), list[list[Sample]]()
    for source, groups in every:
        labels = Counter(str(each.label) for group in groups for each in group)
        counts |= {f"{source.name}, {label}": n for label, n in sorted(labels.items())}
        print(f"{source.name:<28}{len(groups):>7} contexts {dict(labels)}", flush=True)
        shuffled += groups
    random.Random(seed).shuffle(shuffled)
    to.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(to, "wt", encoding="utf-8") as file:
        for each in (sample for group in shuffled for sample in group):
            file.write(json.dumps(to_row(each), ensure_ascii=False) + "\n")
    return counts


def train(data: Path, to: Path) -> None:
    """Execute the training by the command line, as a user would."""
    told = [str(word) for option in HOW.items() for word in option]
    command = ["train", "judge", "--data", str(data), "--judge", "faithfulness", *told, "--to", str(to)]
    print("$ magistrate", shlex.join(command), flush=True)
    subprocess.run([sys.executable, "-m", "magistrate", *command], check=True)


def ship(trained: Path, to: Path, data: Mapping[str, Any]) -> None:
    """Write the update of a trained model to the folder `to`, with its recipe and card."""
    recipe = json.loads((trained / RECIPE).read_text(encoding="utf-8"))
    with whole(to) as half:
        write_updates(updates_of(trained / ADAPTER, AutoConfig.from_pretrained(trained)), half / UPDATE)
        write_card({**recipe, "data": data}, half)
    print(f"{to / UPDATE}: {(to / UPDATE).stat().st_size / 1e6:.1f} MB")


def write_card(recipe: Mapping[str, Any], folder: Path) -> None:
    """Write the recipe and the card that is made from it."""
    (folder / RECIPE).write_text(json.dumps(recipe, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card(recipe), encoding="utf-8")


def learnt(recipe: Mapping[str, Any]) -> list[str]:
    """Return the names of the sources that a model was trained on."""
    return [each["name"] for each in recipe["data"]["mixture"]["sources"]]


def card(recipe: Mapping[str, Any]) -> str:
    """Return the model card as Markdown."""
    base, examples, before, after = (recipe[name] for name in ("base", "examples", "before", "after"))
    figures = tuple(Figure.model_validate_json(json.dumps(each)) for each in recipe.get("figures", ()))
    read = min(1.0, recipe["settings"]["epochs"])
    return f"""\
# {recipe["name"]}

A low-rank update of {base["name"]} ({base["licence"]}; the GGUF has the sha256 `{base["sha256"]}`).
With it the model answers the question of the judge `faithfulness`: is every part of an output supported by
its context? That judge asks it unless you name a model:

```console
$ magistrate models pull {recipe["name"]}
$ magistrate run answers.csv --judge faithfulness
```

## Measured

{table(figures)}

## Limits

{LIMITS}

## Data

{examples["train"]:,} labelled outputs about {examples["train_contexts"]:,} contexts, of which {read:.0%} were
read, in {recipe["updates"]:,} updates; the loss on {examples["test"]:,} others fell from
{before["loss"]:.3f} to {after["loss"]:.3f} nats. Drawn were:

{chr(10).join(counted(recipe["data"]["examples"]))}

`recipe.json` holds all settings and the learning curve.
"""


if __name__ == "__main__":
    main()
