"""Models of the embedded engine: the catalogue, pulling, locating and describing them.

`pull(name)` downloads a model of the catalogue, `locate(name_or_path)` returns the folder that the engine
loads, `describe(folder)` reads what the folder says about its model. A name or a GGUF's path may end in
`:f16` for weights of 16 bits instead of 8, in a folder of its own.
"""

from magistrate.engines.models.catalogue import (
    WEIGHTS,
    HubSource,
    ModelEntry,
    PyPISource,
    Weights,
    default,
    entries,
    entry,
)
from magistrate.engines.models.disk import Report
from magistrate.engines.models.folder import ModelCard, describe
from magistrate.engines.models.pull import is_pulled, locate, pull, pulled

__all__ = [
    "WEIGHTS",
    "HubSource",
    "ModelCard",
    "ModelEntry",
    "PyPISource",
    "Report",
    "Weights",
    "default",
    "describe",
    "entries",
    "entry",
    "is_pulled",
    "locate",
    "pull",
    "pulled",
]
