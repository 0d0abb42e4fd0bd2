"""A judge over Ray Data on two nodes, one of which is taken away: no outcome is lost, and none doubled."""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import ray
from given import run_example
from pyarrow import parquet
from ray.cluster_utils import Cluster

from magistrate.engines.base import Engine
from magistrate.integrations.batches import finish_run, open_run
from magistrate.integrations.ray import judge
from magistrate.judges.base import JudgeInfo
from magistrate.store import Store
from magistrate.types import Outcome, Sample, Verdict

ROWS = 1200
pytestmark = pytest.mark.timeout(900)
UNREAD, BROKEN = 7, 11  # every so many rows

# Workers cannot import a test.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Noting:
    """Judges by the output, and notes in a file each time that it is asked."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(name="noting", version=1, summary="notes", kind="code")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        await asyncio.sleep(0.05)
        with self.notes.open("a") as notes:
            notes.write(f"{sample.id}\n")
        if sample.output == "break":
            raise ValueError("it broke")
        return Verdict(sample.id, "noting", "faithful", 0.25)


def rows() -> list[dict[str, Any]]:
    return [
        {
            "id": f"row {number}",
            "output": "break" if number % BROKEN == 0 else None if number % UNREAD == 0 else "It is so.",
            "context": ["It is so."],
        }
        for number in range(1, ROWS + 1)
    ]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head that works on nothing, and two nodes."""
    memory = {"object_store_memory": 80 << 20}
    head = {"num_cpus": 0, "include_dashboard": False, **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            # With one logical CPU each, tasks that read would wait for the actors for ever.
            cluster.add_node(num_cpus=3, **memory)
        ray.init(address=cluster.address, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def judged(source: Path, target: Path, **options: Any) -> pyarrow.Table:
    data = ray.data.read_parquet(str(source), override_num_blocks=12)
    judge(data, batch_size=20, concurrency=(1, 2), num_cpus=1, **options).write_parquet(str(target))
    return parquet.read_table(target)


def test_a_node_that_is_taken_away_loses_and_doubles_no_outcome(cluster: Cluster, tmp_path: Path) -> None:
    source, notes = tmp_path / "rows", tmp_path / "notes"
    source.mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows()), source / "rows.parquet")
    run = open_run(tmp_path / "runs.db", "answers")
    removed: list[int] = []

    def take_away() -> None:
        with Store.open(run.store) as store:
            while (n := store.find_run(run.id).n_outcomes) < ROWS // 3:
                time.sleep(0.05)
        cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0])
        removed.append(n)

    thread = threading.Thread(target=take_away, daemon=True)
    thread.start()
    found = judged(source, tmp_path / "first", judges=Noting(notes), run=run).to_pylist()
    thread.join(60)
    assert len(removed) == 1 and removed[0] < ROWS

    assert Counter(each["id"] for each in found) == Counter(each["id"] for each in rows())
    kinds = Counter(each["noting.kind"] for each in found)
    broken = ROWS // BROKEN
    unread = ROWS // UNREAD - ROWS // (UNREAD * BROKEN)
    assert kinds == {"failure": broken, "unread": unread, "verdict": ROWS - broken - unread}
    assert all((each["noting.label"] is None) == (each["noting.kind"] != "verdict") for each in found)
    with Store.open(run.store) as store:
        record = store.find_run(run.id)
        stored = Counter((each.sample_id, each.judge) for each in store.outcomes(run.id))
    assert record.n_outcomes == len(stored) == ROWS - unread
    # Only what was being judged when its node was lost is judged again.
    asked = Counter(notes.read_text().splitlines())
    assert len(asked) == ROWS - unread and asked.total() - len(asked) <= 2 * 20

    # The same job once more, with one node: everything is read back.
    again = judged(source, tmp_path / "second", judges=Noting(notes), run=run)
    by_id = {each["id"]: each for each in found}
    assert all(each == by_id[each["id"]] for each in again.to_pylist()) and again.num_rows == ROWS
    assert len(notes.read_text().splitlines()) == asked.total()
    report = finish_run(run).summary()
    assert report.judges[0].n_ok == kinds["verdict"]
    print(f"removed after {removed[0]} outcomes, asked {asked.total()} times about {len(asked)} samples")


@pytest.mark.parametrize("heading", ["Spark", "Daft"])
def test_the_same_judge_runs_elsewhere(
    heading: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if heading == "Spark" and shutil.which("java") is None:
        pytest.skip("Spark needs Java, which no package of Python brings")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    told = run_example(heading, "ray.md")
    assert capsys.readouterr().out.rstrip() == told.rstrip()
