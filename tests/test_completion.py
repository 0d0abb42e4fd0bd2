"""Shells complete words of the command line, by the protocol of each shell, and are never shown an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import magistrate
from magistrate.cli import main


def completed(line: str, capsys: pytest.CaptureFixture[str], shell: str = "bash") -> list[str]:
    """What a shell is told for a line whose last word is incomplete; a blank at the end begins a new one."""
    words = line.split(" ")
    told = {
        "_MAGISTRATE_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words[:-1]) if shell == "fish" else line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit):
            main()
    done = capsys.readouterr()
    assert done.err == ""
    return [each for each in done.out.splitlines() if each]


def test_commands_names_and_files_are_completed(
    capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path
) -> None:
    store = tmp_path / "runs.db"
    run = magistrate.evaluate("quickstart", "novelty", limit=1, store=store, progress=False)
    for line, expected in {
        "magistrate ru": ["plain,run", "plain,runs"],
        "magistrate train st": ["plain,stack"],
        "magistrate judges show nov": ["plain,novelty"],
        "magistrate judges nov": ["plain,novelty"],
        "magistrate datasets qui": ["plain,quickstart"],
        "magistrate models pull det": ["plain,detector-large"],
        "magistrate run x --judge nov": ["plain,novelty"],
        "magistrate run x --judge mine/to": ["file,mine/to"],
        "magistrate run quick": ["plain,quickstart"],
        "magistrate run --spec ma": ["file,ma"],
        "magistrate run x --model smollm2-135m-i": ["plain,smollm2-135m-instruct"],
        f"magistrate show --store {store} {run.id[:4]}": [f"plain,{run.id}"],
        "magistrate show la": ["plain,last"],  # there is no default store
        f"magistrate show --store {tmp_path}/none.db {run.id[:4]}": [],
        "magistrate schemas ju": ["plain,judge"],
        "magistrate nonsense x": [],
        "magistrate train nonsense x": [],
    }.items():
        assert completed(line, capsys) == expected, line
    assert completed("magistrate run qui", capsys, "zsh")[:2] == ["plain", "quickstart"]
    (found,) = completed("magistrate run qui", capsys, "fish")
    assert found.startswith("plain,quickstart")


def test_each_shell_has_a_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for shell, words in (
        ("bash", "complete -o nosort -F"),
        ("zsh", "#compdef magistrate"),
        ("fish", "--command magistrate"),
    ):
        monkeypatch.setenv("_MAGISTRATE_COMPLETE", f"{shell}_source")
        with pytest.raises(SystemExit):
            main()
        assert words in capsys.readouterr().out


@pytest.mark.full
def test_bash_completes(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("magistrate")
    if not program.exists():
        pytest.skip("the command is not installed beside this Python")
    script = (
        f'eval "$(_MAGISTRATE_COMPLETE=bash_source {program})"\n'
        f"COMP_WORDS=({program} run quick); COMP_CWORD=2; _magistrate_completion {program}\n"
        'echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "MAGISTRATE_HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("quickstart\n", "")
