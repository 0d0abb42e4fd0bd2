"""Parquet files that `BatchJudge` has filled: a manifest of what is in them, and a run made from them.

judged.write_parquet("judged")
write_manifest("judged")
print(import_judged("judged", name="answers of July").summary())
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from magistrate._paths import default_store
from magistrate._version import __version__
from magistrate.api.run import Run
from magistrate.datasets import Problem, load
from magistrate.datasets.parts import is_url, open_local, open_url
from magistrate.datasets.rows import SETTING, Row, RowError, Source
from magistrate.datasets.samples import to_sample
from magistrate.errors import DatasetError
from magistrate.integrations.batches import NAMES, SAMPLE_ID, UNREAD
from magistrate.report.export import write_whole
from magistrate.runs.resume import IMPORTED
from magistrate.store import Store
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    AbstentionReason,
    Failure,
    FailureCode,
    Outcome,
    Recipe,
    Sample,
    Scoring,
    Verdict,
)

MANIFEST = "_manifest.json"  # `_`: no reader of the folder takes it for data
COUNTED = ("kind", "label", "reason", "recipe")


def write_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Write `_manifest.json` into a folder of judged Parquet files, and return what is in it.

    It has the rows of each file and, for each judge, the recipe and counts of rows by kind, label and reason.
    Raises `DatasetError` if a judge has several recipes in the folder, since its figures are then those of no
    judge.
    """
    from pyarrow import compute, parquet

    root = Path(folder)
    files: dict[str, int] = {}
    counts: dict[str, dict[str, Counter[str]]] = {}
    for path in sorted(root.rglob("*.parquet")):
        with parquet.ParquetFile(path) as file:
            judges = _judges(file.schema_arrow.names)
            files[path.relative_to(root).as_posix()] = file.metadata.num_rows
            columns = [f"{judge}.{name}" for judge in judges for name in COUNTED]
            for batch in file.iter_batches(columns=columns):
                for judge in judges:
                    mine = counts.setdefault(judge, {name: Counter() for name in COUNTED})
                    for name in COUNTED:
                        found = compute.value_counts(batch.column(f"{judge}.{name}")).to_pylist()
                        mine[name].update(
                            {each["values"]: each["counts"] for each in found if each["values"]}
                        )
    if not counts:
        raise DatasetError(f"{folder} has no Parquet files of judged rows")
    for judge, mine in counts.items():
        if len(mine["recipe"]) != 1:
            told = "; ".join(sorted(mine["recipe"])) or "none"
            raise DatasetError(f"the rows of judge {judge!r} in {folder} have several recipes: {told}")
    manifest = {
        "rows": sum(files.values()),
        "judges": {
            judge: {
                "recipe": json.loads(next(iter(mine["recipe"]))),
                "kinds": dict(sorted(mine["kind"].items())),
                "labels": dict(sorted(mine["label"].items())),
                "reasons": dict(sorted(mine["reason"].items())),
            }
            for judge, mine in counts.items()
        },
        "files": files,
        "package": __version__,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=True).encode()
    write_whole(root / MANIFEST, lambda raw: raw.write(text))
    return manifest


def import_judged(
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    store: str | os.PathLike[str] | None = None,
    mapping: Mapping[str, str] | None = None,
) -> Run:
    """Make a finished run of judged Parquet files: a folder, a pattern or a URL. No judge is called.

    Verdicts, failures and abstentions are those of the files, without claims and calls of models. Unread rows
    are counted as such. A row that is there twice counts once. Raises `DatasetError` if a judge has several
    recipes, or a row lacks its outcome.
    """
    text = os.fspath(source)
    dataset, rows = open_url(text) if is_url(text) else open_local(text)
    reading = _Judged(dataset, mapping or {})
    samples = load(list(reading.samples(rows)))
    samples.name = dataset
    samples.check(1.0)
    with Store.open(store or default_store()) as opened:
        origin = {"file": Path(text).name, "digest": rows.digest()}
        run_id = opened.create_run(
            dataset=dataset,
            dataset_digest=samples.digest,
            model=next(iter(reading.recipes.values())).model,
            engine_fingerprint="",
            recipes={},
            name=name,
            n_total=len(samples),
            settings={SETTING: samples.unread.to_dict()},
        )
        try:
            with opened.hold(run_id):
                opened.add_samples(run_id, samples)
                notes: dict[str, Any] = {}
                for judge, recipe in reading.recipes.items():
                    notes[judge] = origin
                    given = reading.outcomes.get(judge, [])
                    opened.add_recorded(
                        run_id, judge, recipe, reading.scoring(judge), given, {IMPORTED: dict(notes)}
                    )
                opened.finish_run(run_id, "done")
        except BaseException:
            opened.delete(run_id)
            raise
        return Run(run_id, opened.place)


class _Judged:
    """Collects the outcomes of judged rows while their samples are read."""

    def __init__(self, dataset: str, mapping: Mapping[str, str]) -> None:
        self.dataset, self.mapping = dataset, mapping
        self.texts: dict[str, Any] = {}  # the recipe of each judge, as it is in the rows
        self.recipes: dict[str, Recipe] = {}
        self.outcomes: dict[str, list[Outcome]] = {}
        self.read: dict[str, tuple[str, float | None]] = {}  # direction and threshold of a judge's scores

    def samples(self, source: Source) -> Iterator[Sample | Problem]:
        """Yield the sample of each row, once, or why it is none. Raises `DatasetError`."""
        seen: set[str] = set()
        for row in source.rows():
            if isinstance(row, Problem):
                yield row
                continue
            judges = _judges(row.values)
            if not judges:
                raise DatasetError(f"{row.where} has no columns of a judge, such as JUDGE.kind")
            for judge in judges:
                self._check_recipe(judge, row)
            if all(row.values.get(f"{judge}.kind") == UNREAD for judge in judges):
                yield row.problem(str(row.values.get(f"{judges[0]}.message")))
                continue
            sample_id = row.values.get(SAMPLE_ID)
            if not isinstance(sample_id, str) or sample_id in seen:
                if not isinstance(sample_id, str):
                    raise DatasetError(f"{row.where} has no {SAMPLE_ID}")
                continue
            seen.add(sample_id)
            ours = {SAMPLE_ID, *(f"{judge}.{each}" for judge in judges for each in NAMES)}
            rest = {column: value for column, value in row.values.items() if column not in ours}
            try:
                sample = to_sample({**rest, "id": sample_id}, id=sample_id, mapping=self.mapping)
            except RowError as error:
                yield row.problem(str(error))
                continue
            for judge in judges:
                self._add(judge, row, sample_id)
            yield sample

    def _check_recipe(self, judge: str, row: Row) -> None:
        text = row.values.get(f"{judge}.recipe")
        if self.texts.get(judge, text) != text:
            raise DatasetError(f"{row.where}: judge {judge!r} has another recipe than the rows before it")
        if judge not in self.texts:
            try:
                self.recipes[judge] = Recipe(**json.loads(text or ""))
            except (ValueError, TypeError):
                raise DatasetError(f"{row.where}: {judge}.recipe is no recipe") from None
            self.texts[judge] = text

    def _add(self, judge: str, row: Row, sample_id: str) -> None:
        cells: dict[str, Any] = {name: row.values.get(f"{judge}.{name}") for name in NAMES}
        reason, message = cells["reason"], cells["message"] or ""
        given: Outcome
        match cells["kind"], cells["label"], cells["score"]:
            case "verdict", str(label), float(score) if 0 <= score <= 1:
                given = Verdict(sample_id, judge, label, score, cells["probability"], cells["explanation"])
                self.read.setdefault(judge, (cells["direction"] or "minimize", cells["threshold"]))
            case "failure", None, None if reason in get_args(FailureCode):
                given = Failure(sample_id, judge, reason, message)
            case "abstention", None, None if reason in get_args(AbstentionReason):
                given = Abstention(sample_id, judge, reason, message)
            case _:
                raise DatasetError(f"{row.where}: {judge} has neither a verdict nor a reason for none")
        self.outcomes.setdefault(judge, []).append(given)

    def scoring(self, judge: str) -> Scoring:
        """Return how the judge's scores are read, as its verdicts say."""
        labels = {each.label for each in self.outcomes.get(judge, ()) if isinstance(each, Verdict)}
        direction, threshold = self.read.get(judge, ("minimize", None))
        usual = (FAITHFUL, HALLUCINATED)
        known = usual if labels <= set(usual) else tuple(sorted(labels))
        return Scoring("maximize" if direction == "maximize" else "minimize", known, threshold)


def _judges(columns: Iterable[str]) -> list[str]:
    names = list(columns)
    return [
        each[: -len(".kind")] for each in names if each.endswith(".kind") and each[:-4] + "recipe" in names
    ]
