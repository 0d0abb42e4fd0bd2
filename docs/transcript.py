"""Executes the commands of a page in an empty folder, and writes what they print into the page.

`python docs/transcript.py docs/tutorial.md` does it; `tests/test_tutorial.py` holds the page to it.
A ```console block holds commands and their output, a Python block is executed as it stands, and a block
after `<!-- file: NAME -->` is saved as that file. A line `…` in an output stands for lines left out.
What differs each time (ids, durations, ports, widths of rules) is not compared.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
VARYING = [
    (re.compile(r"\d{8}-\d{6}-\w{4}"), "ID"),
    (re.compile(r"\d+ min \d+ s\b|[\d.]+ (?:ms|s)\b"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile("─+"), "─"),
    (re.compile(r"\s+"), " "),
]
PROGRESS = re.compile(r"^judged \d+ of .*\n?", re.MULTILINE)
GAP = "…"


def comparable(text: str) -> str:
    for pattern, instead in VARYING:
        text = pattern.sub(instead, text)
    return text.strip()


def agrees(shown: str, printed: str) -> bool:
    """Whether `printed` is what is shown, with any text where a line of it is `…`."""
    parts = [comparable(part) for part in re.split(rf"^{GAP}$", shown, flags=re.MULTILINE)]
    return re.fullmatch("(?s:.*)".join(map(re.escape, parts)), comparable(printed)) is not None


def execute(line: str, folder: Path, server: str | None) -> str:
    """Return what one command prints; one that serves a page is interrupted once it has said where."""
    words = shlex.split(line)
    serves = words[:2] == ["magistrate", "label"]
    if server and "--model" in words:
        words += ["--base-url", server]
    bin = Path(sys.executable).parent
    environment = {**os.environ, "MAGISTRATE_HOME": f"{folder}/.home", "COLUMNS": "80", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [str(bin / words[0]), *words[1:], *(["--no-open"] if serves else [])],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    printed = ""
    if serves:
        assert process.stdout is not None
        for told in process.stdout:
            printed += told
            if told.startswith("http://"):
                process.send_signal(signal.SIGINT)
                break
        process.communicate()
        return printed
    printed, _ = process.communicate()
    if process.returncode and not (process.returncode == 1 and "gate failed" in printed):
        raise RuntimeError(f"{line}: exit code {process.returncode}\n{printed}")
    return "".join(f"{told.rstrip()}\n" for told in PROGRESS.sub("", printed).strip("\n").splitlines())


def console(block: str, folder: Path, server: str | None) -> str:
    """Return a console block with what its commands print now, in place of what no longer agrees."""
    text = ""
    for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        printed = execute(line.removeprefix("$ "), folder, server)
        text += f"{line}\n{shown if agrees(shown, printed) else printed}"
    return text


def with_outputs(page: str, server: str | None = None) -> str:
    """Return the page with all of its commands executed, in order, in one empty folder.

    `server` is the address of what answers for every model that a command names.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)

        def block(found: re.Match[str]) -> str:
            if found["file"]:
                (folder / found["file"]).write_text(found["text"], encoding="utf-8")
            if found["kind"] == "python":
                subprocess.run([sys.executable, "-c", found["text"]], cwd=folder, check=True, stdout=-3)
            if found["kind"] != "console":
                return found[0]
            return f"```console\n{console(found['text'], folder, server)}```"

        return BLOCK.sub(block, page)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(with_outputs(path.read_text(encoding="utf-8")), encoding="utf-8")
