"""Runs that are judged in shares: in one store or several, and never taken for the whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import magistrate
from farmed import Farm, bare, farm
from magistrate import Limits, Run
from magistrate._yaml import read_document
from magistrate.api.merge import merge
from magistrate.errors import SpecError, StoreError
from magistrate.store import Store
from terminal import Call

__all__ = ["farm"]

N = 60
DOCS = Path(__file__).parent.parent / "docs" / "scale.md"


def judged(farm: Farm, place: Any, shard: str | None = None, data: Path | None = None, **options: Any) -> Run:
    usual = {"judges": "farmed", "store": place, "progress": False, "shard": shard}
    return magistrate.evaluate(data or farm.data(N), **usual | options)


def test_shares_in_one_store_are_one_run(farm: Farm, place: str) -> None:
    whole = judged(farm, farm.folder / "whole.db")
    farm.ledger.write_text("")
    first = judged(farm, place, "2/3")
    assert (first.record.status, first.record.n_total) == ("interrupted", N)
    assert first.record.reason == "a part of the run: 1 of 3 shares judged, missing: 1, 3"
    assert 0 < first.record.n_outcomes == len(farm.judged()) < N
    with ThreadPoolExecutor() as pool:
        data = farm.data(N)  # once: a file that changes while it is read is refused
        others = list(pool.map(lambda shard: judged(farm, place, shard, data), ("1/3", "2/3", "3/3")))
    assert {each.id for each in others} == {first.id}
    assert (first.record.status, first.record.reason, first.record.n_total) == ("done", None, N)
    assert bare(first) == bare(whole)
    assert Counter(sample for _, sample in farm.judged()).most_common(1)[0][1] == 1
    assert judged(farm, place, "1/3").id != first.id, "a run that is done is not the same again"
    named = judged(farm, place, "1/1", name="nightly")
    assert named.record.status == "done"
    assert judged(farm, place, "1/1", name="nightly").id == named.id, "unless it has a name"


def test_a_share_and_its_run_are_not_judged_at_once(farm: Farm, place: str) -> None:
    run = judged(farm, place, "1/3")
    with Store.open(place) as one, Store.open(place) as other:
        with one.hold(run.id, 2):
            assert other.held(run.id) and other.seen(run.record).status == "running"
            other.hold(run.id, 3).release()
            for share in (2, None):
                with pytest.raises(StoreError, match="is being judged by another process"):
                    other.hold(run.id, share)
        with one.hold(run.id), pytest.raises(StoreError, match="or all of it, is being judged by"):
            other.hold(run.id, 1)
        assert not other.held(run.id) and other.seen(run.record).status == "interrupted"
        other.hold(run.id).release()


def test_a_share_that_was_cut_short_is_continued_and_has_limits_of_its_own(farm: Farm, place: str) -> None:
    options: dict[str, Any] = {"judges": "faithfulness", "model": "pretend:x"}
    run = judged(farm, place, "1/3", **options)
    before = len(farm.judged())
    cut = judged(farm, place, "2/3", limits=Limits(max_calls=10), **options)
    assert (cut.id, len(farm.judged())) == (run.id, before + 10)
    assert cut.record.reason == "10 of at most 10 calls have been made (max_calls)"
    judged(farm, place, "2/3", limits=Limits(max_calls=12), **options)
    assert len(farm.judged()) == before + 12
    magistrate.resume(run, limits=Limits(), progress=False)
    assert run.record.reason == "a part of the run: 2 of 3 shares judged, missing: 3"
    judged(farm, place, "3/3", **options)
    assert (run.record.status, len(farm.judged()), run.record.n_outcomes) == ("done", N, N)


def test_merged_shares_are_the_whole_run(farm: Farm, place: str) -> None:
    whole = judged(farm, farm.folder / "whole.db")
    stores = [farm.folder / f"share-{k}.db" for k in (1, 2, 3)]
    for k, store in enumerate(stores, 1):
        judged(farm, store, f"{k}/3")
    part = merge(stores[:2], place)
    assert (part.shares.whole, part.run.record.status) == (False, "interrupted")
    assert part.run.record.reason == "a part of the run: 2 of 3 shares judged, missing: 3"
    assert merge(stores[:1], place).added == 0
    found = merge([stores[2], stores[0]], place)
    assert (found.run.id, found.shares.whole, found.run.record.status) == (part.run.id, True, "done")
    assert bare(found.run) == bare(whole)
    record = found.run.record
    assert (record.n_total, record.recipes) == (N, whole.record.recipes)
    again = merge(stores, place)
    assert (again.run.id, again.added, again.run.record) == (found.run.id, 0, record)


def test_shares_of_something_else_are_not_merged(farm: Farm) -> None:
    names = iter(range(100))

    def store(shard: str | None, **options: Any) -> Path:
        place = farm.folder / f"{next(names)}.db"
        judged(farm, place, shard, **options)
        return place

    one = store("1/2")
    other = farm.folder / "other.jsonl"
    shutil.copy(farm.data(N - 1), other)
    for place, told in (
        (store("2/3"), "it is in 3 shares, not 2"),
        (store("2/2", judges="novelty"), "judge farmed is missing; judge novelty is new"),
        (store("2/2", data=other), "its data are other"),
        (store(None), "has no run that was judged in shares"),
        (farm.folder / "none.db", "there is no store at"),
    ):
        with pytest.raises(SpecError, match=told):
            merge([one, place], farm.folder / "to.db")
    assert not (farm.folder / "to.db").exists()


def test_the_command_line_never_says_that_a_part_is_the_whole(farm: Farm, call: Call) -> None:
    data, gate = farm.data(N), ("--gate", "coverage>=0.9")
    for word in ("3/2", "0/2", "a/b", "1/0", "1", "-1/2", "1/2/3", "²/3"):
        done = call("run", data, "--judge", "farmed", f"--shard={word}")
        assert (done.code, done.out) == (2, "")
        assert (
            f"a shard is I/N, the I-th of N shares with I from 1 to N, such as 2/8; got {word!r}" in done.err
        )
    first = call("run", data, "--judge", "farmed", "--shard", "1/2", *gate, "--store", "a.db")
    assert first.code == 4 and "1 of 2 shares judged, missing: 2" in first.err
    shown = " ".join(first.out.split())
    assert "interrupted" in shown and "a part of the run: 1 of 2 shares judged, missing: 2" in shown
    assert "next: magistrate merge FILE… --to STORE" in shown and "gate" not in first.err
    again = call("run", data, "--judge", "farmed", "--shard", "1/2", *gate, "--store", "a.db")
    assert again.code == 4 and "nothing was judged" in again.err
    assert call("resume", "last", "--store", "a.db").code == 4
    assert call("run", data, "--judge", "farmed", "--shard", "2/2", *gate, "--store", "b.db").code == 4
    assert call("merge", "a.db", "--to", "c.db", "--junit", "gates.xml").code == 4
    assert 'failures="1"' in Path("gates.xml").read_text()
    merged = call("merge", "a.db", "b.db", "--to", "c.db")
    assert merged.code == 0 and "merged 2 stores" in merged.err and "gate passed" in merged.err
    whole = call("run", data, "--judge", "farmed", "--shard", "2/2", *gate, "--store", "a.db")
    assert whole.code == 0 and "gate passed" in whole.err, "the last share in one store completes the run"
    for option in (("--new",), ("--junit", "x.xml")):
        assert call("run", data, "--judge", "farmed", "--shard", "1/2", *option).code == 2
    assert "--shard needs data" in call("run", "-", "--judge", "farmed", "--shard", "1/2", stdin="{}").err


@pytest.mark.full
def test_a_killed_share_is_judged_by_the_same_command(farm: Farm, place: str) -> None:
    words = ["run", farm.data(N), "--judge", "farmed", "--shard", "1/2", "--store", place]
    environment = {**farm.environment, "PACE": "0.02"}
    command = [sys.executable, "-m", "magistrate", *map(str, words), "--concurrency", "2"]
    share = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(farm.judged()) < 10:
        assert share.poll() is None
    share.kill()
    share.wait()
    run = judged(farm, place, "1/2")
    judged(farm, place, "2/2")
    assert run.record.status == "done" and len(bare(run)) == N
    # two under way, and two that were ready and not yet stored
    assert len(farm.judged()) <= N + 4, "only what was not yet stored was judged again"


# --- the examples of the page -----------------------------------------------------------------------


def example(name: str) -> str:
    found = re.search(rf"<!-- test: {name} -->\n```\w+\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def shell(farm: Farm, *words: str, **variables: str) -> int:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**farm.environment, "PATH": path, **variables}
    return subprocess.run(words, cwd=farm.folder, env=environment, check=False).returncode


@pytest.mark.full
def test_make_judges_all_shares(farm: Farm) -> None:
    farm.data(20)
    (farm.folder / "Makefile").write_text(example("make"))
    assert shell(farm, "make", "-j", "4") == 0
    run = Run("last", farm.folder / "runs.db").record
    assert (run.status, run.n_outcomes) == ("done", 20)


@pytest.mark.full
def test_schedulers_judge_all_shares(farm: Farm) -> None:
    data = farm.data(20)
    (farm.folder / "job.sh").write_text(example("slurm"))
    for k in ("1", "2"):
        assert shell(farm, "bash", "job.sh", SLURM_ARRAY_TASK_ID=k, SLURM_ARRAY_TASK_COUNT="2") == 0
    assert merge(sorted(farm.folder.glob("share-*.db")), farm.folder / "runs.db").shares.whole
    (farm.folder / "job.yaml").write_text(example("kubernetes"))
    job: Any = read_document(farm.folder / "job.yaml").values
    assert job["spec"]["completionMode"] == "Indexed"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    names = {each["name"] for each in container["env"]}
    given = {"DATA": str(data), "RUN": "nightly", "STORE": "pods.db", "SHARES": "2"}
    assert given.keys() < names
    for index in ("0", "1"):
        words = [*container["command"], *container["args"]]
        assert shell(farm, *words, JOB_COMPLETION_INDEX=index, **given) == 0
    run = Run("nightly", farm.folder / "pods.db").record
    assert (run.status, run.n_outcomes) == ("done", 20)
