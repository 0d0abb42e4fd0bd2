"""Builds a release into dist/ and checks it; uploads nothing. `make release` and `make release-check` run it.

A release needs a section of its version in CHANGELOG.md with nothing left under "Unreleased", no change that
is not committed, and no tag of that name. `--check` builds and checks without that, and says what is missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import licences
import smoke

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LARGEST = 40_000_000  # bytes of a wheel; whoever needs more says so here
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version() -> str:
    """Return the version, from the one place that says it."""
    (found,) = VERSION.findall((ROOT / "src" / "magistrate" / "_version.py").read_text(encoding="utf-8"))
    return str(found)


# --- what a person must have done before ---------------------------------------------------------


def unready(version: str, changelog: str) -> Iterator[str]:
    """Yield what the changelog lacks for a release of this version."""
    sections: dict[str, list[str]] = {}
    for line in changelog.splitlines():
        if line.startswith("## "):
            sections[line.removeprefix("## ").split()[0]] = []
        elif line.startswith("- ") and sections:
            sections[list(sections)[-1]].append(line)
    if not sections.get(version):
        yield f"CHANGELOG.md has no section '## {version}' with a sentence in it"
    if left := sections.get("Unreleased"):
        yield f"CHANGELOG.md has changes under 'Unreleased' ({len(left)}); move them to '## {version}'"
    if version in sections and (first := next(name for name in sections if name != "Unreleased")) != version:
        yield f"CHANGELOG.md has {first} above {version}; is src/magistrate/_version.py right?"


def uncommitted(version: str) -> Iterator[str]:
    """Yield what git says against a release of this version."""
    if _git("status", "--porcelain"):
        yield "there are changes that are not committed: git status"
    if _git("tag", "--list", f"v{version}"):
        yield f"there is a tag v{version} already; raise the version in src/magistrate/_version.py"


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


# --- what was built ------------------------------------------------------------------------------


def foreign(names: set[str], committed: set[str], version: str) -> Iterator[str]:
    """Yield the files of a wheel that should not be there, and those that should be and are not."""
    expected = {name.removeprefix("src/") for name in committed if name.startswith("src/magistrate/")}
    info = f"magistrate-{version}.dist-info/"
    own = {
        f"{info}{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    site = {name for name in names if name.startswith("magistrate/site/")}  # the documentation, as built
    yield from (
        f"the wheel holds {name}, which is not committed" for name in sorted(names - expected - own - site)
    )
    yield from (f"the wheel lacks {name}" for name in sorted((expected | own) - names))


def foreign_in_source(names: set[str], committed: set[str]) -> Iterator[str]:
    """Yield the files of the source archive that are not committed."""
    yield from (
        f"the source archive holds {name}, which is not committed"
        for name in sorted(names - committed - {"PKG-INFO"})
        if not name.startswith("build/site/")
    )


def sizes(wheel: Path) -> Counter[str]:
    """Return the packed bytes of each part of a wheel."""
    found: Counter[str] = Counter()
    with zipfile.ZipFile(wheel) as archive:
        for each in archive.infolist():
            parts = Path(each.filename).parts
            weights = Path(each.filename).suffix in (".safetensors", ".onnx")
            name = "weights of the detector" if weights else "/".join(parts[: 2 if len(parts) > 2 else 1])
            found[name] += each.compress_size
    return found


def build(version: str) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it. Returns both."""
    shutil.rmtree(DIST, ignore_errors=True)
    _python("build", "--no-isolation", "--outdir", str(DIST), str(ROOT), quiet=True)
    wheel, source = DIST / f"magistrate-{version}-py3-none-any.whl", DIST / f"magistrate-{version}.tar.gz"
    for path in (wheel, source):
        if not path.exists():
            raise smoke.Failed(f"{path.name} was not built")
    _python("twine", "check", "--strict", str(wheel), str(source))
    return wheel, source


def contents(wheel: Path, source: Path, version: str) -> Iterator[str]:
    """Yield what is wrong with the files in the wheel and in the source archive."""
    committed = set(_git("ls-files", "-z").split("\0"))
    with zipfile.ZipFile(wheel) as archive:
        yield from foreign(
            {each for each in archive.namelist() if not each.endswith("/")}, committed, version
        )
    with tarfile.open(source) as packed:
        names = {each.name.partition("/")[2] for each in packed.getmembers() if not each.isdir()}
    yield from foreign_in_source(names, committed)
    total = wheel.stat().st_size
    if total > LARGEST:
        yield f"the wheel has {total:,} bytes, more than the {LARGEST:,} of LARGEST in {Path(__file__).name}"


def _python(module: str, *words: str, quiet: bool = False) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=quiet, text=True, check=False
    )
    if done.returncode != 0:
        raise smoke.Failed(f"{module} failed\n{done.stdout or ''}{done.stderr or ''}")


def bill_of_materials(made: smoke.Environment, path: Path, version: str) -> None:
    """Write what a plain install brings as CycloneDX, checked against its schema."""
    tool = Path(sys.executable).with_name("cyclonedx-py")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    told = made.folder / "pyproject.toml"  # the tool reads the version in no other place
    told.write_text(project.replace('dynamic = ["version"]', f'version = "{version}"'), encoding="utf-8")
    how = ["--pyproject", told, "--output-reproducible", "--validate", "--of", "JSON", "-o", path]
    made.run([tool, "environment", *how, made.python])
    root = json.loads(path.read_text(encoding="utf-8"))["metadata"]["component"]
    if (root["name"], root.get("version")) != ("magistrate", version):
        raise smoke.Failed(f"{path.name} is of {root['name']} {root.get('version')}, not of {version}")


def read_by_pyright(made: smoke.Environment) -> None:
    """Let pyright, strict, read a project that uses the public names of the wheel."""
    folder = made.folder / "consumer"
    shutil.copytree(ROOT / "tests" / "consumer", folder)
    tool = Path(sys.executable).with_name("pyright")
    made.run([tool, "--project", folder, "--pythonpath", made.python])


def main() -> int:
    """Build and check a release."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="also without a section, a clean tree, a free tag"
    )
    only_check = parser.parse_args().check
    new = version()
    missing = [*unready(new, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")), *uncommitted(new)]
    if missing and not only_check:
        print(f"no release of {new}:", *missing, sep="\n  ", file=sys.stderr)
        return 1
    wrong, not_run = _checked(new)
    print("\nwhat is wrong:" if wrong else "\nnothing is wrong", *wrong, sep="\n  ")
    if missing:
        print(f"before a release of {new}:", *missing, sep="\n  ")
    if not_run:
        print(f"not run here, for want of it: Python {', '.join(not_run)}; where it is: make smoke")
    if not wrong and not missing:
        print(f"by hand:\n  git tag -s v{new} -m 'Magistrate {new}' && git push origin v{new}")
        print(f"  {Path(sys.executable).with_name('twine')} upload dist/magistrate-{new}*")
        print(
            "  publish dist/LICENCES.md and dist/sbom.cdx.json beside them, with the section of CHANGELOG.md"
        )
    return 1 if wrong else 0


def _checked(new: str) -> tuple[list[str], list[str]]:
    """Return what is wrong with a release, and the versions of Python that could not be tried."""
    wheel, source = build(new)
    print(f"built {wheel.name} and {source.name} ({source.stat().st_size:,} bytes)")
    wrong = list(contents(wheel, source, new))
    print(f"the wheel: {wheel.stat().st_size:,} bytes")
    for name, size in sizes(wheel).most_common(12):
        print(f"{size:>12,}  {name}")
    with tempfile.TemporaryDirectory() as scratch:
        made = smoke.environment(sys.executable, wheel, Path(scratch) / "plain")
        print(f"in a clean environment: {smoke.first_verdicts(made, new)}", flush=True)
        read_by_pyright(made)
        print("pyright, strict, finds nothing in a project that uses it", flush=True)
        bill_of_materials(made, DIST / "sbom.cdx.json", new)
        plain = {
            licences.canonicalize_name(each.name): each.version
            for each in importlib.metadata.distributions(path=[str(made.site)])
        }
        print(f"wrote dist/sbom.cdx.json: {len(plain)} packages", flush=True)
        extras = list(PROJECT["optional-dependencies"])
        found = licences.write(
            DIST / "LICENCES.md", f"Magistrate {new}", wheel, extras, plain, made.python, made.site
        )
        print("wrote dist/LICENCES.md", flush=True)
        _, failed, not_run = smoke.smoke(
            wheel, Path(scratch), f"{sys.version_info.major}.{sys.version_info.minor}"
        )
    return [*wrong, *found, *(f"it does not work on Python {each}" for each in failed)], not_run


if __name__ == "__main__":
    try:
        sys.exit(main())
    except smoke.Failed as error:
        sys.exit(f"no release: {error}")
