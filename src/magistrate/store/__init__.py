"""Storage of runs in an SQLite file or a PostgreSQL database."""

from magistrate.store.connection import RunLock
from magistrate.store.datasets import DatasetVersion
from magistrate.store.runs import FinishedStatus, RunRecord, Status
from magistrate.store.store import Snapshot, Store

__all__ = ["DatasetVersion", "FinishedStatus", "RunLock", "RunRecord", "Snapshot", "Status", "Store"]
