"""The installed judges and the catalogue of models, as pages and as JSON."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from fastapi import APIRouter, Request, Response

from magistrate.engines.models.catalogue import Weights, entries
from magistrate.engines.models.pull import pulled
from magistrate.engines.none import NO_MODEL
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.quality import Measured, Summary, summaries
from magistrate.report.judges import Asks, Extra, asks_of, extras, listed, milliseconds, option_words
from magistrate.server.responses import error_responses, json_response, page
from magistrate.types import HALLUCINATED

WITHOUT_A_MODEL = "Without a model"
WITH_A_MODEL = "With a model"
AGAINST_A_REFERENCE = "With a reference or a rule"
TO_BE_SET_UP = "Needs a file or other judges first"
BROKEN = "Cannot be loaded"
GROUPS = (WITHOUT_A_MODEL, WITH_A_MODEL, AGAINST_A_REFERENCE, TO_BE_SET_UP, BROKEN)

router = APIRouter()
api = APIRouter(tags=["judges"])

_loading = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLine:
    """A judge in the list. If `error` is set, it cannot be used, and the other fields are empty.

    `reads` are the fields of a sample that it reads, `requires` those that must exist. `options` have their
    defaults. `lacks` is what it must be given before it can judge. `asked_here` is whether it can be used
    over HTTP without further setup. `model` is the model that it asks if none is named, None for code.
    `headline` is its quality as measured with that model, or without one; None if it was not measured.
    """

    name: str
    group: str
    default: bool
    version: int = 0
    summary: str = ""
    kind: str = ""
    direction: str = ""
    labels: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any]
    lacks: str = ""
    asked_here: bool = False
    model: str | None = None
    headline: Summary | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgesView:
    """All installed judges."""

    judges: tuple[JudgeLine, ...]

    def groups(self) -> list[tuple[str, list[JudgeLine]]]:
        """Return the non-empty groups with their judges."""
        found = ((name, [each for each in self.judges if each.group == name]) for name in GROUPS)
        return [(name, judges) for name, judges in found if judges]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeView:
    """One judge with all known facts.

    `long` is how it handles a sample that does not fit the model. `prompt` and `constraint` are digests of
    its prompt and constraint. `trained_on` names its training sets. `card` is the model card of a trained
    judge. `asks` is what its model may answer. `measured` has a row per set and model. `scores` are the
    scores of its labels, if each has one.
    """

    line: JudgeLine
    long: str
    prompt: str
    constraint: str
    scores: Mapping[str, float]
    trained_on: tuple[str, ...]
    card: str | None
    asks: Asks
    measured: tuple[Measured, ...]


def judges_view() -> JudgesView:
    """Return all judges, the default first, then the best ones. Imports them at the first call."""
    lines = (each if isinstance(each, JudgeLine) else each.line for each in _found().values())
    return JudgesView(judges=tuple(sorted(lines, key=_rank)))


def judge_view(name: str) -> JudgeView | JudgeLine:
    """Return one judge; only its line if it cannot be loaded. Raises `SpecError` for an unknown name."""
    found = _found().get(name)
    if found is None:
        raise SpecError(registry.unknown("judge", name[:100], list(_found())))
    return found


def _found() -> Mapping[str, JudgeView | JudgeLine]:
    with _loading:  # a second thread waits until they are imported
        return _loaded(tuple(registry.judge_entries().values()))


@cache
def _loaded(entries: tuple[EntryPoint, ...]) -> Mapping[str, JudgeView | JudgeLine]:
    return {entry.name: _view(entry.name) for entry in entries}


def _view(name: str) -> JudgeView | JudgeLine:
    listing = listed(name, registry.judge)
    if "error" in listing:
        return JudgeLine(name=name, group=BROKEN, default=False, options={}, error=listing["error"])
    measured = tuple(Measured(**each) for each in listing["measured"])
    return JudgeView(
        line=_line(name, listing, measured),
        long=listing["long"],
        prompt=listing["prompt"],
        constraint=listing["constraint"],
        scores=listing.get("scores", {}),
        trained_on=tuple(listing["trained_on"]),
        card=listing["card"],
        asks=asks_of(registry.judge(name)),
        measured=measured,
    )


def _line(name: str, listing: Mapping[str, Any], measured: tuple[Measured, ...]) -> JudgeLine:
    usual = (NO_MODEL, listing["model"])
    return JudgeLine(
        name=name,
        group=_group(listing),
        default=name == registry.DEFAULT_JUDGE,
        version=listing["version"],
        summary=listing["summary"],
        kind=listing["kind"],
        direction=listing["direction"],
        labels=tuple(listing["labels"]),
        reads=tuple(listing["reads"]),
        requires=tuple(listing["requires"]),
        needs=tuple(listing["needs"]),
        options=listing["options"],
        lacks=listing["lacks"],
        asked_here=not listing["lacks"],
        model=listing["model"],
        headline=next((each for each in summaries(measured) if each.model in usual), None),
    )


def _group(listing: Mapping[str, Any]) -> str:
    if listing["lacks"]:
        return TO_BE_SET_UP
    if listing["kind"] == "llm" or listing["needs"]:
        return WITH_A_MODEL
    return WITHOUT_A_MODEL if HALLUCINATED in listing["labels"] else AGAINST_A_REFERENCE


def _rank(line: JudgeLine) -> tuple[bool, float, str]:
    auroc = None if line.headline is None else line.headline.auroc
    return not line.default, 1.0 if auroc is None else -auroc, line.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """A model of the catalogue.

    `weights` are the variants that were pulled. `bytes` is the size of the download, `parameters` their
    number, `context_length` in tokens. `selftest` is whether expected answers for a self-test are known.
    `command` pulls the model.
    """

    name: str
    default: bool
    weights: tuple[Weights, ...]
    source: str
    sha256: str
    bytes: int
    quantization: str
    parameters: int
    context_length: int
    languages: tuple[str, ...]
    licence: str
    licence_source: str
    notes: str
    selftest: bool
    command: str

    @property
    def pulled(self) -> bool:
        """Whether it was pulled and can be used."""
        return bool(self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsView:
    """The models of the catalogue, and the optional parts of the package."""

    models: tuple[ModelLine, ...]
    extras: tuple[Extra, ...]


def models_view() -> ModelsView:
    """Return the catalogue, with what is currently on disk."""
    return ModelsView(
        models=tuple(
            ModelLine(
                name=each.name,
                default=each.default,
                weights=tuple(pulled(each)),
                source=str(each.source),
                sha256=each.sha256,
                bytes=each.size,
                quantization=each.quantization,
                parameters=each.parameters,
                context_length=each.context_length,
                languages=each.languages,
                licence=each.licence,
                licence_source=each.licence_source,
                notes=each.notes,
                selftest=each.selftest is not None,
                command=f"magistrate models pull {each.name}",
            )
            for each in entries()
        ),
        extras=tuple(extras()),
    )


# --- pages ----------------------------------------------------------------------------------------


@router.get("/judges")
def judges_page(request: Request) -> Response:
    """Show all installed judges."""
    view = judges_view()
    return page(request, "judges.html", view=view, milliseconds=milliseconds, option_words=option_words)


@router.get("/judges/{name}")
def judge_page(request: Request, name: str) -> Response:
    """Show one judge."""
    found = judge_view(name)
    line, view = (found, None) if isinstance(found, JudgeLine) else (found.line, found)
    words = [option_words(*each) for each in line.options.items()]
    return page(request, "judge_detail.html", line=line, view=view, options=words, milliseconds=milliseconds)


@router.get("/models")
def models_page(request: Request) -> Response:
    """Show the catalogue of models."""
    from magistrate.detectors.large import is_pulled

    return page(request, "models.html", view=models_view(), large=is_pulled())


# --- as JSON --------------------------------------------------------------------------------------


@api.get("/judges", response_model=JudgesView)
def judges() -> Response:
    """List every installed judge, including those that cannot be used, with the reason."""
    return json_response(asdict(judges_view()))


@api.get("/judges/{name}", response_model=JudgeView | JudgeLine, responses=error_responses(404, 422))
def judge(name: str) -> Response:
    """Get one judge with all known facts; only its line if it cannot be loaded."""
    return json_response(asdict(judge_view(name)))


@api.get("/models")
def models() -> ModelsView:
    """Get the catalogue of models with the pulled variants, and the installed extras of the package."""
    return models_view()
