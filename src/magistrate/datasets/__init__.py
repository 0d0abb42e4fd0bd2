"""Read samples from files, from named public data sets and from memory, one at a time."""

from __future__ import annotations

from magistrate.datasets.dataset import Dataset, load
from magistrate.datasets.named import Listing, describe
from magistrate.datasets.rows import Problem, Unread
from magistrate.datasets.selection import Selection

__all__ = ["Dataset", "Listing", "Problem", "Selection", "Unread", "describe", "load"]
