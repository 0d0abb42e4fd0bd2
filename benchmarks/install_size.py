"""The size of an installation: packages and megabytes of the base and of each extra, in clean environments.

Run: python -m benchmarks.install_size [--extra NAME …] [--work FOLDER] [--json]

For the base and for each extra it creates an environment with `venv`, installs the package from this
checkout with pip, counts the installed distributions (without pip and Magistrate) and sums the sizes of
their files. `--work` keeps the environments, so that none is created twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("train", "transformers", "llamacpp")  # gigabytes, or need a compiler; measured only if named
MEGABYTE = 1e6
# Runs in the environment: every distribution with the bytes of its files.
COUNT = """\
import json
from importlib.metadata import distributions
found = {}
for each in distributions():
    sizes = []
    for file in each.files or ():
        path = file.locate()
        if path.is_file():
            sizes.append(path.stat().st_size)
    found[each.metadata["Name"].lower()] = sum(sizes)
print(json.dumps(found))
"""
OWN = ("pip", "setuptools", "magistrate")


@dataclass(frozen=True, slots=True)
class Row:
    """The size of an installation with an extra, or `base`; `largest` are its largest packages."""

    extra: str
    packages: int
    megabytes: float
    largest: dict[str, float]


def measured(extra: str, folder: Path) -> Row:
    """Install into an environment under `folder`, unless it exists, and measure it."""
    python = folder / extra / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done = folder / extra / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder / extra)], check=True)
        wanted = str(ROOT) if extra == "base" else f"{ROOT}[{extra}]"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile"]
        subprocess.run([*pip, wanted], check=True)
        done.touch()
    counted = subprocess.run([str(python), "-c", COUNT], capture_output=True, text=True, check=True)
    sizes = {name: size / MEGABYTE for name, size in json.loads(counted.stdout).items() if name not in OWN}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:6]
    return Row(
        extra, len(sizes), round(sum(sizes.values()), 1), {name: round(sizes[name], 1) for name in largest}
    )


def main(arguments: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = ["base", *extras["optional-dependencies"]]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extra", action="append", choices=known, help="default: all but the heavy ones")
    parser.add_argument("--work", type=Path, help="where environments are made and kept")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        work = chosen.work or Path(scratch)
        rows = []
        for extra in chosen.extra or [name for name in known if name not in HEAVY]:
            rows.append(measured(extra, work))
            if not chosen.json:
                _print(rows[-1])
    if chosen.json:
        print(json.dumps([asdict(row) for row in rows]))


def _print(row: Row) -> None:
    largest = ", ".join(f"{name} {size:.0f}" for name, size in row.largest.items())
    print(f"{row.extra:<12}{row.packages:>4} packages {row.megabytes:>8.1f} MB   {largest}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
