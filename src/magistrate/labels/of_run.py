"""Finds the labels of a run's samples: from a queue, with sampling weights, or from the run's data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from magistrate.analysis.columns import KNOWN, unlike
from magistrate.errors import InputError, SpecError
from magistrate.labels.decisions import findings
from magistrate.labels.estimates import is_active, not_covered
from magistrate.store import RunRecord, Store
from magistrate.store.labels import Queue
from magistrate.types import Sample

DATA = "data"
"""Instead of a queue's name: the labels that the data came with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabels:
    """The samples of a run by id, with their final labels and spans where known.

    `inclusion` maps the id of each labelled sample to the probability with which it was drawn. `source`
    names the origin of the labels. `left_out` counts samples without a label by reason. `active` is true if
    some samples were drawn more often than others.
    """

    source: str
    samples: Mapping[str, Sample]
    inclusion: Mapping[str, float]
    left_out: Mapping[str, int]
    active: bool = False


def labels_of(store: Store, record: RunRecord, named: str | None = None) -> RunLabels:
    """Return the labels of a run: from the queue `named`, else the only queue with labels, else the data.

    Raises `SpecError` if several queues have labels. Raises `InputError` if there are none, or if the
    queue's policy could draw only a part of the samples.
    """
    about = {each.name: each for each in store.labels.queues() if _is_about(each, record)}
    if named is not None and named != DATA:
        return _of_queue(store, store.labels.find(named), record)
    labelled = [] if named == DATA else [each for each in about.values() if store.labels.labels(each.name)]
    if len(labelled) > 1:
        names = ", ".join(each.name for each in labelled)
        raise SpecError(f"several queues have labels of this run ({names}): choose one with --labels")
    if labelled:
        return _of_queue(store, labelled[0], record)
    samples = {each.id: each for each in store.samples(record.id)}
    known = {name: 1.0 for name, each in samples.items() if each.label in KNOWN}
    if not known:
        run = record.name or record.id
        open_one = f"; nothing is labelled yet in {', '.join(about)}" if about else ""
        raise InputError(
            f"run {run!r} has no labels{open_one}. Label its samples: magistrate label {record.id}"
        )
    return RunLabels(
        source=f"the data, {record.dataset}", samples=samples, inclusion=known, left_out={}, active=False
    )


def _is_about(queue: Queue, record: RunRecord) -> bool:
    return queue.run_id == record.id or queue.digest == record.dataset_digest


def _of_queue(store: Store, queue: Queue, record: RunRecord) -> RunLabels:
    if (reason := not_covered(queue)) is not None:
        raise InputError(f"queue {queue.name!r}: {reason}")
    found = findings(store, queue)
    labelled = {
        sample.id: (each, sample)
        for each, sample in zip(found, store.labels.samples(queue.name), strict=True)
    }
    samples, inclusion, left_out = dict[str, Sample](), dict[str, float](), Counter[str]()
    for sample in store.samples(record.id):
        bare = samples[sample.id] = replace(sample, label=None, spans=())
        if sample.id not in labelled:
            continue
        each, own = labelled.pop(sample.id)
        if unlike(own, sample) is not None:
            left_out["other texts under the same id"] += 1
        elif each.label is None:
            left_out[f"label: {each.state}"] += 1
        elif each.gold is None and any(label.shown for label in each.said):
            left_out["labelled after the verdict was shown"] += 1
        else:
            samples[sample.id] = replace(bare, label=each.label, spans=each.spans)
            inclusion[sample.id] = each.item.inclusion
    if labelled:
        left_out["not in this run"] = len(labelled)
    if not inclusion:
        told = ", ".join(f"{n} {reason}" for reason, n in left_out.items())
        raise InputError(
            f"queue {queue.name!r} has no usable label of this run's samples: {told}. Label more: magistrate "
            f"label {queue.name}"
        )
    return RunLabels(
        source=f"queue {queue.name}, {queue.policy}",
        samples=samples,
        inclusion=inclusion,
        left_out=dict(left_out),
        active=is_active(queue, found),
    )
