"""Where and with what a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from magistrate._version import __version__
from magistrate.bench.process import PACKAGE

GIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """`cores` are those that this process may run on. `commit` is None where the package does not run from
    its repository; a `+` at its end says that files were changed since."""

    cpu: str
    cores: int
    system: str
    python: str
    magistrate: str
    commit: str | None


def machine(cores: int) -> Machine:
    """This machine and this installation."""
    return Machine(
        _cpu(),
        cores,
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
        __version__,
        _commit(),
    )


def load() -> float | None:
    """How many processes have wanted to run in the last minute, on average; None where it is not told."""
    return os.getloadavg()[0] if sys.platform != "win32" else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), platform.processor() or platform.machine())


def _commit() -> str | None:
    root = PACKAGE.parent.parent
    if not (root / "pyproject.toml").is_file() or not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD").strip()
        return head + "+" * bool(_git(root, "status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=GIT_SECONDS
    )
    return done.stdout
