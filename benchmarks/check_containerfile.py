"""Executes the steps of the Containerfile without a container engine and checks the results.

`python benchmarks/check_containerfile.py [--python PYTHON]` creates a scratch folder with a fresh
environment for each stage, executes COPY and RUN there, starts CMD and requests what HEALTHCHECK requests.
The base image, its users and its limits are left out, and no image is built. Skipped steps are printed. It
needs the packages of requirements.lock from pip's index, and about two gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parent.parent
CONTAINERFILE = ROOT / "Containerfile"
LEFT_OUT = ("useradd", "chown")  # need rights over the whole machine
START_SECONDS, END_SECONDS = 90, 15


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name in capitals, and its arguments on one line."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The arguments as a list: from the JSON form, or split as by a shell."""
        try:
            return list(json.loads(self.text))
        except ValueError:
            return shlex.split(self.text)


@dataclass
class Stage:
    """One build stage: a folder that replaces `/`, and an environment that replaces the image's Python."""

    folder: Path
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    def path(self, text: str) -> Path:
        """Return the local path for a path of the image."""
        return self.folder / str(PurePosixPath(self.workdir) / text).lstrip("/")

    def environment(self) -> dict[str, str]:
        """Return the image's variables, and those with which this machine reaches a package index."""
        kept = {
            name: value for name, value in os.environ.items() if re.match(r"(?i)pip_|.*_proxy$|ssl_", name)
        }
        set_here = {name: moved(value, self.folder) for name, value in self.env.items()}
        path = f"{self.bin}{os.pathsep}/usr/bin{os.pathsep}/bin"
        return {
            **kept,
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "PIP_QUIET": "1",
            **set_here,
            "PATH": path,
        }


def instructions(text: str) -> list[Instruction]:
    """Return the instructions of a Containerfile in order, without comments, with continued lines joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(name.upper(), rest.strip()) for name, _, rest in map(split, joined.splitlines())]


def split(line: str) -> tuple[str, str, str]:
    return line.strip().partition(" ")


def command_of(healthcheck: Instruction) -> list[str]:
    """Return the command of HEALTHCHECK."""
    return Instruction("CMD", healthcheck.text.partition("CMD ")[2]).words


def assignments(env: Instruction) -> dict[str, str]:
    """Return the variables that ENV sets."""
    return dict(each.split("=", 1) for each in env.words)


def moved(text: str, folder: Path) -> str:
    """Return `text` with its absolute paths moved into `folder`; URLs stay.

    >>> moved("-w /wheels http://a/b ./c =/data", Path("/x"))
    '-w /x/wheels http://a/b ./c =/x/data'
    """
    return re.sub(r"(?<![\w./:])/(?=\w)", f"{folder}/", text)


# --- the steps -----------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the Python in place of the image's")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="containerfile-") as scratch:
        try:
            for told in check(
                instructions(CONTAINERFILE.read_text(encoding="utf-8")), Path(scratch), given.python
            ):
                print(told, flush=True)
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            print(f"FAILED: {error}", flush=True)
            return 1
    print("all steps were done but those left out; no image was built")
    return 0


def check(steps: list[Instruction], scratch: Path, python: str) -> Iterator[str]:
    """Execute the steps and yield a message for each. Raises `AssertionError` or `CalledProcessError`."""
    stages: dict[str, Stage] = {}
    stage = Stage(scratch)
    final = {each.name: each for each in steps}
    for step in steps:
        if step.name == "FROM":
            image, _, name = step.text.partition(" AS ")
            stage = stages[name or image] = Stage(scratch / f"stage{len(stages)}")
            stage.folder.mkdir()
            subprocess.run([python, "-m", "venv", stage.folder / "venv"], check=True)
            shown = subprocess.run([stage.bin / "python", "-V"], capture_output=True, text=True, check=True)
            yield f"FROM {step.text}: a fresh environment of {shown.stdout.strip()} in place of the image"
        elif step.name == "WORKDIR":
            stage.workdir = step.text
            stage.path(".").mkdir(parents=True, exist_ok=True)
        elif step.name == "ENV":
            stage.env |= assignments(step)
        elif step.name == "COPY":
            yield f"COPY {step.text}: {copy(step, stage, stages)} files"
        elif step.name == "RUN":
            yield from run(step, stage)
        elif step.name in ("USER", "VOLUME", "EXPOSE"):
            yield f"{step.name} {step.text}: left out, the engine's work"
        else:
            assert step.name in ("CMD", "HEALTHCHECK"), f"{step.name} is not known here"
    yield from start(final["CMD"], final["HEALTHCHECK"], final["EXPOSE"].text, stage)


def copy(step: Instruction, stage: Stage, stages: dict[str, Stage]) -> int:
    """Copy into the stage, and return the number of files in its targets afterwards."""
    words = step.words
    source = stages[words.pop(0).partition("=")[2]] if words[0].startswith("--from=") else None
    *names, target = words
    into = stage.path(target)
    found = 0
    for name in names:
        origin = source.path(name) if source else ROOT / name
        assert origin.exists(), f"COPY {name}: there is no such file"
        if origin.is_dir():
            shutil.copytree(
                origin, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
            found += sum(each.is_file() for each in into.rglob("*"))
        else:
            to = into / origin.name if target.endswith("/") else into
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(origin, to)
            found += 1
    return found


def run(step: Instruction, stage: Stage) -> Iterator[str]:
    for part in step.text.split("&&"):
        line = part.strip()
        program = line.split()[0]
        if program in LEFT_OUT:
            yield f"RUN {line}: left out, it needs rights over the machine"
            continue
        assert program in ("pip", "mkdir"), f"RUN {program}: not known to be harmless on this machine"
        there = moved(line, stage.folder).replace("mkdir ", "mkdir -p ")
        subprocess.run(["sh", "-c", there], cwd=stage.path("."), env=stage.environment(), check=True)
        yield f"RUN {line}: done"


# --- what comes of them --------------------------------------------------------------------------


def start(cmd: Instruction, healthcheck: Instruction, exposed: str, stage: Stage) -> Iterator[str]:
    """Start the program on a free port, request what HEALTHCHECK requests, and stop it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    environment = stage.environment()
    found = subprocess.run(
        ["python", "-c", "import magistrate; print(magistrate.__file__)"],
        cwd=stage.path("."),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        executable=stage.bin / "python",
    )
    assert Path(found.stdout.strip()).is_relative_to(stage.folder), f"not what was installed: {found.stdout}"
    words = [*cmd.words, "--port", port]
    program = subprocess.Popen(
        words,
        executable=stage.bin / words[0],
        cwd=stage.path("."),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        if not url:
            raise AssertionError(f"CMD ended with {program.wait(START_SECONDS)}: {program.communicate()[1]}")
        yield f"CMD {shlex.join(words)}: {url}"
        yield f"GET healthz: {status(f'{url}healthz')}, readyz: {status(f'{url}readyz')}"
        assert status(url) == 401, "the page is open to everybody"
        yield "GET / without a token: 401"
        check = [each.replace(f":{exposed}/", f":{port}/") for each in command_of(healthcheck)]
        assert check != command_of(healthcheck), f"HEALTHCHECK does not ask port {exposed}"
        subprocess.run(
            check, executable=stage.bin / check[0], env=environment, check=True, timeout=START_SECONDS
        )
        yield f"HEALTHCHECK on port {port} in place of {exposed}: passed"
        program.send_signal(signal.SIGTERM)
        _, err = program.communicate(timeout=END_SECONDS)
        assert program.returncode == 0, f"SIGTERM: exit code {program.returncode}: {err}"
        assert re.fullmatch(r"token: \S{43}\n", err), f"it said more than its token, {len(err)} characters"
        yield "SIGTERM: exit code 0; on standard error there was the token that it made, and nothing else"
    finally:
        program.kill()
        program.communicate()


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
