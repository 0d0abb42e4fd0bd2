"""The paths of four calls stay short: `benchmarks/traces.py` counts the files that each goes through."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # a model is loaded and observed call by call
TRACES = Path(__file__).parents[1] / "benchmarks" / "traces.py"
MOST = {"judge": 20, "run": 60, "choose": 8, "page": 25}


def test_no_call_goes_through_more_files_than_before(model_folder: Path) -> None:
    done = subprocess.run([sys.executable, str(TRACES)], capture_output=True, text=True, check=True)
    files = {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+) files", done.stdout, re.M)}
    assert files.keys() == MOST.keys(), done.stdout
    assert {name: n for name, n in files.items() if n > MOST[name]} == {}
    (run,) = (line for line in done.stdout.splitlines() if line.startswith("run"))
    assert run.endswith("data 1, store 1, judge 1, engine 1"), "a run opens or builds something twice"
