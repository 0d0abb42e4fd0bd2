"""The JSON Schemas of YAML files accept what the readers accept, and editors find them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from magistrate import _yaml
from magistrate._yaml import SCHEMAS, parse_document, read_document, schema_path
from magistrate.judges.geval import criteria_text
from terminal import Call

ROOT = Path(__file__).resolve().parent.parent
JUDGES = ROOT / "src" / "magistrate" / "judges"
FILES = {
    "rules": [ROOT / "examples" / "watch" / "rules.yaml"],
    "judge": [*JUDGES.glob("builtin/*.yaml"), *JUDGES.glob("templates/*.yaml")],
    "recipe": [*(ROOT / "benchmarks" / "detector" / "stages").glob("*.yaml")],
}
WRONG = {
    "run": [
        "judges: [novelty]",
        "dataset: a.csv\njudge: [novelty]",
        "dataset: a.csv\nlimits: {deadline: -1}",
    ],
    "rules": ["rules: []", "rules: [{name: a, judges: [novelty], sample: 2}]"],
    "judge": [
        "inputs: [output]\nprompt: '{{ output }} {{ reply }}'",  # neither labels nor a schema
        "inputs: [output]\nprompt: x\nlabels: {a: 2, b: 0}",
        "kind: panel\nmembers: [novelty, detector]",
        "kind: jury\nmembers: [novelty, detector]\nties: true",
        "personas: {one: {role: judge, text: x}}",
    ],
    "steps": ["steps: [one]"],
    "recipe": ["examples: 10\nsources: [{name: a, share: 0}]"],
}


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema_path(name).read_text(encoding="utf-8")))


def test_schemas_accept_the_files_of_the_package_and_refuse_wrong_ones() -> None:
    assert WRONG.keys() == SCHEMAS.keys()
    for name in SCHEMAS:
        check = validator(name)
        check.check_schema(check.schema)
        texts = [read_document(path) for path in FILES.get(name, [])]
        if name == "run":
            texts.append(parse_document("dataset: a.csv\njudges: [novelty]", "run"))
        if name == "steps":
            texts.append(parse_document(criteria_text("Plain words.", ["Read it."], "a model"), "steps"))
        assert texts
        for document in texts:
            assert [each.message for each in check.iter_errors(document.values)] == [], document.name
        for text in WRONG[name]:
            assert not check.is_valid(parse_document(text, "wrong").values), text


def test_schemas_are_listed_and_printed(call: Call) -> None:
    listed: list[dict[str, Any]] = json.loads(call("schemas", "--json").out)
    assert [each["kind"] for each in listed] == list(SCHEMAS)
    for each in listed:
        assert call("schemas", each["kind"]).out == Path(each["path"]).read_text(encoding="utf-8")
        shown = call("schemas").out
        assert Path(each["path"]).name in shown and f"in {Path(each['path']).parent}\n" in shown
        assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert call("schemas", "runs").code == 2


def test_editors_are_told_of_a_schema_below_the_project_and_of_no_other(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "a.csv").write_text("context,output\nIt rains.,It rains.\n", encoding="utf-8")
    assert call("judges", "new", "tone", "--to", "mine").code == 0
    assert "yaml-language-server" not in (tmp_path / "mine" / "tone.yaml").read_text(encoding="utf-8")

    place = tmp_path / ".venv" / "magistrate"
    shutil.copytree(schema_path("run").parent, place / "schemas")
    monkeypatch.setattr(_yaml, "__file__", str(place / "_yaml.py"))
    assert call("init", "a.csv", "--no-ci").code == 0
    assert call("judges", "new", "tone", "--to", "mine", "--force").code == 0
    for path, name in ((tmp_path / "magistrate.yaml", "run"), (tmp_path / "mine" / "tone.yaml", "judge")):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        found = path.parent / first.removeprefix("# yaml-language-server: $schema=")
        assert found.resolve() == schema_path(name)
        assert validator(name).is_valid(read_document(path).values)
