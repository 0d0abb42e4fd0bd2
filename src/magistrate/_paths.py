"""Where Magistrate keeps its files: models, downloaded sets, the store of runs and the cache of calls.

These functions only name paths. Whoever writes creates the folder, so that reading, importing and
`--help` leave no trace on disk.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "MAGISTRATE_HOME"


def home() -> Path:
    """The folder for everything Magistrate writes: `$MAGISTRATE_HOME`, else the platform's data folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return _data_folder() / "magistrate"


def _data_folder() -> Path:
    """Where programs keep a user's data on this platform."""
    match sys.platform:
        case "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        case "darwin":
            return Path.home() / "Library" / "Application Support"
        case _:
            return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def models_dir() -> Path:
    """The folder of pulled and converted models."""
    return home() / "models"


def datasets_dir() -> Path:
    """The folder of downloaded public sets."""
    return home() / "datasets"


def default_store() -> Path:
    """The SQLite file that runs are written to where no other store is named."""
    return home() / "magistrate.db"


def default_cache() -> Path:
    """The SQLite file of engine calls that are not asked twice."""
    return home() / "cache.db"
