"""Judges that are files: YAML with a prompt, its inputs, and labels or a schema with a rule."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from magistrate.documents import Document, parse_document, read_document
from magistrate.errors import ConstraintError, SpecError
from magistrate.judges.base import Judge
from magistrate.judges.classify import Classify, Criterion, with_section
from magistrate.judges.grade import Form, Grade
from magistrate.judges.passages import Passages
from magistrate.judges.question import Label
from magistrate.judges.template import PromptTemplate
from magistrate.judges.windows import Windows

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
INPUT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\??")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _label(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 2:
        return {"score": value[0], "description": value[1]}
    return value if isinstance(value, dict) else {"score": value}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LabelPart(_Part):
    """`LABEL: score`, `LABEL: [score, description]` or all of it by name."""

    score: float = Field(ge=0, le=1)
    description: str = ""
    answers: Annotated[list[str], BeforeValidator(_listed)] = []
    opening: str = ""


class DecisionPart(_Part):
    """How an object, or two labels' probabilities, become a label."""

    threshold: float | None = None
    score: str | None = None
    at_least: float | None = None
    label: str | None = None
    otherwise: str | None = None


class JudgeFile(_Part):
    """All that a judge's file may say."""

    name: str | None = None
    version: int = Field(1, ge=1)
    summary: str = ""
    direction: Literal["minimize", "maximize"] = "minimize"
    inputs: list[str] = Field(min_length=1)
    prompt: str = Field(min_length=1)
    labels: dict[str, Annotated[LabelPart, BeforeValidator(_label)]] | None = None
    categories: dict[str, str] = {}
    form: dict[str, Any] | None = Field(None, alias="schema")
    scale: tuple[float, float] = Field((0, 1), strict=False)
    decision: DecisionPart = DecisionPart()
    explanation: str | None = None
    explain: Literal["none", "before", "after"] = "none"
    permute: bool = False
    prior: Literal["none", "empty_context"] = "none"
    reread: str | None = None
    copied: str | None = None
    max_tokens: int = Field(512, ge=1)
    long: Literal["refuse", "windows", "passages"] = "refuse"

    @model_validator(mode="after")
    def _one_kind(self) -> JudgeFile:
        if (self.labels is None) == (self.form is None):
            raise ValueError(
                "give either 'labels' (the model chooses one) or 'schema' (it fills in an object)"
            )
        return self


def judge_from_file(path: Path) -> Judge:
    """The judge that a YAML file describes. Raises `SpecError` with line and key of what is wrong."""
    return _judge(read_document(path), path.stem)


def judge_from_package(package: str, name: str) -> Judge:
    """The judge in `judges/NAME.yaml`, or whatever path, of an installed package: for entry points.

    >>> judge_from_package("magistrate.judges", "builtin/faithfulness.yaml").info.name
    'faithfulness'
    """
    resource = files(package).joinpath(name)
    stem = name.rpartition("/")[2].partition(".")[0]
    return _judge(parse_document(resource.read_text(encoding="utf-8"), name), stem)


def _judge(document: Document, stem: str) -> Judge:
    described = document.read_as(JudgeFile)
    name = described.name or stem
    if not NAME.fullmatch(name):
        raise document.error(("name",), f"must be letters, digits, - and _, got {name!r:.80}")
    for index, each in enumerate(described.inputs):
        if not INPUT.fullmatch(each):
            raise document.error(
                ("inputs", index), f"must be a name, with ? where it may be missing; got {each!r:.80}"
            )
    judge = _classifier(document, described, name) if described.labels else _grader(document, described, name)
    if described.long == "refuse":
        return judge
    return Windows(judge, name) if described.long == "windows" else Passages(judge, name)


def _reads(described: JudgeFile) -> dict[str, Any]:
    return {
        "summary": described.summary,
        "direction": described.direction,
        "reads": tuple(each.removesuffix("?") for each in described.inputs),
        "requires": tuple(each for each in described.inputs if not each.endswith("?")),
    }


def _classifier(document: Document, described: JudgeFile, name: str) -> Judge:
    assert described.labels is not None
    _only(document, described, "labels", ("scale", "explanation", "max_tokens"))
    for part in ("score", "at_least", "label", "otherwise"):
        if getattr(described.decision, part) is not None:
            raise document.error(
                ("decision", part), "goes with 'schema'; between two labels 'threshold' decides"
            )
    try:
        criterion = Criterion(
            prompt=PromptTemplate(name, described.version, with_section(described.prompt)),
            labels=tuple(
                Label(each, part.score, part.description, tuple(part.answers), part.opening)
                for each, part in described.labels.items()
            ),
            categories=tuple(described.categories.items()),
            reread=PromptTemplate(name, described.version, with_section(described.reread))
            if described.reread
            else None,
            copied=described.copied,
            **_reads(described),
        )
        return Classify(
            criterion,
            explain=described.explain,
            permute=described.permute,
            prior=described.prior,
            threshold=described.decision.threshold,
        )
    except SpecError as error:
        raise _placed(document, error) from None


def _grader(document: Document, described: JudgeFile, name: str) -> Judge:
    assert described.form is not None
    _only(document, described, "schema", ("categories", "explain", "permute", "prior", "reread", "copied"))
    rule = described.decision
    for part in ("score", "at_least", "label", "otherwise"):
        if getattr(rule, part) is None:
            raise document.error(
                ("decision", part), "is missing: score, at_least, label and otherwise decide"
            )
    if rule.threshold is not None:
        raise document.error(("decision", "threshold"), "goes with 'labels'; here 'at_least' decides")
    try:
        form = Form(
            prompt=PromptTemplate(name, described.version, with_section(described.prompt)),
            schema=described.form,
            score=str(rule.score),
            scale=described.scale,
            at_least=float(rule.at_least or 0),
            label=str(rule.label),
            otherwise=str(rule.otherwise),
            explanation=described.explanation,
            **_reads(described),
        )
    except ConstraintError as error:
        pointer = [step for step in (error.pointer or "").split("/") if step]
        raise document.error(("schema", *pointer), str(error)) from None
    except SpecError as error:
        raise _placed(document, error) from None
    return Grade(form, max_tokens=described.max_tokens)


def _placed(document: Document, error: SpecError) -> SpecError:
    """An error of a judge's parts, with the line of the key that is to blame."""
    return document.error(error.key, str(error))


def _only(document: Document, described: JudgeFile, kind: str, foreign: tuple[str, ...]) -> None:
    """Refuse keys that would be ignored."""
    for key in foreign:
        if key in described.model_fields_set:
            raise document.error((key,), f"has no meaning beside {kind!r}")
