"""Run files: what they can say, what is said of their mistakes, and that a run gives one that repeats it."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

import magistrate
from magistrate import Run, ScriptedEngine
from magistrate._yaml import schema_path
from magistrate.api import evaluate as evaluation
from magistrate.cli.run import command
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.runs.options import (
    CACHE,
    DATA,
    ENGINE,
    FAILURES,
    LIMITS,
    NAME,
    PRICE,
    RUN,
    SHARD,
    TAGS,
    WORKERS,
)
from magistrate.runs.prepare import Overrides, prepare
from magistrate.runs.resume import spec_of
from magistrate.runs.spec import DataPart, EnginePart, LimitsPart, RunSpec, judges_of, read_spec
from magistrate.store import Store

ALL = """\
name: nightly
tags: [rag, nightly]
dataset:
  source: answers.jsonl
  map:
    context: docs
  sample: 2
  seed: 7
judges:
  - faithfulness
  - rubric: {most: 2, free_stage: false}
  - tone.yaml
engines:
  default: {threads: 1, price: 0.15/0.60}
limits:
  concurrency: 4
  deadline: 60
  give_up_after: 5
  max_tokens: 100000
  max_seconds: 3600
  max_cost: 2.5
  max_failures: 0.2
gates:
  - coverage>=0.98
  - faithfulness.accuracy>=0.1
cache: false
"""
TONE = """\
name: tone
inputs: [output]
prompt: |
  Is this kind? {{ output }}
  {{ reply }}
labels: {faithful: 0, hallucinated: 1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"id": f"s{n}", "output": f"o {n}", "docs": ["c"], "label": "faithful"} for n in range(6)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tone.yaml").write_text(TONE)
    return tmp_path


def told(folder: Path, text: str) -> RunSpec:
    path = folder / "run.yaml"
    path.write_text(text)
    return read_spec(path)[0]


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda prompt: {"faithful": 0.7, "hallucinated": 0.3})


def run(spec: RunSpec, store: Path) -> Run:
    return evaluation.run(spec, Overrides(model=engine()), store=store)


def test_a_run_file_says_everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = told(folder, ALL)
    assert spec.dataset.source == str(folder / "answers.jsonl")
    assert (spec.dataset.map, spec.dataset.sample, spec.dataset.seed) == ({"context": "docs"}, 2, 7)
    assert spec.judges == ["faithfulness", "rubric:most=2,free_stage=false", str(folder / "tone.yaml")]
    assert [judge.info.name for judge in judges_of(spec)] == [
        "faithfulness",
        "rubric:most=2,free_stage=false",
        "tone",
    ]
    assert (spec.engine.threads, spec.engine.price) == (1, "0.15/0.60")
    limits = spec.limits.limits()
    assert (limits.concurrency, limits.deadline, limits.give_up_after) == (4, 60, 5)
    assert (limits.max_tokens, limits.max_seconds, limits.max_cost) == (100_000, 3600, 2.5)
    assert (spec.limits.max_failures, spec.cache, spec.name) == (0.2, False, "nightly")
    assert (spec.tags, spec.gates) == (["rag", "nightly"], ["coverage>=0.98", "faithfulness.accuracy>=0.1"])


def test_the_judges_of_a_file_are_built_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "run.yaml").write_text(
        "dataset: {source: answers.jsonl, map: {context: docs}}\njudges: [novelty, exact]\n"
    )
    built, make = [], registry.judge

    def count(spec: Any, *rest: Any, **options: Any) -> Any:
        built.append(spec)
        return make(spec, *rest, **options)

    monkeypatch.setattr(registry, "judge", count)
    run = ["--spec", "run.yaml", "--store", "runs.db"]
    for more, expected in (
        ([], ["novelty", "exact"]),
        (["--limit", "2"], ["novelty", "exact"]),
        (["--judge", "novelty"], ["novelty", "exact", "novelty"]),
    ):
        built.clear()
        assert command.main([*run, *more], standalone_mode=False) in (0, 3)
        assert built == expected, more


def test_little_needs_to_be_said(folder: Path) -> None:
    spec = told(folder, "dataset: quickstart\n")
    assert (spec.dataset.source, spec.judges) == ("quickstart", [DEFAULT_JUDGE])
    assert spec.plain() == {"judges": [DEFAULT_JUDGE], "dataset": {"source": "quickstart"}}
    assert told(folder, "dataset: quickstart\njudges: rubric\ntags: a\n").tags == ["a"]


def test_judges_in_options_are_found_beside_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    spec = told(folder, "dataset: quickstart\njudges: [{windows: {of: tone.yaml, tokens: 900}}]\n")
    [judge] = judges_of(spec)
    assert judge.of.info.name == "tone"  # type: ignore[attr-defined]
    assert spec.judges == [f"windows:of=({folder / 'tone.yaml'}),tokens=900"]


def test_an_options_value_stays_one(folder: Path) -> None:
    with pytest.raises(SpecError, match="a,permute=true"):
        told(folder, "dataset: quickstart\njudges: [{faithfulness: {prior: 'a,permute=true'}}]\n")
    assert told(folder, "dataset: quickstart\njudges: [{faithfulness: {}}]\n").judges == ["faithfulness"]


def test_one_engine_can_be_named_for_a_role(folder: Path, model_folder: Path) -> None:
    spec = told(
        folder,
        "dataset: quickstart\njudges: [rubric:extractor=small]\n"
        f"engines:\n  small: {{model: {json.dumps(str(model_folder))}, threads: 1}}\n",
    )
    [judge] = judges_of(spec)
    assert judge.extractor.info.name == "local"  # type: ignore[attr-defined]
    assert judge.extractor.threads == 1  # type: ignore[attr-defined]


def test_a_model_that_was_tuned_for_a_judge_is_used_if_none_is_named(folder: Path) -> None:
    (folder / "tone.yaml").write_text(TONE + "model: tuned/tone.gguf\n")
    for named, wanted in (
        ("", "tuned/tone.gguf"),
        ("engines: {default: {model: no/such.gguf}}\n", "no/such"),
    ):
        spec = told(folder, f"dataset: quickstart\njudges: [tone.yaml, rubric]\n{named}")
        with pytest.raises(SpecError, match=wanted):
            prepare(spec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("judges: [faithfulness]\n", "run.yaml, line 1, dataset: is missing"),
        ("dataset: quickstart\njudgs: [rubric]\n", "line 2, judgs: unknown key; did you mean 'judges'?"),
        (
            "dataset: quickstart\njudges:\n- faithfulness\n- rubrik\n",
            "line 4, judges.1: unknown judge 'rubrik'",
        ),
        ("dataset: quickstart\njudges: []\n", "line 2, judges: must be a list of at least 1"),
        ("dataset: quickstart\njudges: [rubric, rubric]\n", "judges.1: 'rubric' is given twice"),
        ("dataset: quickstart\njudges: [rubric:mots=2]\n", "judges.0: unknown option 'mots'"),
        ("dataset:\n  source: quickstart\n  limit: 0\n", "line 3, dataset.limit: must be at least 1; got 0"),
        (
            "dataset:\n  source: quickstart\n  limt: 3\n",
            "line 3, dataset.limt: unknown key; did you mean 'limit'?",
        ),
        (
            "dataset:\n  source: a.jsonl\n  limit: 3\n  sample: 2\n",
            "line 1, dataset: limit takes the first rows",
        ),
        ("dataset:\n  source: a.jsonl\n  map: {contxt: x}\n", "line 3, dataset.map: unknown field 'contxt'"),
        ("dataset: quickstart\ngates:\n- f2>=0.5\n", "line 3, gates.0: write a gate as METRIC>=VALUE"),
        (
            "dataset: quickstart\ngates: [rubric.f1>=0.5]\n",
            "gates.0: the gate 'rubric.f1>=0.5' matches no judge",
        ),
        ("dataset: quickstart\nlimits: {max_tokens: many}\n", "limits.max_tokens: must be a whole number"),
        ("dataset: quickstart\nlimits: {max_cost: .nan}\n", "limits.max_cost: must be a finite number"),
        (
            "dataset: quickstart\nlimits:\n  deadline: 0\n",
            "line 3, limits.deadline: must be more than 0; got 0",
        ),
        (
            "dataset: quickstart\nengines: {default: {price: cheap}}\n",
            "engines.default.price: write a price as",
        ),
        ("dataset: quickstart\nengines: {default: {threads: two}}\n", "threads: must be a whole number"),
        (
            "dataset: x\nengines: {small: {price: 1/2}}\n",
            "engines.small.price: only 'default' can have a price",
        ),
        ("dataset: quickstart\ncache: maybe\n", "line 2, cache: must be true or false; got 'maybe'"),
        ("- quickstart\n", "must be lines of 'key: value'"),
        ("", "must be lines of 'key: value', but is empty"),
        ("dataset: [quickstart\n", "not YAML"),
    ],
)
def test_a_mistake_is_said_with_its_line(folder: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        told(folder, text)
    assert message in str(refused.value)


def test_the_schema_says_what_is_read(folder: Path) -> None:
    schema = json.loads(schema_path("run").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    yaml: Any = YAML(typ="safe", pure=True)
    good = [ALL, "dataset: quickstart\n", "dataset: quickstart\njudges: rubric\ntags: a\n"]
    assert all(check.is_valid(yaml.load(text)) for text in good)
    bad = ["judges: []\n", "dataset: quickstart\njudgs: 1\n", "dataset: {source: x, limit: 0}\n"]
    assert not any(check.is_valid(yaml.load(text)) for text in bad)


# --- replayed -------------------------------------------------------------------------------------


def test_what_is_stored_with_a_run_repeats_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magistrate.runs.prepare.engine_of", lambda part, **_: engine())
    store = folder / "runs.db"
    spec = told(folder, ALL.replace("  - rubric: {most: 2, free_stage: false}\n", ""))
    first = evaluation.run(spec, store=store)
    stored = spec_of(first.record)
    assert stored.dataset.digest == first.record.dataset_digest
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    again = told(elsewhere, stored.yaml())
    assert again == stored
    second = evaluation.run(again, store=store)
    assert second.record.dataset_digest == first.record.dataset_digest
    assert second.record.recipes == first.record.recipes
    assert [each.id for each in second.samples()] == [each.id for each in first.samples()]
    assert second.record.tags == ("nightly", "rag")


def test_other_data_is_not_taken_for_that_of_the_run(folder: Path) -> None:
    store = folder / "runs.db"
    first = run(told(folder, "dataset: {source: answers.jsonl, map: {context: docs}}\n"), store)
    spec = RunSpec.model_validate(first.record.settings["spec"])
    with (folder / "answers.jsonl").open("a") as stream:
        stream.write(json.dumps({"output": "new", "docs": "c"}) + "\n")
    with pytest.raises(SpecError, match=r"answers has changed: its sha256 is"):
        run(spec, store)


def test_a_stored_set_is_named_with_its_version(folder: Path) -> None:
    from magistrate.datasets import load

    place = folder / "runs.db"
    with Store.open(place) as store:
        store.add_dataset("refunds", load(folder / "answers.jsonl"), source="answers.jsonl")
    first = run(told(folder, "dataset: refunds\n"), place)
    assert first.record.dataset_version == "refunds@1"
    assert first.record.settings["spec"]["dataset"]["source"] == "refunds@1"
    with Store.open(place) as store:
        store.add_dataset("refunds", list(load(folder / "answers.jsonl"))[:3], source="answers.jsonl")
    second = run(RunSpec.model_validate(first.record.settings["spec"]), place)
    assert second.record.n_samples == 6, "the version that the first run judged"
    assert run(told(folder, "dataset: refunds\n"), place).record.n_samples == 3


def test_a_run_of_objects_says_what_cannot_be_written_down(folder: Path) -> None:
    made = run(told(folder, "dataset: {source: answers.jsonl, map: {context: docs}}\n"), folder / "runs.db")
    with pytest.raises(
        SpecError, match="was started in Python, and its model cannot be written to a run file"
    ):
        spec_of(made.record)


# --- declared once ----------------------------------------------------------------------------------


def keys(part: type[BaseModel]) -> dict[str, FieldInfo]:
    return dict(part.model_fields)


def arguments(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(function).parameters.items()}


def test_keys_of_a_run_file_have_the_type_and_default_of_their_options() -> None:
    parts = ((DataPart, DATA), (EnginePart, (*ENGINE, PRICE)), (LimitsPart, (*LIMITS, FAILURES)))
    for part, options in parts:
        assert set(keys(part)) - {"source", "digest"} == {option.name for option in options}
        for option in options:
            key = keys(part)[option.name]
            kind = dict[str, str] if option.type is dict else option.type
            assert key.annotation == (kind | None if option.default is None else kind), option.name
            assert (key.default, key.description) == (option.default, option.help)


def test_arguments_in_python_are_the_options_of_a_run() -> None:
    asked = arguments(magistrate.evaluate)
    named = {"map": "mapping"}
    for option in (*DATA, *ENGINE, PRICE, NAME, TAGS, CACHE, WORKERS, SHARD):
        default = asked[named.get(option.name, option.name)]
        assert default == option.default or not (default or option.default), option.name
    limits = {field.name: field.default for field in dataclasses.fields(magistrate.Limits)}
    assert limits == {option.name: option.default for option in LIMITS}
    for call in (magistrate.judge, magistrate.generate):
        given = arguments(call)
        assert all(given[option.name] is None for option in ENGINE), call


def test_flags_of_the_command_line_are_the_options_of_a_run() -> None:
    flags = {each.name: each for each in command.params if isinstance(each, click.Option)}
    for option in (*DATA, *ENGINE, PRICE, *LIMITS, FAILURES, *RUN):
        flag = flags["mapping" if option.name == "map" else option.name]
        assert flag.help == option.help
        assert f"--{(option.flag or option.name).replace('_', '-')}" in flag.opts
