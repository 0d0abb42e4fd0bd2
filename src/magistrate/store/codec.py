"""Encode values losslessly as ASCII JSON text, and decode them.

ASCII JSON can represent what database text cannot: NUL characters and lone surrogates. Values that JSON
cannot represent are tagged: `{"$tuple": […]}`, `{"$float": "nan"}`, and `{"$map": [[key, value], …]}` for a
mapping whose keys are not all strings or look like a tag.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from magistrate._text import shorten
from magistrate.errors import InputError, StoreError
from magistrate.types import CalibratedOn, Claim, Recipe, Sample, Scoring, Span, Step, Turn, Usage

MAX_DEPTH = 100


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Encode `value` as compact ASCII JSON. `InputError` names the place of a value that cannot be stored."""
    try:
        return (_SORTED if sort_keys else _ENCODER).encode(_plain(value, "$", 0))
    except ValueError as error:
        raise InputError(f"a value cannot be stored: {error}") from error


def loads(text: str) -> Any:
    """Decode text that `dumps` wrote. Raises `StoreError` if it is damaged."""
    try:
        if not text.isascii():
            raise ValueError("it contains characters outside ASCII")
        return _DECODER.decode(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"a stored document is damaged ({error}); restore the store from a copy") from error


@contextmanager
def naming(what: str, sample_id: str) -> Iterator[None]:
    """Convert the errors of a damaged document into a `StoreError` that names the sample."""
    try:
        yield
    except (StoreError, AttributeError, LookupError, TypeError, ValueError) as error:
        cause = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        raise StoreError(f"{what} {shorten(repr(sample_id))} is damaged in the store: {cause}") from error


def _plain(value: Any, where: str, depth: int) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if depth >= MAX_DEPTH:
        raise InputError(f"a value is nested deeper than {MAX_DEPTH} levels or contains itself; flatten it")
    if isinstance(value, tuple | list):
        items = [
            item if type(item) is str else _plain(item, f"{where}[{place}]", depth + 1)
            for place, item in enumerate(value)
        ]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict | Mapping):  # `dict` first, which is told faster
        if all(isinstance(key, str) and key[:1] != "$" for key in value):
            return {
                key: item if type(item) is str else _plain(item, f"{where}.{key}", depth + 1)
                for key, item in value.items()
            }
        pairs = [
            [_plain(key, f"{where} key", depth + 1), _plain(item, f"{where}.{key}", depth + 1)]
            for key, item in value.items()
        ]
        return {"$map": pairs}
    raise InputError(
        f"{where} is a {type(value).__name__}, which cannot be stored; "
        "known: None, bool, int, float, str, list, tuple, mapping; convert it first"
    )


def _untagged(value: dict[str, Any]) -> Any:
    if len(value) == 1:
        if "$tuple" in value:
            return tuple(value["$tuple"])
        if "$float" in value:
            return float(value["$float"])
        if "$map" in value:
            return dict(value["$map"])
    return value


# `json.loads` and `json.dumps` would create one per call.
_DECODER = json.JSONDecoder(object_hook=_untagged)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False)


# --- samples ------------------------------------------------------------------------------------


def sample_body(sample: Sample) -> str:
    """Encode a sample's canonical content: everything but its id. Empty fields are left out."""
    fields = {
        "output": sample.output,
        "context": list(sample.context) or None,
        "input": sample.input,
        "expected": sample.expected,
        "messages": [[turn.role, turn.text] for turn in sample.messages] or None,
        "alternatives": list(sample.alternatives) or None,
        "label": sample.label,
        "spans": [_span(span) for span in sample.spans] or None,
        "metadata": dict(sample.metadata) or None,
    }
    return dumps({name: value for name, value in fields.items() if value is not None}, sort_keys=True)


def sample_key(body: str) -> str:
    """Return the sha256 of a sample's canonical content, in hexadecimal."""
    return sha256(body.encode("ascii")).hexdigest()


def context_number(sources: Sequence[str]) -> int | None:
    """Return a signed 64-bit number of a sample's sources, the same for equal ones; None without any."""
    if not any(text.strip() for text in sources):
        return None
    told = _ENCODER.encode(list(sources)).encode("ascii")
    return int.from_bytes(sha256(told).digest()[:8], "big", signed=True)


def sample_from(sample_id: str, body: str) -> Sample:
    """Decode a sample that `sample_body` encoded. Raises `StoreError` with its id if it is damaged."""
    with naming("sample", sample_id):
        fields = loads(body)
        return Sample(
            id=sample_id,
            output=fields.get("output"),
            context=tuple(fields.get("context", ())),
            input=fields.get("input"),
            expected=fields.get("expected"),
            messages=tuple(Turn(role, text) for role, text in fields.get("messages", ())),
            alternatives=tuple(fields.get("alternatives", ())),
            label=fields.get("label"),
            spans=tuple(Span(*span) for span in fields.get("spans", ())),
            metadata=fields.get("metadata", {}),
        )


# --- the parts of outcomes ----------------------------------------------------------------------


def claims_plain(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Return claims as JSON values."""
    return [
        {
            "kind": claim.kind,
            "output_quote": _span(claim.output_quote),
            "context_quote": None if claim.context_quote is None else _span(claim.context_quote),
            "context_index": claim.context_index,
            "reasoning": claim.reasoning,
            "probability": claim.probability,
            "output_text": claim.output_text,
            "context_text": claim.context_text,
        }
        for claim in claims
    ]


def claims_from(values: Sequence[Mapping[str, Any]]) -> tuple[Claim, ...]:
    """Restore the claims that `claims_plain` wrote."""
    return tuple(
        Claim(
            kind=value["kind"],
            output_quote=Span(*value["output_quote"]),
            context_quote=None if value["context_quote"] is None else Span(*value["context_quote"]),
            context_index=value["context_index"],
            reasoning=value["reasoning"],
            probability=value.get("probability"),
            output_text=value.get("output_text", ""),
            context_text=value.get("context_text"),
        )
        for value in values
    )


def steps_body(steps: Sequence[Step]) -> str:
    """Encode steps as JSON text."""
    return dumps(
        [
            {
                "verb": step.verb,
                "prompt": [list(turn) for turn in step.prompt],
                "result": dict(step.result),
                "usage": asdict(step.usage),
                "seconds": step.seconds,
            }
            for step in steps
        ]
    )


def steps_from(body: str) -> tuple[Step, ...]:
    """Decode steps that `steps_body` encoded."""
    return tuple(
        Step(
            verb=value["verb"],
            prompt=tuple((role, text) for role, text in value["prompt"]),
            result=value["result"],
            usage=Usage(**value["usage"]),
            seconds=value["seconds"],
        )
        for value in loads(body)
    )


def recipes_body(recipes: Mapping[str, Recipe]) -> str:
    """Encode recipes by judge as JSON text."""
    return dumps({judge: asdict(recipe) for judge, recipe in recipes.items()})


def recipes_from(body: str) -> dict[str, Recipe]:
    """Decode recipes that `recipes_body` encoded."""
    return {judge: Recipe(**value) for judge, value in loads(body).items()}


def scoring_body(scoring: Mapping[str, Scoring]) -> str:
    """Encode the scoring by judge as JSON text."""
    return dumps({judge: asdict(each) for judge, each in scoring.items()})


def scoring_from(body: str) -> dict[str, Scoring]:
    """Decode the scoring that `scoring_body` encoded."""
    return {judge: _scoring(value) for judge, value in loads(body).items()}


def _scoring(value: Mapping[str, Any]) -> Scoring:
    on = value["calibrated_on"]
    return Scoring(**{**value, "calibrated_on": None if on is None else CalibratedOn(**on)})


def _span(span: Span) -> list[Any]:
    return [span.start, span.end, span.kind]
