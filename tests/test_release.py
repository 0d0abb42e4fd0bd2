"""What `make release` refuses: an unready changelog, files not committed, licences that nobody has read."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of release/ by its name; they import each other as scripts do."""
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    for name in ("make", "smoke", "licences"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module


def test_a_release_needs_a_section_of_its_own(script: Any) -> None:
    unready = script("make").unready
    ready = "# Changes\n\n## Unreleased\n\n## 0.2.0 (2026-11-30)\n\n- One.\n\n## 0.1.0\n\n- Zero.\n"
    assert list(unready("0.2.0", ready)) == []
    for version, changelog, message in (
        ("0.2.0", "## Unreleased\n\n- One.\n", "no section '## 0.2.0'"),
        ("0.2.0", "## 0.2.0\n\n## 0.1.0\n\n- Zero.\n", "no section '## 0.2.0'"),
        (
            "0.2.0",
            ready.replace("## Unreleased\n", "## Unreleased\n\n- Two.\n"),
            "under 'Unreleased' (1)",
        ),
        ("0.1.0", ready, "has 0.2.0 above 0.1.0"),
    ):
        assert any(message in each for each in unready(version, changelog)), (version, changelog)


def test_the_version_has_one_place(script: Any) -> None:
    from magistrate._version import __version__

    assert script("make").version() == __version__
    assert list(script("make").unready("9.9.9", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))


def test_a_file_that_is_not_committed_is_seen(script: Any) -> None:
    make = script("make")
    committed = {"pyproject.toml", "src/magistrate/a.py"}
    info = {f"magistrate-1.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}
    good = {"magistrate/a.py", *info, "magistrate-1.dist-info/licenses/LICENSE"}
    assert list(make.foreign(good, committed, "1")) == []
    assert list(make.foreign({*good, "magistrate/site/index.html"}, committed, "1")) == []
    (said,) = make.foreign({*good, "magistrate/.env"}, committed, "1")
    assert said == "the wheel holds magistrate/.env, which is not committed"
    assert list(make.foreign(good - {"magistrate/a.py"}, committed, "1")) == [
        "the wheel lacks magistrate/a.py"
    ]
    assert list(make.foreign_in_source({"PKG-INFO", "src/magistrate/a.py"}, committed)) == []
    assert len(list(make.foreign_in_source({"runs.db"}, committed))) == 1


def test_licences_are_read_from_metadata_and_unknown_ones_refused(script: Any) -> None:
    licences = script("licences")
    known = licences.known()

    def read(**metadata: Any) -> Any:
        return licences.package(
            {"name": "Pack_Age", "version": "1", **metadata}, known["words"], known["packages"]
        )

    def refused(plain: bool = True, **metadata: Any) -> Any:
        return licences.refused(read(**metadata), known["allowed"], list(known["extras"]), plain=plain)

    for metadata in (
        {"license_expression": "MIT AND Apache-2.0 WITH LLVM-exception"},
        {"license_expression": "GPL-3.0-only OR MIT"},
        {"license": "Apache 2.0 License"},
        {"license": "The text of a licence. " * 50, "classifier": ["License :: OSI Approved :: MIT License"]},
    ):
        assert refused(**metadata) is None, metadata
    for metadata, message in (
        ({}, "its metadata say: nothing"),
        ({"license": "see LICENSE"}, "its metadata say: see LICENSE"),
        (
            {"classifier": ["License :: OSI Approved :: BSD License"]},  # of two or three clauses?
            "BSD License",
        ),
        ({"license_expression": "AGPL-3.0-only"}, "AGPL-3.0-only is not among"),
        ({"license_expression": "(MIT OR GPL-3.0-only) AND ISC"}, "is not among"),
        ({"license_expression": "LGPL-3.0-only"}, "of a plain install"),
    ):
        assert message in refused(**metadata), metadata
    assert refused(plain=False, license_expression="LGPL-3.0-only") is None


@pytest.mark.parametrize("name", ["shipped", "shipped_large"])
def test_every_source_of_the_shipped_weights_has_a_licence(script: Any, name: str) -> None:
    licences = script("licences")
    training = licences.known()["training"]
    (path,) = (
        ROOT / "src" / each / "detector.json" for each in licences.DETECTORS if each.endswith(f"/{name}")
    )
    manifest = json.loads(path.read_text(encoding="utf-8"))
    assert licences.untold_sources(manifest, training) == []
    assert set(manifest["trained_on"]) <= training.keys()
    some = manifest["trained_on"][0]
    fewer = {name: said for name, said in training.items() if name != some}
    assert licences.untold_sources(manifest, fewer) == [f"{manifest['name']}: no licence is known of {some}"]
    manifest["recipe"]["data"]["mixture"]["shipped_only"] = False
    assert len(licences.untold_sources(manifest, training)) == 1


def test_every_source_of_the_shipped_update_has_a_licence(script: Any) -> None:
    licences = script("licences")
    training = licences.known()["training"]
    lines, wrong = licences.weights_of_judge(ROOT / "src", training)
    assert wrong == [] and "smollm2-135m-instruct (Apache-2.0)" in lines[1]
    assert sum(line.startswith("| ") for line in lines) > 40  # one source each
    _, wrong = licences.weights_of_judge(ROOT / "src", {})
    assert "smollm2-135m-judge: no licence is known of short-1" in wrong


def test_a_python_that_is_not_here_is_named(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = script("smoke")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr(smoke, "_places", lambda version: ["/nowhere/python", sys.executable])
    found = smoke.pythons()
    assert list(found) == ["3.11", "3.12", "3.13", "3.14"]
    assert found == {**dict.fromkeys(found), here: sys.executable}
