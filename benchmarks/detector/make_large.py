"""Makes the large detector from a folder of labelled data: both of its trainings, and their mean.

Run: .venv-train/bin/python -m benchmarks.detector.make_large DATA [--to FOLDER] [--work W] [--start FOLDER]

DATA holds the sources that the recipes in `stages/` name, as NAME.jsonl.gz. The second training starts from
the result of the first, and both keep their state in --work (build/detector), so that the same command
resumes after a stop. `--share` is the fraction of the tokens to read: .001 tries everything in minutes. The
detector is a weighted mean of what the trainings learnt; everything but its weights is written, and these are
computed from its encoder and the update when it is pulled. Training takes five minutes on one H100, and days
on a processor. With --start, the folder of an earlier large detector, it stands for the result of the first
training, so that only the second is done, in three quarters of an hour on two cores: so it goes on learning
when there are more data. The shipped one was made so. Afterwards run `measure.py --size large`.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.detector import twins
from magistrate.detectors.encoders import encoder, fetched
from magistrate.detectors.folder import (
    BOTH,
    CARD,
    MANIFEST,
    TOKENIZER,
    UPDATE,
    WEIGHTS,
    Manifest,
    digest_of,
    read_manifest,
)
from magistrate.detectors.large import LEARNT, write_merged
from magistrate.detectors.weights import replaced
from magistrate.engines.models.updates import Update, read_updates, write_updates
from magistrate.judges.folders import WORK, whole
from magistrate.training.detector.training import card

HERE = Path(__file__).parent
WRITTEN = sorted(HERE.glob("*.jsonl"))
STAGES = (  # the recipe, millions of tokens, the highest learning rate, tokens of a step
    ("large", 36.0, 5e-4, 16384),
    ("large-elsewhere", 1.0, 1.5e-4, 2048),
)
NAME = "large-3"
LAST = 2 / 3  # the weight of the last training; the one before it has the rest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--to", type=Path, default=LEARNT)
    parser.add_argument("--work", type=Path, default=Path("build/detector"))
    parser.add_argument("--wordnet", type=Path)
    parser.add_argument("--base", default="mpnet")
    parser.add_argument("--start", type=Path, help="a large detector to go on with")
    parser.add_argument("--share", type=float, default=1.0)
    told = parser.parse_args()
    data = sources(told.data, told.work / "data")
    folders = [told.start or told.work / STAGES[0][0], told.work / STAGES[1][0]]
    base = str(told.start or told.base)
    for (name, tokens, rate, batch), folder in zip(STAGES, folders, strict=True):
        if not (folder / MANIFEST).is_file():
            last = name == STAGES[-1][0]
            words = ["--recipe", HERE / "stages" / f"{name}.yaml", "--data", data, "--base", base]
            words += ["--tokens", tokens * told.share, "--rate", rate, "--batch", batch, "--to", folder]
            words += ["--calibrate-on", data / f"{'held' if last else 'written-1'}.jsonl.gz"]
            words += ["--wordnet", told.wordnet] if told.wordnet else []
            words += ["--name", NAME] if last else []
            train(*words)
        base = str(folder)
    with whole(told.to) as half:
        not_shipped = shutil.ignore_patterns(WEIGHTS, TOKENIZER, WORK)
        shutil.copytree(base, half, dirs_exist_ok=True, ignore=not_shipped)
        manifest = read_manifest(half).model_copy(update={"readings": BOTH})
        manifest = averaged(manifest, *folders, half / UPDATE)
        (half / MANIFEST).write_text(manifest.text(), encoding="utf-8")
        (half / CARD).write_text(card(manifest), encoding="utf-8")
    print("written:", told.to)


def averaged(manifest: Manifest, before: Path, after: Path, to: Path) -> Manifest:
    """Write the mean of two trainings' updates; return the manifest with the digest of its weights.

    The factors of each update are averaged. The second training started from those of the first and moved
    them little, so this is close to the mean of their products.
    """
    folders = {before: 1 - LAST, after: LAST}
    learnt = [(read_updates(folder / UPDATE), share) for folder, share in folders.items()]
    others = [(replaced(folder / UPDATE), share) for folder, share in folders.items()]
    factors = {
        name: Update(
            sum(each[name].up * np.float32(share) for each, share in learnt),
            sum(each[name].down * np.float32(share) for each, share in learnt),
        )
        for name in learnt[0][0]
    }
    rest = {name: sum(each[name] * np.float32(share) for each, share in others) for name in others[0][0]}
    write_updates(factors, to, rest)
    known = encoder(manifest.update_of)
    assert known, "its trainings started from an encoder of ours"
    with tempfile.TemporaryDirectory() as scratch:
        write_merged(fetched(known), to, Path(scratch) / WEIGHTS)
        files = {**manifest.files, WEIGHTS: digest_of(Path(scratch) / WEIGHTS)}
    recipe = {**manifest.recipe, "mean": {"of": [each.name for each in folders], "weights": [1 - LAST, LAST]}}
    return manifest.model_copy(update={"files": files, "recipe": recipe})


def sources(given: Path, folder: Path) -> Path:
    """Create a folder with links to the files of `given`, and the written twins beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in given.glob("*.jsonl.gz"):
        link = folder / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path.resolve())
    for path in WRITTEN:
        twins.write(path, folder)
    return folder


def train(*words: object) -> None:
    """Execute one training by the command line, as a user would."""
    command = ["train", "detector", *map(str, words)]
    print("$ magistrate", shlex.join(command), flush=True)
    subprocess.run([sys.executable, "-m", "magistrate", *command], check=True)


if __name__ == "__main__":
    main()
