"""The public names as mypy, strict, reads them from the wheel; `make release-check` has pyright read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from test_packaging import wheel

__all__ = ["wheel"]  # the fixture that builds it

CONSUMER = Path(__file__).with_name("consumer")

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]  # a wheel is built


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the consumer beside an environment that has the wheel, and all else from this one."""
    folder = tmp_path_factory.mktemp("consumer")
    for path in CONSUMER.iterdir():
        shutil.copyfile(path, folder / path.name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    (site,) = (folder / ".venv").glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--target", site, wheel], check=True)
    # Dependencies lie where this environment has them; the wheel stands before them on the path.
    mine = {sysconfig.get_path("purelib"), *(each for each in sys.path if each.endswith("site-packages"))}
    (site / "dependencies.pth").write_text("\n".join(sorted(mine)) + "\n", encoding="utf-8")
    return folder


def test_mypy_reads_the_public_names_as_they_are(project: Path) -> None:
    python = project / ".venv" / "bin" / "python"
    words = [sys.executable, "-m", "mypy", "--python-executable", str(python), "app.py"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found in 1 source file" in done.stdout


def test_the_project_runs(project: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MAGISTRATE_HOME": str(tmp_path)}
    python = project / ".venv" / "bin" / "python"
    done = subprocess.run(
        [python, "app.py"], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "billing" in done.stdout and "brief 0.07" in done.stdout
