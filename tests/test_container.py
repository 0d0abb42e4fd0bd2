"""The Containerfile and compose.yaml agree with the code, hold no secret and give none a default."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from packaging.specifiers import SpecifierSet
from ruamel.yaml import YAML

from magistrate import cli
from magistrate._paths import VARIABLE
from magistrate.server.settings import PORT, TOKEN_VARIABLE
from magistrate.store.connection import place_of

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECRET = re.compile(r"(?i)token|passw|secret|key|credential")
REQUIRED = re.compile(r"\$\{[A-Z_]+:\?[^}]+\}")


def script() -> ModuleType:
    """benchmarks/check_containerfile.py, which reads a Containerfile."""
    spec = importlib.util.spec_from_file_location(
        "check_containerfile", ROOT / "benchmarks" / "check_containerfile.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


CHECK = script()
STEPS = CHECK.instructions((ROOT / "Containerfile").read_text(encoding="utf-8"))
COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "compose.yaml")
PAGE, DATABASE = COMPOSE["services"]["magistrate"], COMPOSE["services"]["database"]


def named(name: str) -> list[Any]:
    return [step for step in STEPS if step.name == name]


def options(words: list[str]) -> dict[str, Any]:
    """What `magistrate serve` makes of a command line; `click.UsageError` where it knows a word of it not."""
    program, name, *rest = words
    assert program in PROJECT["scripts"]
    command = cli.command.get_command(click.Context(cli.command), name)
    assert command is not None
    return command.make_context(name, list(rest)).params


# --- Containerfile -------------------------------------------------------------------------------


def test_every_instruction_is_one_that_the_check_knows() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "VOLUME", "USER", "EXPOSE", "HEALTHCHECK", "CMD"}
    assert {step.name for step in STEPS} == known


def test_its_python_is_one_that_the_project_takes() -> None:
    for step in named("FROM"):
        version = re.fullmatch(r"python:(3\.\d+)-slim( AS build)?", step.text)
        assert version is not None
        assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version[1]}.0")


def test_it_runs_the_page_for_other_machines_as_somebody_without_rights() -> None:
    (cmd,), (user,) = named("CMD"), named("USER")
    assert cmd.text.startswith("[")  # no shell between the engine's signals and the program
    assert options(cmd.words)["host"] == "0.0.0.0"
    assert options(cmd.words)["token"] is None  # given by the environment, or made
    assert user.text not in ("root", "0")
    assert f"useradd --uid 10001 --create-home {user.text} " in named("RUN")[1].text
    after = STEPS[STEPS.index(user) + 1 :]
    assert {step.name for step in after} == {"EXPOSE", "HEALTHCHECK", "CMD"}


def test_the_port_is_that_of_the_command_everywhere() -> None:
    (exposed,), (cmd,), (health,) = named("EXPOSE"), named("CMD"), named("HEALTHCHECK")
    assert int(exposed.text) == PORT == options(cmd.words)["port"]
    asked = CHECK.command_of(health)
    assert asked[:2] == ["python", "-c"]
    assert f"http://127.0.0.1:{PORT}/healthz" in asked[2]
    compile(asked[2], "healthcheck", "exec")


def test_what_is_kept_is_kept_in_the_volume() -> None:
    environment = CHECK.assignments(*named("ENV"))
    assert environment[VARIABLE] == named("VOLUME")[0].text == "/data"


def test_what_is_copied_is_there_and_what_is_installed_has_the_extras() -> None:
    copied = [
        word for step in named("COPY") for word in step.words[:-1] if not step.text.startswith("--from")
    ]
    assert {"src", "pyproject.toml", "requirements.lock"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists()
    for name in (PROJECT["readme"], *PROJECT["license-files"]):
        assert name in copied  # the wheel is not built without them
    extras = re.findall(r"\.whl\)\[(.*?)\]", " ".join(step.text for step in named("RUN")))
    assert extras == ["local,postgres,server"]
    assert set(extras[0].split(",")) <= set(PROJECT["optional-dependencies"])


def test_no_secret_is_in_it() -> None:
    assert not any(SECRET.search(name) for name in CHECK.assignments(*named("ENV")))
    assert not [step for step in STEPS if "password" in step.text.lower() or "--token" in step.text]


# --- compose.yaml --------------------------------------------------------------------------------


def test_the_page_is_started_over_the_database_and_waits_until_it_is_ready() -> None:
    given = options(PAGE["command"])
    assert given["host"] == "0.0.0.0" and given["port"] == PORT
    url = place_of(given["store"]).url
    assert url is not None
    environment = DATABASE["environment"]
    assert (url.host, url.username, url.database) == (
        "database",
        environment["POSTGRES_USER"],
        environment["POSTGRES_DB"],
    )
    assert url.password is None  # a command line is seen by others
    assert PAGE["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert DATABASE["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert DATABASE["image"] == "postgres:16"


def test_it_is_built_from_the_containerfile_and_reached_from_this_machine_only() -> None:
    assert (ROOT / PAGE["build"]["context"] / PAGE["build"]["dockerfile"]).samefile(ROOT / "Containerfile")
    assert PAGE["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert "ports" not in DATABASE
    (volume,) = PAGE["volumes"]
    assert volume.endswith(f":{named('VOLUME')[0].text}")
    names = {each.partition(":")[0] for each in (*PAGE["volumes"], *DATABASE["volumes"])}
    assert names == set(COMPOSE["volumes"])


def test_secrets_come_from_the_environment_and_have_no_default() -> None:
    found = {
        name: value
        for service in COMPOSE["services"].values()
        for name, value in service["environment"].items()
        if SECRET.search(name)
    }
    assert set(found) == {TOKEN_VARIABLE, "PGPASSWORD", "POSTGRES_PASSWORD"}
    assert all(REQUIRED.fullmatch(value) for value in found.values())
    assert found["PGPASSWORD"] == found["POSTGRES_PASSWORD"]
    assert ":-" not in (ROOT / "compose.yaml").read_text(encoding="utf-8")


# --- the check itself ----------------------------------------------------------------------------


def test_lines_are_joined_and_comments_left_out() -> None:
    text = '# one\nFROM a AS b\n\nRUN x \\\n  # two\n  && y\nCMD ["a b", "c"]\nENV A=1 B=\'2 3\'\n'
    steps = CHECK.instructions(text)
    assert [(step.name, step.text) for step in steps[:2]] == [("FROM", "a AS b"), ("RUN", "x && y")]
    assert steps[2].words == ["a b", "c"]
    assert CHECK.assignments(steps[3]) == {"A": "1", "B": "2 3"}


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("pip install /wheels/x.whl", "pip install /s/wheels/x.whl"),
        ('pip install "$(echo /wheels/*.whl)[a,b]"', 'pip install "$(echo /s/wheels/*.whl)[a,b]"'),
        ("pip wheel --wheel-dir /wheels .", "pip wheel --wheel-dir /s/wheels ."),
        ("pip install --index-url=https://a.example/simple b/c ./d", None),
        ("HOME=/data", "HOME=/s/data"),
    ],
)
def test_paths_of_the_image_are_moved_and_nothing_else(line: str, there: str | None) -> None:
    assert CHECK.moved(line, Path("/s")) == (line if there is None else there)


def test_steps_that_are_not_known_to_be_harmless_are_not_run(tmp_path: Path) -> None:
    stage = CHECK.Stage(tmp_path)
    for line in ("rm -rf /", "mkdir /data && apt-get install x", "curl https://a.example | sh"):
        with pytest.raises(AssertionError, match="not known to be harmless"):
            list(CHECK.run(CHECK.Instruction("RUN", line), stage))
    assert [each.name for each in tmp_path.iterdir()] == ["data"]
