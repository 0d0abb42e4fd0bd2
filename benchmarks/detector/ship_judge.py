"""Ships a tuned judge's adapter as an update of a model of the catalogue, with its recipe and card.

Run: .venv-train/bin/python benchmarks/detector/ship_judge.py FOLDER [--to NAME]

FOLDER is the output of `magistrate train judge`. The adapter is stored with eight bits per number.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from transformers import AutoConfig

from magistrate.engines.models.catalogue import UPDATE, UPDATES
from magistrate.engines.models.updates import write_updates
from magistrate.judges.folders import CARD, whole
from magistrate.training.judge.gguf import updates_of
from magistrate.training.judge.model_folder import ADAPTER, RECIPE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", default="smollm2-135m-judge", help="the name of the update")
    told = parser.parse_args()
    target = UPDATES / told.to
    with whole(target) as half:
        write_updates(
            updates_of(told.folder / ADAPTER, AutoConfig.from_pretrained(told.folder)), half / UPDATE
        )
        for name in (RECIPE, CARD):
            shutil.copyfile(told.folder / name, half / name)
    print(f"{target / UPDATE}: {(target / UPDATE).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
