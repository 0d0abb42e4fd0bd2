"""Weigh the detectors of `benchmarks/train_detector.py` against `novelty`, each family of sets left out once.

Run: MAGISTRATE_DATA_DIR=DATA .venv/bin/python benchmarks/train_stacks.py FOLDER

FOLDER holds the detectors `halueval` and `without-halueval`. Written are FOLDER/detectors/without-FAMILY, the
one that has not seen a family, and FOLDER/stacks/without-FAMILY: neither the weights of that stack nor what
they weigh were learnt on the family. In FOLDER both are measured by `magistrate bench quality
--judge 'detector:detectors/without-{family}' --judge 'stack:stacks/without-{family},outside=judge'`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from magistrate.appraisal.stack_data import Asking
from magistrate.appraisal.stacking import train_stack

SETS = {
    "summedits": ("summedits:dev",),
    "begin": ("begin:dev",),
    "halueval": ("halueval-qa:dev", "halueval-dialogue:dev", "halueval-summarization:dev"),
}
UNSEEN = {"summedits": "halueval", "begin": "halueval", "halueval": "without-halueval"}
MOST = 400  # samples of a set
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.absolute()
    detectors, stacks = folder / "detectors", folder / "stacks"
    for family, fold in UNSEEN.items():
        shutil.copytree(
            folder / fold,
            detectors / f"without-{family}",
            ignore=shutil.ignore_patterns(".*"),
            dirs_exist_ok=True,
        )
    for family in SETS:
        parts = [f"detector:({detectors}/without-{family})", f"novelty:without={family}"]
        unseen = [f"detector:({detectors}/without-{{family}})", "novelty:without={family}"]
        stack = train_stack(
            [name for other, names in SETS.items() if other != family for name in names],
            parts,
            instead=dict(zip(parts, unseen, strict=True)),
            positive=True,
            how=Asking(sample=MOST, seed=SEED),
        )
        print(stack)
        stack.save(stacks / f"without-{family}", replace=True)


if __name__ == "__main__":
    main()
