"""Run downloaders and importers in child processes, to isolate their memory, output and crashes.

A child ends with its parent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from magistrate.engines.models.disk import POLL_SECONDS, Report
from magistrate.errors import ModelError

GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ChildResult:
    """A child's exit status (negative: the signal that ended it) and its output."""

    status: int
    stdout: str
    stderr: str

    def reason(self) -> str:
        """Return the last lines of its standard error, joined; if it is empty, how the child ended."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        if lines:
            return " | ".join(lines[-3:])[-600:]
        return f"it ended with signal {-self.status}" if self.status < 0 else f"exit status {self.status}"


def run(
    arguments: Sequence[str],
    scratch: Path,
    stage: str,
    total: int | None,
    report: Report,
    environment: Mapping[str, str] | None = None,
) -> ChildResult:
    """Run Python with `arguments` inside `scratch`, reporting the bytes that appear there.

    `total` is the number of bytes that `stage` will have written at its end, None if unknown. If this
    process is interrupted, the child is ended first.
    """
    if not sys.executable:
        raise ModelError("the path of this Python executable is unknown, so models cannot be pulled")
    logs = scratch / "logs"
    logs.mkdir(exist_ok=True)
    before = size_of(scratch)
    with (logs / f"{stage}.out").open("w+b") as out, (logs / f"{stage}.err").open("w+b") as err:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(environment or {})},
        )
        try:
            while (status := _wait(child)) is None:
                done = size_of(scratch) - before
                report(stage, done if total is None else min(done, total), total)
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(GRACE_SECONDS)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        out.seek(0)
        err.seek(0)
        return ChildResult(
            status, out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")
        )


def size_of(folder: Path) -> int:
    """Return the bytes of the files below a folder; files that vanish in the meantime count as 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


def _wait(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None
