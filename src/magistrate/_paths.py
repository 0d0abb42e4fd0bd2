"""Paths of Magistrate's files: models, downloaded data sets, the store of runs and the cache of calls.

These functions only return paths. Code that writes creates the folder, so that reading, importing and
`--help` leave no trace on disk.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "MAGISTRATE_HOME"


def home() -> Path:
    """Return the folder for all of Magistrate's files: `$MAGISTRATE_HOME`, or the platform's data folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return _data_folder() / "magistrate"


def _data_folder() -> Path:
    """Return the folder for user data on this platform."""
    match sys.platform:
        case "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        case "darwin":
            return Path.home() / "Library" / "Application Support"
        case _:
            return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def models_dir() -> Path:
    """Return the folder of downloaded and converted models."""
    return home() / "models"


def datasets_dir() -> Path:
    """Return the folder of downloaded public data sets."""
    return home() / "datasets"


def default_store() -> Path:
    """Return the SQLite file of the default store of runs."""
    return home() / "magistrate.db"


def default_cache() -> Path:
    """Return the SQLite file of the cache of engine calls."""
    return home() / "cache.db"
