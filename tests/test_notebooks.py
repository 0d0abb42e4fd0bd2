"""The notebooks are kept without outputs, and each runs from its first cell to its last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
# As a kernel does: each cell is awaited in an event loop that is running already.
EXECUTE = """
import asyncio, json, sys
from IPython.core.interactiveshell import InteractiveShell

async def main():
    shell = InteractiveShell.instance()
    for cell in json.loads(sys.stdin.read()):
        ready = shell.transform_cell(cell)
        (await shell.run_cell_async(cell, transformed_cell=ready)).raise_error()

asyncio.run(main())
"""


def cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_notebooks_are_kept_without_outputs() -> None:
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        assert cells(path), path.name
        for cell in cells(path):
            assert cell["outputs"] == [] and cell["execution_count"] is None, path.name


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE],
        input=json.dumps(["".join(cell["source"]) for cell in cells(path)]),
        cwd=tmp_path,
        env={**os.environ, "MAGISTRATE_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
