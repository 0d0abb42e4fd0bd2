"""Without their frameworks: nothing is imported before it is used, and what is missing is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "opik": ("opik", "opik"),
    "phoenix": ("phoenix", "arize-phoenix-evals"),
    "deepeval": ("deepeval", "deepeval"),
    "ragas": ("ragas", "ragas"),
    "inspect": ("inspect_ai", "inspect-ai"),
    "mlflow": ("mlflow", "mlflow"),
}


def failing(code: str) -> str:
    """What Python says that ends in an error."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_framework_that_is_missing_is_named_with_how_to_install_it() -> None:
    code = """
import importlib, sys
for name, module in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[module] = None
    try:
        importlib.import_module(f"magistrate.integrations.{name}")
    except Exception as error:
        print(error)
"""
    named = [word for name, (module, _) in PACKAGES.items() for word in (name, module)]
    done = subprocess.run([sys.executable, "-c", code, *named], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"package '{package}' is required; install it with: pip install '{package}'"
        for _, package in PACKAGES.values()
    ]


def test_a_log_of_inspect_without_inspect_says_so_too(tmp_path: Path) -> None:
    (tmp_path / "log.eval").write_bytes(b"PK")
    path = str(tmp_path / "log.eval")
    code = "import sys; sys.modules['inspect_ai'] = None; import magistrate"
    said = failing(f"{code}; list(magistrate.load({path!r}))")
    assert said.endswith("pip install 'inspect-ai'")


def test_what_reads_their_objects_imports_none_of_them() -> None:
    code = "import magistrate.integrations.samples, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "magistrate" in loaded
    assert loaded & {module for module, _ in PACKAGES.values()} == set()
