"""Installs a wheel where nothing else is, with every Python that is here, and asks for first verdicts.

`python release/smoke.py WHEEL` prints a line for each Python that the package supports; one that is not on
this machine is named as not run. Exit status 1: something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parent.parent
NAMES = "import magistrate; print(len([getattr(magistrate, name) for name in magistrate.__all__]))"
CONTEXT = "The museum closes at five."
OUTPUTS = {"The museum closes at five.": "faithful", "The museum closes at nine.": "hallucinated"}
MAKES_ENVIRONMENTS = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


class Failed(Exception):
    """A step that should have worked did not."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A fresh environment with the wheel and what it depends on, in `folder`."""

    folder: Path

    @property
    def scripts(self) -> Path:
        return self.folder / ("Scripts" if sys.platform == "win32" else "bin")

    @property
    def python(self) -> Path:
        return self.scripts / "python"

    @property
    def site(self) -> Path:
        """The folder of its packages."""
        return Path(
            self.run([self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
        )

    def run(self, words: Sequence[str | Path]) -> str:
        """Return what a program prints that sees nothing but this environment. Raises `Failed`."""
        keep = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "MAGISTRATE_"))
        }
        home = self.folder / "home"
        done = subprocess.run(
            words,
            cwd=self.folder,
            env={**keep, "MAGISTRATE_HOME": str(home), "PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode != 0:
            raise Failed(
                f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stderr}{done.stdout}"
            )
        return done.stdout

    def magistrate(self, *words: str) -> str:
        return self.run([self.scripts / "magistrate", *words])


def environment(python: str | Path, wheel: Path, folder: Path) -> Environment:
    """Create an environment without pip, and install the wheel into it. Raises `Failed`."""
    made = Environment(folder)
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet"]
    made.run([*pip, "--python", str(made.python), "install", wheel.resolve()])
    made.run([*pip, "--python", str(made.python), "check"])
    return made


def first_verdicts(made: Environment, version: str) -> str:
    """Do what somebody does first after an installation. Returns what was seen. Raises `Failed`."""
    for said in (made.magistrate("--version"), made.run([made.python, "-m", "magistrate", "--version"])):
        _expect(said.strip() == f"magistrate, version {version}", f"--version says {said!r}")
    names = made.run([made.python, "-W", "error::SyntaxWarning", "-c", NAMES]).strip()
    for output, label in OUTPUTS.items():
        words = ["--judge", "detector", "--context", CONTEXT, "--output", output]
        verdict = json.loads(made.magistrate("judge", *words, "--json"))
        _expect(verdict["label"] == label, f"the detector calls {output!r} {verdict['label']}")
    made.magistrate("run", "quickstart", "--limit", "8", "--judge", "novelty")
    outcomes = json.loads(made.magistrate("show", "last", "--json"))
    _expect("novelty" in json.dumps(outcomes), "the run is not shown")
    return f"{names} public names, 2 verdicts of the detector, a run of 8 samples"


def _expect(held: bool, otherwise: str) -> None:
    if not held:
        raise Failed(otherwise)


def pythons() -> Mapping[str, str | None]:
    """Return the Python of each version that the package supports, or None where this machine has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = SpecifierSet(project["requires-python"])
    versions = [f"3.{minor}" for minor in range(8, 40) if supported.contains(f"3.{minor}")]
    return {
        version: next((place for place in _places(version) if _is_python(place, version)), None)
        for version in versions
    }


def _places(version: str) -> list[str]:
    """Return where a Python may be: the one that runs, those on PATH, those of uv and of pyenv."""
    found = [sys.executable, shutil.which(f"python{version}")]
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        words = [uv, "python", "find", "--no-project", "--no-python-downloads", version]
        found.append(subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip())
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found += [str(each / "bin" / "python") for each in sorted(versions.glob(f"{version}.*"), reverse=True)]
    return [each for each in found if each]


def _is_python(place: str, version: str) -> bool:
    """Return whether there is a Python of this version that can make environments."""
    try:
        done = subprocess.run([place, "-c", MAKES_ENVIRONMENTS], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.stdout.strip() == version


def smoke(wheel: Path, folder: Path, tried: str = "") -> tuple[list[str], list[str], list[str]]:
    """Try the wheel on every Python but the one `tried`. Returns which worked, failed, and are not here."""
    (version,) = re.findall(r"^magistrate-([^-]+)-", wheel.name)
    worked, failed, missing = [], [], []
    for name, python in pythons().items():
        if name == tried:
            continue
        if python is None:
            missing.append(name)
            print(f"Python {name}: NOT RUN, there is none on this machine")
            continue
        try:
            seen = first_verdicts(environment(python, wheel, folder / name), version)
        except Failed as error:
            failed.append(name)
            print(f"Python {name}: FAILED: {error}")
        else:
            worked.append(name)
            print(f"Python {name}: works: {seen}", flush=True)
        shutil.rmtree(folder / name, ignore_errors=True)
    return worked, failed, missing


def main() -> int:
    """Try a wheel on every Python that is here."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("wheel", type=Path)
    with tempfile.TemporaryDirectory() as folder:
        worked, failed, _ = smoke(parser.parse_args().wheel, Path(folder))
    return 0 if worked and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
