"""What servers were seen to do, kept in Magistrate's home, so that nobody has to be asked twice.

One JSON file, `servers.json`: for each address and model what was found, and what the server was when it was
found. It holds no keys and nothing of what is judged. A file that cannot be read is as good as none.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from magistrate._paths import home

NAME = "servers.json"
MOST = 256  # servers and models that are kept, the newest of them
LONGEST = 4 * 1024 * 1024  # bytes of the file that are read


def recalled(address: str, model: str, identity: str) -> dict[str, Any] | None:
    """What was found of `model` at `address` while it was `identity`; None where that is not known."""
    found = _entries(home() / NAME).get(_key(address, model))
    if not isinstance(found, dict) or found.get("identity") != identity:
        return None
    findings = found.get("findings")
    return findings if isinstance(findings, dict) else None


def remember(address: str, model: str, identity: str, findings: Mapping[str, Any]) -> None:
    """Keep what was found. Where the folder cannot be written it is found out anew the next time."""
    path = home() / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=10):
            entries = _entries(path)
            entries.pop(_key(address, model), None)
            entries[_key(address, model)] = {"identity": identity, "findings": dict(findings)}
            newest = dict(list(entries.items())[-MOST:])
            _write(path, json.dumps(newest, indent=1, ensure_ascii=False))
    except (OSError, TimeoutError):
        return


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{NAME}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _entries(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LONGEST:
            return {}
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _key(address: str, model: str) -> str:
    return f"{address} {model}"
