"""The licences of a release in one file: of all dependencies, of the weights in the wheel, of code of others.

A licence that nobody has read is refused: `licences.toml` says which are known.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
KNOWN = Path(__file__).with_name("licences.toml")
DETECTORS = {  # their folders in the wheel, and the file of each that holds weights
    "magistrate/detectors/shipped": "model.safetensors",
    "magistrate/detectors/shipped_large": "update.safetensors",
}
JUDGE = "magistrate/engines/models/updates/smollm2-135m-judge"
LONGEST = 200  # characters: what is longer is the text of a licence, not its name


@dataclass(frozen=True, slots=True)
class Package:
    """A dependency: `licence` in SPDX's words, or None with what its metadata say in `told`."""

    name: str
    version: str
    licence: str | None
    told: str


def known() -> dict[str, Any]:
    """Return what `licences.toml` says."""
    return tomllib.loads(KNOWN.read_text(encoding="utf-8"))


def resolved(wheel: Path, extras: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metadata of all packages that a wheel brings with these extras; nothing is installed."""
    pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "--quiet", "install"]
    how = ["--dry-run", "--ignore-installed", "--report", "-", f"{wheel}[{','.join(extras)}]"]
    done = subprocess.run([*pip, *how], stdout=subprocess.PIPE, check=True)
    return [each["metadata"] for each in json.loads(done.stdout)["install"]]


def package(metadata: Mapping[str, Any], words: Mapping[str, str], read: Mapping[str, str]) -> Package:
    """Return a package with its licence: as a person read it, else as its metadata say."""
    name, version = canonicalize_name(metadata["name"]), str(metadata["version"])
    if name in read:
        return Package(name, version, read[name], "read in its licence file")
    told = list(_told(metadata))
    for text in told:
        try:
            return Package(name, version, canonicalize_license_expression(words.get(text, text)), text)
        except InvalidLicenseExpression:
            continue
    return Package(name, version, None, "; ".join(told) or "nothing")


def _told(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield what metadata say about the licence, the most exact first."""
    if metadata.get("license_expression"):
        yield metadata["license_expression"]
    field = " ".join(str(metadata.get("license") or "").split())
    if 0 < len(field) <= LONGEST:
        yield field
    for each in metadata.get("classifier", []):
        if each.startswith("License ::") and each != "License :: OSI Approved":
            yield each.rpartition(" :: ")[2]


def refused(each: Package, allowed: Sequence[str], of_extras: Sequence[str], *, plain: bool) -> str | None:
    """Return why a package cannot be released with, or None. `plain`: a plain install brings it."""
    if each.licence is None:
        return f"{each.name} {each.version}: no known licence; its metadata say: {each.told}"
    # With OR one of the licences is enough; parentheses are read as the strictest case, all of them.
    expression = each.licence.replace("(", "").replace(")", "")
    for choice in (
        expression.split(" OR ") if "(" not in each.licence else [expression.replace(" OR ", " AND ")]
    ):
        parts = choice.split(" AND ")
        if all(part in allowed or (not plain and part in of_extras) for part in parts):
            return None
    where = "a plain install" if plain else "an extra"
    return f"{each.name} {each.version}, of {where}: {each.licence} is not among the known licences"


def untold_sources(manifest: Mapping[str, Any], training: Mapping[str, str]) -> list[str]:
    """Return what speaks against handing on a detector's weights: sources and recipes that say too little."""
    wrong, recipe = [], manifest["recipe"]
    while recipe:
        mixture = recipe.get("data", {}).get("mixture", {})
        if mixture and not mixture["shipped_only"]:
            wrong.append(f"{manifest['name']}: a recipe read rows that do not let weights be handed on")
        names = [each["name"] for each in mixture.get("sources", [])]
        wrong += [
            f"{manifest['name']}: no licence is known of {name}" for name in names if name not in training
        ]
        recipe = recipe["base"].get("recipe")
    return list(dict.fromkeys(wrong))


def base_of(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    """Return name and sha256 of the weights that a detector's first training began with."""
    recipe = manifest["recipe"]
    while "recipe" in recipe["base"]:
        recipe = recipe["base"]["recipe"]
    found: Mapping[str, str] = recipe["base"]
    return found


ENCODER = (
    "import json, sys; from magistrate.detectors.encoders import encoder; found = encoder(sys.argv[1]); "
    "print(json.dumps(found and [found.publisher, found.licence]))"
)


def weights(installed: Path, python: Path, training: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the lines on the weights in the wheel, and what speaks against handing them on."""
    lines: list[str] = []
    wrong: list[str] = []
    for folder, name in DETECTORS.items():
        told, against = weights_of(installed, f"{folder}/{name}", python, training)
        lines += ["", *told] if lines else told
        wrong += against
    told, against = weights_of_judge(installed, training)
    return [*lines, "", *told], [*wrong, *against]


def weights_of(
    installed: Path, path: str, python: Path, training: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the lines on the weights of one detector, and what speaks against handing them on."""
    file = installed / path
    manifest = json.loads((file.parent / "detector.json").read_text(encoding="utf-8"))
    wrong, base = untold_sources(manifest, training), base_of(manifest)
    asked = subprocess.run([python, "-c", ENCODER, base["sha256"]], stdout=subprocess.PIPE, check=True)
    encoder = json.loads(asked.stdout)
    if encoder is None:
        return [], [*wrong, f"{manifest['name']}: no licence is known of its base, {base['name']}"]
    used = {each: training[each] for each in manifest["trained_on"] if each in training}
    wrong += [f"{manifest['name']}: no licence is known of {each}" for each in manifest["trained_on"]
              if each not in training]  # fmt: skip
    publisher, licence = encoder
    made_from = f"{publisher} ({licence})"
    return _weights(path, manifest["name"], made_from, base["sha256"], used), list(dict.fromkeys(wrong))


def weights_of_judge(installed: Path, training: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the lines on the update of a language model, and what speaks against handing it on."""
    recipe = json.loads((installed / JUDGE / "recipe.json").read_text(encoding="utf-8"))
    base, name = recipe["base"], recipe["name"]
    wrong = untold_sources({"name": name, "recipe": recipe}, training)
    if not base["licence"]:
        wrong.append(f"{name}: no licence is known of its base, {base['name']}")
    sources = [each["name"] for each in recipe["data"]["mixture"]["sources"]]
    used = {each: training[each] for each in sources if each in training}
    made_from = f"{base['name']} ({base['licence']})"
    return _weights(f"{JUDGE}/update.safetensors", name, made_from, base["sha256"], used), wrong


def _weights(path: str, name: str, made_from: str, sha256: str, used: Mapping[str, str]) -> list[str]:
    return [
        f"`{path}` ({name}) is under Apache-2.0, as the package is.",
        f"It was trained from {made_from}, sha256 `{sha256}`, on:",
        "",
        *_table(["source", "what it states"], [list(each) for each in sorted(used.items())]),
    ]


def write(
    path: Path,
    title: str,
    wheel: Path,
    extras: Sequence[str],
    plain: Mapping[str, str],
    python: Path,
    site: Path,
) -> list[str]:
    """Write the licences file. Returns what is refused, one line each.

    `plain` are the packages of a plain install with their versions, `python` its Python, `site` the folder
    that the wheel was installed to.
    """
    said = known()
    packages = [package(each, said["words"], said["packages"]) for each in resolved(wheel, extras)]
    packages = sorted((each for each in packages if each.name != "magistrate"), key=lambda each: each.name)
    missing = plain.keys() - {each.name for each in packages} - {"magistrate"}
    wrong = [f"{name}: a plain install brings it, but its licence was not asked" for name in sorted(missing)]
    for each in packages:
        why = refused(each, said["allowed"], list(said["extras"]), plain=each.name in plain)
        wrong += [] if why is None else [why]
    trained, not_told = weights(site, python, said["training"])
    rows = [
        [each.name, each.version, each.licence or "unknown", "yes" if each.name in plain else "an extra"]
        for each in packages
    ]
    vendored = [[str(each.relative_to(site)), " ".join(each.read_text(encoding="utf-8").split()[:12]) + " …"]
                for each in sorted((site / "magistrate").rglob("*.LICENSE"))]  # fmt: skip
    lines = [
        f"# Licences of {title}",
        "",
        "Magistrate is under Apache-2.0. What it needs has these licences, by the metadata of each package.",
        "",
        *_table(["package", "version", "licence", "in a plain install"], rows),
        "",
        "Licences of extras alone: "
        + "; ".join(f"{name} ({why})" for name, why in said["extras"].items())
        + ".",
        "",
        "## Weights in the wheel",
        "",
        *trained,
        "",
        "## Code of others in the wheel",
        "",
        *_table(["licence", "it begins"], vendored),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return wrong + not_told


def _table(columns: list[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *rows)]
