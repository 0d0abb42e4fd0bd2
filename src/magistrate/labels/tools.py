"""Reads and writes labels in the JSON formats of Label Studio and Argilla.

Offsets should count Unicode code points, as Python does. The web pages of Argilla, and of Label Studio
before version 1.4, count UTF-16 units instead, where an emoji takes two. If a span comes with its text, the
text decides between the two. Without its text, a span behind such a character is read only if the caller
gives the unit.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from magistrate.errors import InputError
from magistrate.labels.decisions import Finding
from magistrate.store.labels import SKIP, Label, Queue
from magistrate.types import Sample, Span

Form = Literal["label-studio", "argilla"]
FORMS: tuple[Form, ...] = get_args(Form)
Counting = Literal["code-points", "utf-16"]
COUNTINGS: tuple[Counting, ...] = get_args(Counting)
LABEL, SPANS, NOTE, OUTPUT = "label", "spans", "note", "output"
"""Names of the questions of a task, and of the text that they are about."""
GOLD = "gold"
_HALVES = re.compile("[\ud800-\udfff]")
_NAMES = uuid.uuid5(uuid.NAMESPACE_URL, "magistrate:annotator")


# --- out ------------------------------------------------------------------------------------------


def tasks(
    form: Form, queue: Queue, found: Sequence[Finding], samples: Sequence[Sample], *, gold: bool
) -> list[dict[str, Any]]:
    """Return one task (Label Studio) or record (Argilla) per labelled item; with `gold`, per decided item.

    Each annotator's label becomes an annotation or a response.
    """
    made = []
    for each, sample in zip(found, samples, strict=True):
        said = _held(each) if gold else _said(each.labels)
        if not said:
            continue
        about = {"queue": queue.name, "policy": each.item.policy, "inclusion": each.item.inclusion}
        if form == "label-studio":
            made.append(_task(each.item.position + 1, sample, said, about, gold=gold))
        else:
            made.append(_record(sample, said, about, waits=each.waits))
    return made


@dataclass(frozen=True, slots=True)
class _Said:
    """One annotator's label of an item; `of` is the stored label it comes from."""

    who: str
    label: str
    spans: Sequence[Span]
    note: str
    of: Label | None


def _said(labels: Iterable[Label]) -> list[_Said]:
    return [_Said(each.annotator, each.label, each.spans, each.note, each) for each in labels]


def _held(each: Finding) -> list[_Said]:
    if each.label is None:
        return []
    return [_Said(GOLD, each.label, each.spans, each.gold.reason if each.gold else "", None)]


def _texts(sample: Sample) -> dict[str, str]:
    texts = {OUTPUT: sample.output or "", "context": "\n\n".join(sample.context)}
    texts |= {"input": sample.input} if sample.input else {}
    return {name: whole(text) for name, text in texts.items()}


def whole(text: str) -> str:
    """Replace each lone surrogate by �, because JSON readers other than Python's reject them."""
    return _HALVES.sub("\ufffd", text)


def _task(
    number: int, sample: Sample, said: Sequence[_Said], about: Mapping[str, Any], *, gold: bool
) -> dict[str, Any]:
    return {
        "id": number,
        "data": {"id": sample.id, **_texts(sample)},
        "meta": dict(about),
        "annotations": [
            {
                "completed_by": {"email": each.who},
                "was_cancelled": each.label == SKIP,
                "ground_truth": gold,
                "result": list(_results(sample.output or "", each)),
                **_when(each.of),
            }
            for each in said
        ],
        "predictions": [],
    }


def _when(label: Label | None) -> dict[str, Any]:
    if label is None:
        return {}
    return {"created_at": label.at.isoformat(timespec="seconds"), "lead_time": label.seconds}


def _results(output: str, each: _Said) -> Iterator[dict[str, Any]]:
    def result(name: str, kind: str, number: int, value: Mapping[str, Any]) -> dict[str, Any]:
        place = {"from_name": name, "to_name": OUTPUT, "type": kind}
        return {"id": f"{name}-{number}", **place, "value": dict(value)}

    if each.label != SKIP:  # a cancelled annotation; the tool has no such choice
        yield result(LABEL, "choices", 0, {"choices": [each.label]})
    for number, span in enumerate(each.spans):
        text = whole(output[span.start : span.end])
        value = {"start": span.start, "end": span.end, "text": text, "labels": [span.kind]}
        yield result(SPANS, "labels", number, value)
    if each.note:
        yield result(NOTE, "textarea", 0, {"text": [each.note]})


def _record(
    sample: Sample, said: Sequence[_Said], about: Mapping[str, Any], *, waits: bool
) -> dict[str, Any]:
    output = whole(sample.output or "")
    users = {each.who: str(uuid.uuid5(_NAMES, each.who)) for each in said}
    responses: dict[str, list[dict[str, Any]]] = {LABEL: [], SPANS: [], NOTE: []}
    for each in said:
        status = "discarded" if each.label == SKIP else "submitted"  # without one it would be a draft
        spans = [
            {"start": one.start, "end": one.end, "label": one.kind, "text": output[one.start : one.end]}
            for one in each.spans
        ]
        for name, value in ((LABEL, each.label), (SPANS, spans), (NOTE, each.note)):
            if value:
                responses[name].append({"value": value, "user_id": users[each.who], "status": status})
    return {
        "id": sample.id,
        "fields": _texts(sample),
        # Argilla identifies users by id: this maps each id to a name.
        "metadata": {**about, "annotators": [f"{user} {who}" for who, user in users.items()]},
        "suggestions": {},
        "responses": {name: given for name, given in responses.items() if given},
        "vectors": {},
        "status": "pending" if waits else "completed",
    }


# --- in -------------------------------------------------------------------------------------------


def rows_of(
    values: Mapping[str, Any], outputs: Mapping[str, str], counting: Counting | None
) -> list[dict[str, Any]] | None:
    """Return the labels of a task or record, one row each, as in label files; None for another shape.

    `outputs` maps sample ids to the texts that spans refer to. Spans of other samples are left out. Raises
    `InputError` for values that cannot be read.
    """
    if isinstance(values.get("data"), Mapping) and isinstance(values.get("annotations"), list):
        return list(_from_task(values, outputs, counting))
    if isinstance(values.get("fields"), Mapping) and isinstance(values.get("responses"), Mapping):
        return list(_from_record(values, outputs, counting))
    return None


def _from_task(
    values: Mapping[str, Any], outputs: Mapping[str, str], counting: Counting | None
) -> Iterator[dict[str, Any]]:
    name = str(values["data"].get("id", ""))
    for annotation in _mappings(values, "annotations"):
        results = _mappings(annotation, "result")
        row: dict[str, Any] = {"id": name, "annotator": _annotator(annotation.get("completed_by"))}
        spans = []
        for each in results:
            value = each.get("value")
            if not isinstance(value, Mapping):
                raise InputError("a result of an annotation has no value")
            if each.get("from_name") == LABEL and (chosen := _first(value.get("choices"))):
                row["answer"] = chosen
            elif each.get("from_name") == NOTE and (note := _first(value.get("text"))):
                row["note"] = note
            elif each.get("type") == "labels":
                spans.append({**value, "kind": _first(value.get("labels"))})
        if annotation.get("was_cancelled"):
            row["answer"] = SKIP
        yield row | {"spans": _spans(spans, outputs.get(name), counting)}


def _annotator(given: Any) -> str | None:
    """Return who completed an annotation: a user with an address, or a number."""
    if isinstance(given, Mapping):
        given = given.get("email") or given.get("username") or given.get("id")
    if isinstance(given, int):
        return f"user {given}"
    return given if isinstance(given, str) and given else None


def _from_record(
    values: Mapping[str, Any], outputs: Mapping[str, str], counting: Counting | None
) -> Iterator[dict[str, Any]]:
    name = str(values.get("id", ""))
    metadata = values.get("metadata")
    told = metadata.get("annotators") if isinstance(metadata, Mapping) else None
    pairs = [each.partition(" ") for each in told or () if isinstance(each, str)]
    names = {user: who for user, _, who in pairs if who}
    by_user: dict[str, dict[str, Any]] = {}
    for question, key in ((LABEL, "answer"), (SPANS, "spans"), (NOTE, "note")):
        for each in _mappings(values["responses"], question):
            user = str(each.get("user_id") or "")
            by_user.setdefault(user, {})[key] = each.get("value")
    for user, said in by_user.items():
        spans = [{**each, "kind": each.get("label")} for each in _mappings(said, "spans")]
        yield {
            "id": name,
            "annotator": names.get(user, user) or None,
            "answer": said.get("answer"),
            "note": said.get("note"),
            "spans": _spans(spans, outputs.get(name), counting),
        }


def _mappings(values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = values.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise InputError(f"{key!r} is not a list of objects")
    return found


def _first(given: Any) -> str | None:
    """Return the text, or the first text of a list; None if empty or of another type."""
    if isinstance(given, list):
        given = given[0] if given else None
    return given if isinstance(given, str) and given else None


# --- offsets --------------------------------------------------------------------------------------


def _spans(
    given: Sequence[Mapping[str, Any]], output: str | None, counting: Counting | None
) -> list[dict[str, Any]]:
    if output is None:
        return []
    found = []
    for each in given:
        start, end = _whole_number(each.get("start")), _whole_number(each.get("end"))
        if type(start) is not int or type(end) is not int:
            raise InputError(f"start and end of a span must be numbers: {start!r}, {end!r}")
        text = each.get("text")
        start, end = place(output, start, end, text if isinstance(text, str) else None, counting)
        found.append({"start": start, "end": end, "kind": each["kind"]})
    return found


def _whole_number(given: Any) -> Any:
    """Return an offset that is written as 5.0, as Label Studio's own package does, as a whole number."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def place(
    output: str, start: int, end: int, words: str | None, counting: Counting | None = None
) -> tuple[int, int]:
    """Return a span's code-point offsets, from the text it should contain or from its counting unit.

    >>> place("a😀 bc", 4, 6, "bc"), place("a😀 bc", 3, 5, "bc"), place("a😀 bc", 4, 6, None, "utf-16")
    ((3, 5), (3, 5), (3, 5))
    """
    if not 0 <= start < end:
        raise InputError(f"a span is [{start}, {end})")
    here = (start, end) if end <= len(output) else None
    there = _from_utf16(output, start, end)
    if counting is not None:
        found = here if counting == "code-points" else there
    elif here == there:
        found = here
    elif words is not None:
        found = next((each for each in (here, there) if each and _holds(output, each, words)), None)
    else:
        raise InputError(
            f"the span [{start}, {end}) has no words and follows a character that some tools count twice: "
            f"give the unit with --counting {' or '.join(COUNTINGS)}"
        )
    if found is None or (words is not None and not _holds(output, found, words)):
        told = f"outside the output's {len(output)} characters" if found is None else "not there"
        raise InputError(f"the span [{start}, {end}) of {words!r} is {told}: it may belong to another text")
    return found


def _holds(output: str, span: tuple[int, int], words: str) -> bool:
    """Return whether the span contains these words. Label Studio writes a line end as two characters."""
    inside, words = whole(output[slice(*span)]), whole(words)
    return inside == words or inside == words.replace("\\n", "\n")


def _from_utf16(output: str, start: int, end: int) -> tuple[int, int] | None:
    """Convert UTF-16 offsets to code points; None outside the text or inside a character."""
    places, at = {0: 0}, 0
    for number, sign in enumerate(output, 1):
        at += 2 if ord(sign) > 0xFFFF else 1
        places[at] = number
    return (places[start], places[end]) if start in places and end in places else None
