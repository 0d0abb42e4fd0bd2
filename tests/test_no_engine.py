"""Judges of code ask no engine: none is loaded for them, looked for or written down."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import magistrate
from lean import installed
from magistrate import Limits, Run, ScriptedEngine, guard
from magistrate.engines.none import NO_MODEL, NONE
from magistrate.errors import CapabilityError, SpecError
from magistrate.judges import registry
from magistrate.runs.resume import recipe_differences
from magistrate.testing import assert_faithful
from magistrate.types import Failure, Prompt, Recipe, Verdict
from terminal import Call

ROWS = [
    {
        "id": f"s{n}",
        "output": "true" if n % 2 else "false",
        "context": "c",
        "label": ("hallucinated", "faithful")[n % 2],
    }
    for n in range(8)
]


@pytest.fixture(autouse=True)
def lean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[None]:
    """The judges of `lean`, and no engine on this machine."""

    def made(*_: Any, **__: Any) -> Any:
        raise AssertionError("an engine was made")

    monkeypatch.setattr("magistrate.engines.embedded.engine.LocalEngine", made)
    with installed(tmp_path / "site", monkeypatch):
        yield


@pytest.fixture
def rows(tmp_path: Path) -> str:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return "rows.jsonl"


# --- nothing is loaded ----------------------------------------------------------------------------


def test_every_way_to_judge_goes_without_an_engine(rows: str) -> None:
    verdict = magistrate.judge(output="true", context="c", judge="plain")
    assert isinstance(verdict, Verdict) and verdict.label == "faithful"
    run = magistrate.evaluate(rows, "plain", progress=False)
    assert run.summary().judges[0].n_ok == len(ROWS)
    assert assert_faithful("true", context="c", judge="plain").label == "faithful"

    @guard(judge="plain")
    def answer() -> dict[str, str]:
        return {"answer": "true", "context": "c"}

    assert answer()["answer"] == "true"


def test_the_command_line_goes_without_an_engine(call: Call, rows: str) -> None:
    assert "faithful" in call("judge", "--output", "true", "--judge", "plain").out
    assert call("run", rows, "--judge", "plain", "--gate", "coverage>=1").code == 0
    assert call("run", rows, "--judge", "plain", "--dry-run").code == 0
    assert call("judges", "try", "plain", "--sample", rows).code == 0
    assert call("audit", "plain", "--data", rows, "--check", "repeated").code == 0


def test_a_run_that_was_cut_short_goes_on_without_an_engine(call: Call, rows: str, home: Path) -> None:
    limits = Limits(max_seconds=1e-6, concurrency=1)
    run = magistrate.evaluate(rows, "plain", progress=False, limits=limits)
    assert run.record.status == "interrupted"
    assert call("resume", "last", "--max-seconds", 60).code == 0
    assert Run("last", home / "magistrate.db").record.n_verdicts == len(ROWS)
    failing = magistrate.evaluate(ROWS, "asks", progress=False)
    assert magistrate.retry(failing.id, progress=False).record.n_failures == len(ROWS)


def test_no_library_of_the_engine_is_imported(rows: str, home: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv = ['magistrate', 'run', 'rows.jsonl', '--judge', 'plain']\n"
        "import magistrate.cli\n"
        "try:\n    magistrate.cli.main()\n"
        "finally:\n    print([name for name in ('openvino', 'openvino_genai', 'tokenizers', 'llguidance') "
        "if name in sys.modules])\n"
    )
    path = os.pathsep.join([str(tmp_path / "site"), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[]\n")


# --- what is written down -------------------------------------------------------------------------


def test_the_recipe_says_that_no_model_was_asked(rows: str) -> None:
    run = magistrate.evaluate(rows, "plain:word=x", progress=False)
    recipe = run.record.recipes["plain:word=x"]
    assert (recipe.model, recipe.fingerprint, run.record.model) == (NO_MODEL, "", NO_MODEL)
    assert " model=none prompt=" in recipe.line()


def test_beside_a_judge_that_asks_only_that_one_has_a_model(rows: str) -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 1.0}, name="script")
    run = magistrate.evaluate(rows, ["plain", "faithfulness"], model=engine, progress=False)
    recipes = run.record.recipes
    assert (recipes["plain"].model, recipes["faithfulness"].model) == (NO_MODEL, "script")
    assert run.record.model == "script"
    assert len(engine.prompts) == len(ROWS)


def test_an_engine_that_is_given_is_not_asked_and_need_not_be_given_again(rows: str) -> None:
    engine = ScriptedEngine([])
    limits = Limits(max_seconds=1e-6, concurrency=1)
    with pytest.warns(UserWarning, match="needs no model"):
        run = magistrate.evaluate(rows, "plain", model=engine, progress=False, limits=limits)
    done = magistrate.resume(run.id, progress=False, limits=Limits())
    assert done.record.status == "done" and engine.prompts == []


def test_a_run_from_before_goes_on_where_only_the_model_of_a_judge_of_code_is_another() -> None:
    now = Recipe("plain@1", NO_MODEL, "", "", "", 0, 8, "0.1.0")
    then = replace(now, model="smollm2", fingerprint="f" * 64)
    assert list(recipe_differences({"plain": then}, {"plain": now})) == []
    assert list(recipe_differences({"plain": now}, {"plain": then}))
    assert list(recipe_differences({"plain": replace(then, prompt="x")}, {"plain": now}))


def test_a_limit_on_dollars_needs_no_price(rows: str) -> None:
    run = magistrate.evaluate(rows, "plain", limits=Limits(max_cost=1), progress=False)
    assert run.record.n_verdicts == len(ROWS)


# --- what asks all the same -----------------------------------------------------------------------


def test_no_engine_answers_nothing() -> None:
    prompt = Prompt.of("Is it?")
    for asked in (
        NONE.count(prompt),
        NONE.generate(prompt),
        NONE.choose(prompt, []),
        NONE.likelihood(prompt, "x"),
    ):
        with pytest.raises(CapabilityError, match="no model was loaded"):
            asyncio.run(asked)


def test_a_judge_that_asks_against_its_word_fails_and_says_why() -> None:
    outcome = magistrate.judge(output="true", judge="asks")
    assert isinstance(outcome, Failure) and "kind='llm'" in outcome.message


def test_a_judge_of_code_that_needs_an_engine_gets_one() -> None:
    info = registry.judge("plain").info
    assert not info.asks
    assert replace(info, needs=frozenset({"choose"})).asks
    assert replace(info, kind="llm").asks


def test_a_model_that_is_named_for_nothing_is_told(call: Call, rows: str) -> None:
    default = "smollm2-135m-instruct"
    for words in (("run", rows), ("judge", "--output", "true")):
        done = call(*words, "--judge", "plain", "--model", default, "--threads", 1)
        assert done.code == 0
        assert "plain: needs no model; ignored: --model, --threads" in done.err
    assert "note" not in call("run", rows, "--judge", "plain").err
    wrong = call("run", rows, "--judge", "plain", "--model", "smollm")
    assert (wrong.code, "unknown model 'smollm'" in wrong.err) == (2, True)


# --- judges that lie in folders -------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder of a shelf, in another folder."""
    folder = tmp_path / "some" / "words"
    folder.mkdir(parents=True)
    (folder / "shelf.txt").write_text("false")
    return folder


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("shelf:some/words", "shelf:words"),
        ("shelf:./some/words/", "shelf:words"),
        ("shelf:some/other/../words", "shelf:words"),
        ("shelf:(some/words)", "shelf:words"),
        ("shelf:{whole}", "shelf:words"),
        ("shelf:~/some/words", "shelf:words"),
        ("shelf:some/words,threshold=.4", "shelf:words,threshold=.4"),
        ("shelf:threshold=.4,folder={whole}", "shelf:threshold=.4,folder=words"),
    ],
)
def test_a_folder_is_an_option_that_needs_no_name(
    words: str, name: str, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "some" / "other").mkdir()
    found: Any = registry.judge(words.format(whole=shelf))
    assert found.folder.resolve() == shelf
    assert found.info.name == name
    assert found.threshold == (0.4 if "threshold" in words else 0.5)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    for name in ("lr=1,n=2", "a:b", "with space", "ünï 😀", "model.json"):
        (tmp_path / "x" / name).mkdir(parents=True)
        (tmp_path / "x" / name / "shelf.txt").write_text("w")
        found: Any = registry.judge(f"shelf:(x/{name})")
        assert found.folder.name == name
        assert str(tmp_path) not in found.info.name and name in found.info.name
    assert registry.judge("shelf:x/model.json").info.name == "shelf:model.json"


@pytest.mark.parametrize(
    "words",
    [
        "around:of=(shelf:some/words)",
        "around:of=shelf:some/words",
        "around:of=(around:of=(shelf:some/words))",
        "around:of=(around:of=shelf:folder=some/words)",
        "shelf:some/words",
        "shelf:threshold=.3,folder=some/words",
    ],
)
def test_a_run_is_named_without_paths_and_goes_on_from_anywhere(
    words: str, shelf: Path, call: Call, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("run", rows, "--judge", words, "--max-seconds", 1e-6, "--concurrency", 1).code == 3
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = call("resume", "last", "--max-seconds", 60)
    assert done.code == 0, done.err
    record = Run("last", tmp_path / "home" / "magistrate.db").record
    assert record.status == "done" and record.n_verdicts == len(ROWS)
    (name,) = record.recipes
    assert str(tmp_path) not in name and "some" not in name and "words" in name
    assert str(tmp_path) not in record.recipes[name].line()
    assert str(shelf) in call("runs", "spec", "last").out


def test_what_the_folder_holds_pins_the_run(shelf: Path, call: Call, rows: str) -> None:
    call("run", rows, "--judge", "shelf:some/words", "--max-seconds", 1e-6, "--concurrency", 1)
    (shelf / "shelf.txt").write_text("true")
    done = call("resume", "last", "--max-seconds", 60)
    assert done.code == 2 and "shelf:words's prompt was" in done.err


def test_a_run_file_names_folders_from_where_it_lies(shelf: Path, call: Call, rows: str) -> None:
    file = shelf.parent / "run.yaml"
    file.write_text(
        "dataset: ../rows.jsonl\njudges:\n- shelf:words\n- {shelf: {folder: words, threshold: 0.3}}\n"
    )
    done = call("run", "--spec", file, "--json")
    assert done.code == 0, done.err
    assert set(done.data["judges"]) == {"shelf:words", "shelf:folder=words,threshold=0.3"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("shelf:nowhere", r"needs a folder, but .*nowhere does not exist; use shelf:FOLDER"),
        ("shelf:rows.jsonl", r"rows\.jsonl is a file"),
        ("shelf:empty", r"empty is not the folder of a shelf: it has no shelf\.txt$"),
        (
            "rack:some/words",
            r"no rack\.txt; it is a folder of shelf:.*some/words",
        ),
        ("some/words", r"unknown judge 'some/words'.*there is a folder: use shelf:some/words"),
        ("shelf:some/words,folder=some/words", "an option is set twice"),
        ("shelf:some/words,treshold=.4", "unknown option 'treshold' of judge 'shelf'"),
        ("plain:some/words", "write options of a judge as NAME:key=value"),
    ],
)
def test_what_is_no_folder_of_the_judge_is_told(
    words: str, told: str, shelf: Path, rows: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=told):
        registry.judge(words)


def test_without_its_folder_a_judge_cannot_judge() -> None:
    with pytest.raises(SpecError, match="lies in a folder: shelf:FOLDER"):
        magistrate.judge(output="x", judge="shelf")


def test_one_output_can_be_held_against_what_is_expected(call: Call) -> None:
    for expected, label in (("Bern", "match"), ("Basel", "mismatch")):
        found = magistrate.judge(output="Bern", expected=expected, judge="exact")
        assert isinstance(found, Verdict) and found.label == label
        done = call("judge", "--output", "Bern", "--expected", expected, "--judge", "exact", "--json")
        assert done.data["label"] == label


def test_a_model_that_nobody_asks_is_told_of(home: Path) -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 1.0, "hallucinated": 0.0}, name="idle")
    row = {"output": "Entry is free.", "context": "Entry costs nine euros."}
    with pytest.warns(UserWarning, match="novelty needs no model"):
        magistrate.judge(**row, judge="novelty", model=engine)
    with pytest.warns(UserWarning, match="choose a judge that asks one"):
        magistrate.evaluate([row], model=engine, progress=False)
    assert not engine.prompts
