"""Models of the embedded engine: the catalogue, and functions to pull, locate and describe them.

`pull(name)` downloads a model of the catalogue, `locate(name_or_path)` returns the folder that the engine
loads, and `describe(folder)` reads the folder's description of its model. A name or a GGUF's path may end
in `:f16` for weights of 16 bits instead of 8, which get a separate folder.
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
