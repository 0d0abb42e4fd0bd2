"""What people install: the wheel holds what it needs and works, locks cover it, files name no machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from magistrate._version import __version__

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what a checkout has."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "copy"
    for name in files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    done = subprocess.run(
        [*pip, "wheel", "--no-deps", "--wheel-dir", folder, copy], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but what the wheel holds."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", folder, wheel], check=True)
    return folder


def files() -> list[str]:
    """Paths of the files that belong to the project, those not yet committed included."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted({name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()})


# --- the wheel -----------------------------------------------------------------------------------


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {name.removeprefix("src/") for name in files() if name.startswith("src/")}
    assert names == expected
    for name in (
        "py.typed",
        "datasets/quickstart.jsonl",
        "datasets/named.toml",
        "engines/models/catalogue.toml",
        "datasets/criteria.jsonl",
        "judges/builtin/faithfulness.yaml",
        "judges/prompts/rubric.txt",
        "detectors/shipped_large/update.safetensors",
        "judges/templates/labels.yaml",
    ):
        assert f"magistrate/{name}" in names


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    assert wheel.name == f"magistrate-{__version__}-py3-none-any.whl"
    info = f"magistrate-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        licence = archive.read(f"{info}/licenses/LICENSE")
        metadata = archive.read(f"{info}/METADATA").decode()
        points = ConfigParser()
        points.read_string(archive.read(f"{info}/entry_points.txt").decode())
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in metadata
    assert "# Magistrate" in metadata  # the README comes along
    assert dict(points["console_scripts"]) == {"magistrate": "magistrate.cli:main"}
    assert {"faithfulness", "hallucination"} <= set(points["magistrate.judges"])


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["-c", "import magistrate; print(magistrate.__file__)"], 0, "{installed}/magistrate/__init__.py\n"),
        (["-m", "magistrate", "--version"], 0, f"magistrate, version {__version__}\n"),
        (["-m", "magistrate", "check", "[1, 2, 3"], 0, "incomplete\n"),
        (["-m", "magistrate", "check", "--exit-code", "invalid syntax"], 1, "invalid\n"),
    ],
)
def test_the_wheel_works_where_only_it_is_installed(
    installed: Path, words: list[str], code: int, expected: str
) -> None:
    done = run(installed, words)
    assert (done.returncode, done.stdout) == (code, expected.replace("{installed}", str(installed))), (
        done.stderr
    )


def test_help_and_judges_work_from_the_wheel(installed: Path) -> None:
    assert "Usage: " in run(installed, ["-m", "magistrate", "--help"]).stdout
    judges = run(installed, ["-m", "magistrate", "judges", "--json"])
    assert '"name": "faithfulness"' in judges.stdout, judges.stderr


def run(installed: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=installed.parent,
        capture_output=True,
        text=True,
        check=False,
    )


# --- the lock files ------------------------------------------------------------------------------

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?: ; (.+?))?(?: \\)?$", re.MULTILINE)


def pinned(name: str) -> dict[str, set[str]]:
    """Versions by package; one package may have several for different machines."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for package, version, _ in PINNED.findall(text):
        found.setdefault(canonicalize_name(package), set()).add(version)
    return found


def asked(*extras: str) -> Iterator[Requirement]:
    """What pyproject.toml asks for, with these extras."""
    optional = PROJECT["optional-dependencies"]
    for line in [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            yield from asked(*requirement.extras)
        else:
            yield requirement


def test_the_lock_files_cover_what_pyproject_asks_for() -> None:
    development = [Requirement(line) for line in PYPROJECT["dependency-groups"]["dev"]]
    for name, requirements in (
        ("requirements.lock", [*asked("local", "server")]),
        ("requirements-dev.lock", [*asked("all"), *development]),
    ):
        locked = pinned(name)
        for requirement in requirements:
            versions = locked.get(canonicalize_name(requirement.name), set())
            assert versions, f"{name} lacks {requirement.name}; run: make lock"
            assert all(requirement.specifier.contains(version) for version in versions), (
                f"{name} has {requirement.name} {versions}, not {requirement.specifier}; run: make lock"
            )


def test_what_is_tested_is_what_is_installed() -> None:
    tested = pinned("requirements-dev.lock")
    for package, versions in pinned("requirements.lock").items():
        assert tested[package] == versions


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_pin_has_a_hash_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(PINNED.findall(text)) > 20
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        if PINNED.match(block):
            assert "--hash=sha256:" in block, block
    assert "://" not in text


def test_the_extra_all_is_all_but_what_takes_gigabytes_or_needs_more() -> None:
    heavy = {"train", "transformers", "ray"}
    more = {"fsspec"}  # a package of the object store too
    extras = set(PROJECT["optional-dependencies"]) - {"all", *heavy, *more}
    (line,) = PROJECT["optional-dependencies"]["all"]
    assert Requirement(line).extras == extras


# --- what no file may name -----------------------------------------------------------------------

# Put together here, so that this file does not name them.
HOSTS = re.compile("|".join(["py" + r"pi\.org", "python" + r"hosted\.org", "np" + r"mjs\.(?:org|com)"]))
MACHINE = re.compile(r"(?<![\w.~$}/>-])/(?:root|work|home|Users|opt)/\w|[A-Z]:\\Users\\")


def named(text: str) -> list[str]:
    """Registry hosts and absolute paths of a machine that a text names."""
    return [found[0] for pattern in (HOSTS, MACHINE) for found in pattern.finditer(text)]


def test_no_file_names_a_registry_or_a_machine() -> None:
    texts = [name for name in files() if not name.endswith((".onnx", ".safetensors"))]
    found = {name: named((ROOT / name).read_text(encoding="utf-8")) for name in texts}
    assert {name: each for name, each in found.items() if each} == {}


def test_registries_and_machines_are_seen() -> None:
    assert named("see https://" + "py" + "pi.org/simple") == ["py" + "pi.org"]
    assert named("open('/" + "home/someone/x')") == ["/" + "home/s"]
    assert named("models/home/x, ~/work/x, https://a.example/work/x") == []
