"""Read samples from files, from named public data sets and from memory, one at a time.

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magistrate._lazy import attributes

if TYPE_CHECKING:
    from magistrate.datasets.dataset import Dataset, load
    from magistrate.datasets.named import Listing, describe
    from magistrate.datasets.rows import Problem, Unread
    from magistrate.datasets.selection import Selection

_MODULE_OF = {
    "Dataset": "dataset",
    "load": "dataset",
    "Listing": "named",
    "describe": "named",
    "Problem": "rows",
    "Unread": "rows",
    "Selection": "selection",
}

__all__ = ["Dataset", "Listing", "Problem", "Selection", "Unread", "describe", "load"]

if not TYPE_CHECKING:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = attributes(__name__, _MODULE_OF)
