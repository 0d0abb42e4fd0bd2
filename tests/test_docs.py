"""What the pages say is so: commands, examples, generated parts, links and named tests."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from benchmarks import cluster, jury, panels, speed, watch
from benchmarks.quality import __main__ as quality
from magistrate import cli
from magistrate._version import __version__
from magistrate.judges import instance

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(
    r"(?:<!-- run: (?P<name>[^>]+) -->\n)?```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<prints>.*?)```)?",
    re.DOTALL,
)
CONSOLE = re.compile(r"```console\n(?P<lines>.*?)```", re.DOTALL)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = load_generator()
COMMANDS: list[tuple[str, click.Command, click.Context]] = list(GENERATE.commands())
NAMES = [name for name, _, _ in COMMANDS]


# --- generated pages -----------------------------------------------------------------------------


def test_generated_pages_are_up_to_date() -> None:
    for path, text in GENERATE.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date; run: make docs"


def test_a_stale_part_is_written_anew_and_the_rest_left_alone() -> None:
    stale = "Before.\n<!-- begin: labels -->\nold\n<!-- end: labels -->\nAfter.\n"
    fresh = GENERATE.with_parts(stale)
    assert fresh.startswith("Before.\n<!-- begin: labels -->\n| field |")
    assert fresh.endswith("|\n<!-- end: labels -->\nAfter.\n")
    assert GENERATE.with_parts(fresh) == fresh


def test_every_command_has_help_an_example_and_its_place_in_the_docs() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, command, _ in COMMANDS:
        assert command.help and command.help.strip().endswith("."), name
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in ("max_tokens", "temperature", "seed"):
                assert option.help, f"{name} {option.opts[0]} has no help"
        examples = GENERATE.examples(command)
        assert any(line.partition(" magistrate ")[2] or name in line for line in examples), name
        assert re.search(rf"^#+ {re.escape(name)}$", page, re.MULTILINE), name


def test_all_commands_are_seen() -> None:
    assert {name.split()[1] for name in NAMES} == set(cli.COMMANDS)
    assert "magistrate models pull" in NAMES


# --- command lines -------------------------------------------------------------------------------


def command_lines() -> Iterator[tuple[str, str]]:
    """Every `magistrate …` line that a page or a command's own help shows."""
    for page in PAGES:
        for block in CONSOLE.finditer(page.read_text(encoding="utf-8")):
            for line in block["lines"].splitlines():
                if line.startswith("$ "):
                    yield page.name, line.removeprefix("$ ")
    for name, command, _ in [("magistrate", cli.command, None), *COMMANDS]:
        for example in GENERATE.examples(command):
            yield name, example


MEASURING = {"benchmarks.quality": quality.command, "benchmarks.speed": speed.command}
PARSERS = {
    "benchmarks.cluster": cluster.parser,
    "benchmarks.jury": jury.parser,
    "benchmarks.panels": panels.parser,
    "benchmarks.watch": watch.parser,
}


def parse(words: list[str], command: click.Command = cli.command) -> click.Context:
    """What a command line would make of the words, without doing it."""
    context = click.Context(command, info_name="magistrate")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        _, inner, words = command.resolve_command(context, words)
        assert inner is not None
        command = inner
        context = click.Context(command, info_name=command.name, parent=context)
    return command.make_context(command.name, list(words), parent=context.parent)


def test_a_command_line_that_is_shown_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    monkeypatch.chdir(tmp_path)
    wrong = []
    for where, line in command_lines():
        program, *rest = dropwhile(lambda word: "=" in word, shlex.split(line))
        for word in rest:
            for name in re.findall(r"^@?([\w-]+\.(?:json|txt|jsonl|yaml))$", word):
                (tmp_path / name).write_text("{}")
        try:
            assert program in ("make", "magistrate", "python"), "nothing checks it"
            if program == "python":
                _, module, *rest = rest
                if module in PARSERS:
                    PARSERS[module]().parse_args(rest)
                else:
                    parse(rest, MEASURING[module])
            elif program == "make":
                assert {each for each in rest if "=" not in each} <= targets, "no such target"
            else:
                parse(rest)
        except (AssertionError, KeyError, SystemExit, click.ClickException) as error:
            wrong.append(f"{where}: {line}: {error}")
    assert wrong == []


@pytest.mark.parametrize(
    "line", ["run data.jsonl --speed 3", "nonsense", "models fetch", "judge --output", "check a b"]
)
def test_a_command_line_that_is_none_is_seen(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(line.split())


def test_the_printed_block_is_of_this_version_and_prompt() -> None:
    page = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    (block,) = [found["lines"] for found in CONSOLE.finditer(page) if "recipe " in found["lines"]]
    told = " ".join(block.split())
    info = instance("faithfulness").info
    assert f"judge=faithfulness@{info.version} " in told
    assert f"prompt={info.prompt} " in told, "the prompt has changed: run it again and put in what it prints"
    assert f"magistrate={__version__}" in told


def test_the_measured_tables_are_those_of_the_recorded_rows() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "judges.py"))
    page = (ROOT / "docs" / "judges.md").read_text(encoding="utf-8")
    assert script["written"](page, script["newest"]()) == page, (
        "run: python benchmarks/judges.py --set none --write"
    )


def test_the_readme_says_how_each_extra_is_installed() -> None:
    readme = README.read_text(encoding="utf-8")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for extra in pyproject["project"]["optional-dependencies"]:
        assert f"`pip install '.[{extra}]'`" in readme


# --- code ----------------------------------------------------------------------------------------


def lines_of(printed: str) -> list[str]:
    return printed.strip().splitlines()


def is_label(word: str) -> bool:
    return word in ("faithful", "hallucinated")


def one_verdict(printed: str) -> bool:
    label, score, probability = lines_of(printed)[0].split()
    likelier = max(float(score), 1 - float(score))
    return is_label(label) and float(probability) == pytest.approx(likelier)


def a_dataset(printed: str) -> bool:
    first = [line.split() for line in lines_of(printed)[:4]]
    judges = sorted(words[0] for words in first)
    figures = all(is_label(words[1]) and 0 <= float(words[2]) <= 1 for words in first)
    return judges == ["faithfulness"] * 2 + ["hallucination"] * 2 and figures and "AUROC" in printed


def an_application(printed: str) -> bool:
    return bool(re.match(r"It closes at five\. (faithful|hallucinated) \(score ", printed))


def structured_generation(printed: str) -> bool:
    ticket, checks = lines_of(printed)
    return (
        bool(re.fullmatch("(billing|delivery|other) (True|False)", ticket)) and checks == "incomplete valid"
    )


def both_async(printed: str) -> bool:
    return [is_label(line.split()[0]) for line in lines_of(printed)] == [True, True]


def a_tone(printed: str) -> bool:
    label, score, *_ = lines_of(printed)[0].split()
    schema = ast.literal_eval(lines_of(printed)[1])
    return (
        label in ("friendly", "curt", "rude") and 0 <= float(score) <= 1 and schema["required"] == ["output"]
    )


def claims_then_labels(printed: str) -> bool:
    *claims, last = lines_of(printed)
    kinds = {line.split()[0] for line in claims}
    known = {"contradiction", "unsupported", "agreement"}
    return bool(claims) and kinds <= known and is_label(last.split()[0]) and is_label(last.split()[-1])


def a_brief_answer(printed: str) -> bool:
    return printed.startswith("brief (score 0.0")


def held_or_not(printed: str) -> bool:
    return printed.strip() == "None" or "'answer': 'It closes at five.'" in printed


CHECKS: dict[str, Callable[[str], bool]] = {
    "one verdict": one_verdict,
    "assert_faithful": lambda printed: printed == "passed\n",
    "test cases": lambda printed: printed == "",
    "a dataset": a_dataset,
    "an application": an_application,
    "structured generation": structured_generation,
    "async": both_async,
    "classifier": a_tone,
    "rubric": claims_then_labels,
    "own judge": a_brief_answer,
    "guard": held_or_not,
}


# Each is a process of its own. Those of these pages run every day, but for those that compute for seconds.
DAILY = {"README.md", "index.md", "judges.md"}
SLOW = {"rubric", "a dataset", "guard", "structured generation", "classifier", "prevalence", "stack"}


def examples() -> list[Any]:
    """Every Python example of every page, in order, with its name and what the page says that it prints."""
    found = []
    for page in PAGES:
        for block in PYTHON.finditer(page.read_text(encoding="utf-8")):
            name, code, prints = block["name"], block["code"], block["prints"]
            marks = [] if page.name in DAILY and name not in SLOW else [pytest.mark.full]
            found.append(pytest.param(name, code, prints, id=f"{page.name}: {name}", marks=marks))
    return found


def test_every_example_has_a_check_and_every_check_an_example() -> None:
    unchecked = [example.values[0] for example in examples() if example.values[2] is None]
    assert unchecked == list(CHECKS)


@pytest.mark.parametrize(("name", "code", "prints"), examples())
def test_an_example_runs_by_itself_and_prints_what_it_should(
    name: str, code: str, prints: str | None, tmp_path: Path, model_folder: Path
) -> None:
    # A home of its own for the runs that it stores, with the models of the usual one.
    (tmp_path / "models").symlink_to(model_folder.parent, target_is_directory=True)
    here = tmp_path / "here"  # for files that an example writes
    here.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=here,
        env={**os.environ, "MAGISTRATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if prints is None:
        assert CHECKS[name](done.stdout), done.stdout
    else:
        assert done.stdout == prints


@pytest.mark.parametrize("model", ["scripted", pytest.param("embedded", marks=pytest.mark.full)])
def test_guided_decoding_from_scratch(model_folder: Path, model: str) -> None:
    """The demonstration writes what its grammar says, with a scripted model and with the embedded one."""
    script = ROOT / "examples" / "guided_decoding.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60
    option = ["--scripted"] if model == "scripted" else []
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *option], capture_output=True, text=True, check=True
    )
    *steps, text = lines_of(done.stdout)
    assert re.fullmatch(r'\{"sum":[1-9]\d{0,2}(\+[1-9]\d{0,2}){1,2},"even":(true|false)\}', text)
    assert "".join(ast.literal_eval(step.partition("then ")[2]) for step in steps) == text


# --- links and names -----------------------------------------------------------------------------


def test_links_lead_somewhere() -> None:
    lost = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
            file = (page.parent / target).resolve() if target else page
            if "://" not in target and not (file.exists() and (not anchor or anchor in anchors(file))):
                lost.append(f"{page.name}: {target}#{anchor}")
    assert lost == []


def anchors(page: Path) -> set[str]:
    """What a link to a page may name behind its `#`."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {head.lower().replace(" ", "-") for head in heads}


def test_every_design_note_says_what_it_must_and_names_tests_that_exist() -> None:
    notes = sorted((ROOT / "docs" / "design").glob("*.md"))
    assert [note.name[:3] for note in notes] == [f"{number:03}" for number in range(1, len(notes) + 1)]
    for note in notes:
        text = note.read_text(encoding="utf-8")
        for part in ("Problem", "Decision", "Rejected", "Guarding test"):
            assert f"**{part}.**" in text, f"{note.name} lacks {part}"
        named = re.findall(r"`(tests/\w+\.py)::(\w+)`", text)
        assert named, f"{note.name} names no test"
        for file, test in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert test in {getattr(node, "name", None) for node in tree.body}, f"{note.name}: {file}::{test}"
