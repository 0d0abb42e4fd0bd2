"""Judges defined in YAML files: a prompt with labels or a schema, a courtroom, or another panel."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from magistrate._text import PLACE
from magistrate._yaml import DIALECT, Document, Key, parse_document, read_document
from magistrate.constraints import compile_check, constraint
from magistrate.errors import ConstraintError, SpecError
from magistrate.judges.base import LISTS, Judge
from magistrate.judges.classify import WORDS, Classify, Criterion, direction_of, with_section
from magistrate.judges.courtroom import Cast, Courtroom, Persona
from magistrate.judges.geval import GEval
from magistrate.judges.grade import Form, Grade
from magistrate.judges.jury import Jury
from magistrate.judges.pairwise import Pairwise
from magistrate.judges.passages import Passages
from magistrate.judges.question import Label
from magistrate.judges.template import PromptTemplate
from magistrate.judges.windows import Windows
from magistrate.metrics.jury import Pooling

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
INPUT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\??")
SECTIONS = ("system", "user", "assistant")
SECTION = re.compile(r"\s*===\s*(\w+)\s*")
KINDS = "'labels' (the model chooses one) or 'schema' (it fills in an object)"
DECISION = ("score", "at_least", "label", "otherwise")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _label(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) != 2:
            raise ValueError(f"a label must be a score or [score, description]; got a list of {len(value)}")
        return {"score": value[0], "description": value[1]}
    return value if isinstance(value, dict) else {"score": value}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


Texts = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])]

Score = Annotated[float, Field(ge=0, le=1)]


class LabelPart(_Part):
    """A label: `LABEL: score`, `LABEL: [score, description]`, or a mapping with all keys."""

    score: Score = Field(description="The score of a sample with this label.")
    description: str = Field("", description="What the label means; the model is told.")
    answers: Texts = Field([], description="What a model says for it, best one short, common word.")
    opening: str = Field("", description="How an explanation of the label begins; see 'explain'.")


class DecisionPart(_Part):
    """The rule that turns an object, or the probabilities of two labels, into a label."""

    threshold: float | None = Field(
        default=None, description="Of two labels, the one with the higher score is given from this score on."
    )
    score: str | None = Field(
        default=None, description="With a schema: the key of the number that is the score."
    )
    at_least: float | None = Field(
        default=None, description="With a schema: from here on the label is 'label'."
    )
    label: str | None = Field(default=None, description="With a schema: the label from 'at_least' on.")
    otherwise: str | None = Field(default=None, description="With a schema: the label below 'at_least'.")


Named = Annotated[str | None, Field(description="Its name in reports; by default the file's name.")]
Version = Annotated[int, Field(ge=1, description="Goes up with every change that could change a verdict.")]
Summary = Annotated[str, Field(description="One line that says what it does, for lists of judges.")]
Threshold = Annotated[float, Field(description="From this score on, the label is the one of high scores.")]
Labels = dict[
    str,
    Annotated[
        LabelPart,
        BeforeValidator(_label, json_schema_input_type=Score | tuple[Score, str] | LabelPart),
    ],
]


class JudgeFile(_Part):
    """A judge by a prompt: its model chooses one of several labels, or fills in an object of a schema."""

    name: Named = None
    version: Version = 1
    summary: Summary = ""
    direction: Literal["minimize", "maximize"] | None = Field(
        None, description="Which end of the score is the good one: minimize (0, the default) or maximize."
    )
    inputs: list[str] = Field(
        min_length=1, description="What the prompt shows of a sample; with ? behind it, it may be missing."
    )
    prompt: str = Field(min_length=1, description="What is asked: Jinja over the inputs, with {{ reply }}.")
    labels: Labels | None = Field(
        None, description="2 to 26 answers, each with a score from 0 to 1, or [score, meaning]."
    )
    categories: dict[str, str] = Field({}, description="Questions that the prompt asks one by one.")
    form: dict[str, Any] | None = Field(
        None, alias="schema", description="The JSON Schema of the object that the model fills in."
    )
    scale: tuple[float, float] = Field((0, 1), strict=False, description="The ends of the score's number.")
    decision: DecisionPart = Field(DecisionPart(), description="The rule for the label.")
    explanation: str | None = Field(None, description="The key of the schema with the explanation.")
    explain: Literal["none", "before", "after"] = Field(
        "none", description="Whether the model writes a sentence, before or after the verdict."
    )
    permute: bool = Field(False, description="Ask once for each order of the labels, and take the mean.")
    prior: Literal["none", "empty_context"] = Field(
        "none", description="Divide out what the prompt answers with an empty context."
    )
    reread: str | None = Field(None, min_length=1, description="The question about such a sentence.")
    copied: str | None = Field(None, description="The label of an output that is one of its contexts.")
    model: str = Field("", description="The model that is asked where none is named.")
    max_tokens: int = Field(512, ge=1, description="The most tokens of the object.")
    long: Literal["refuse", "windows", "passages"] = Field(
        "refuse", description="What becomes of a sample whose context does not fit the model."
    )


class PersonaPart(_Part):
    """A persona of a courtroom."""

    role: Literal["prosecutor", "defender", "arbiter"] = Field(description="What the persona does.")
    text: str = Field(min_length=1, description="What the model is told, after the answer.")


class CourtFile(_Part):
    """A courtroom: a prosecutor brings charges, a defender answers them, an arbiter decides on each."""

    name: Named = None
    version: Version = 1
    summary: Summary = ""
    personas: dict[str, PersonaPart] = Field(min_length=3, description="Who may take part.")
    flag: Texts | None = Field(None, description="The kinds of upheld charges that make it hallucinated.")
    least: int = Field(0, ge=0, description="The fewest charges.")
    most: int = Field(4, ge=1, description="The most charges.")
    rounds: int = Field(1, ge=0, description="How often both sides reply to each other.")
    budget_tokens: int = Field(0, ge=0, description="The most tokens of the speeches; 0 is any number.")
    combine: Literal["any", "max"] = Field("any", description="How the charges make one score.")
    order: Literal["both", "first"] = Field(
        "both", description="Whether the arbiter reads either side first, or only the prosecution."
    )
    unit: Literal["words", "sentences"] = Field("words", description="What a quote is a run of.")


class _PanelFile(_Part):
    kind: str
    name: Named = None


class JuryFile(_PanelFile):
    """A jury: several judges on each sample, one score."""

    kind: Literal["jury"]
    members: list[str] = Field(min_length=2, description="Judges, as on the command line.")
    aggregate: Pooling = Field("mean", description="How their scores make one.")
    weights: list[float] = Field([], strict=False, description="How much each member counts.")
    least: int = Field(2, ge=1, description="With fewer scores than this there is no verdict.")
    threshold: Threshold = 0.5


class GEvalFile(_PanelFile):
    """A grade by one criterion, after steps that never change."""

    kind: Literal["geval"]
    criteria: str = Field(min_length=1, description="What is graded, in a sentence or two.")
    steps: list[str] = Field([], description="What the model goes through before the grade.")
    scale: int | None = Field(None, description="The number of grades: 2 (the default), 3 or 5.")
    threshold: Threshold = 0.5


class PairwiseFile(_PanelFile):
    """Which of two answers is better by one criterion, asked in both orders."""

    kind: Literal["pairwise"]
    criteria: str = Field(min_length=1, description="What the better answer has more of.")
    ties: bool = Field(True, description="Whether the model may answer that neither is better.")


_READING: ContextVar[frozenset[Path]] = ContextVar("reading", default=frozenset())  # files, to see a circle
PANELS: Mapping[str, type[_PanelFile]] = {"jury": JuryFile, "geval": GEvalFile, "pairwise": PairwiseFile}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a judge's file, for editors. The keys that are there decide on its kind."""
    models: list[type[BaseModel]] = [JudgeFile, CourtFile, *PANELS.values()]
    _, found = models_json_schema([(each, "validation") for each in models])

    def of(model: type[BaseModel]) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{model.__name__}"}

    by_kind: list[dict[str, Any]] = [
        {"if": {"properties": {"kind": {"const": kind}}}, "then": of(model)} for kind, model in PANELS.items()
    ]
    panel: dict[str, Any] = {"properties": {"kind": {"enum": list(PANELS)}}, "allOf": by_kind}
    prompt: dict[str, Any] = {**of(JudgeFile), "oneOf": [{"required": ["labels"]}, {"required": ["schema"]}]}
    return {
        "$schema": DIALECT,
        "title": "A judge of Magistrate",
        "type": "object",
        "if": {"required": ["personas"]},
        "then": of(CourtFile),
        "else": {"if": {"required": ["kind"]}, "then": panel, "else": prompt},
        **found,
    }


def judge_from_file(path: Path) -> Judge:
    """Read the judge that a YAML file describes. Raises `SpecError` with line and key of the mistake."""
    place, around = path.absolute(), _READING.get()
    if place in around:
        raise SpecError(f"{path.name} has itself among its members")
    token = _READING.set(around | {place})
    try:
        return _judge(read_document(path), path.stem)
    finally:
        _READING.reset(token)


def judge_from_package(package: str, name: str) -> Judge:
    """Read a judge from the YAML file at path `name` in an installed package, for entry points.

    >>> judge_from_package("magistrate.judges", "builtin/faithfulness.yaml").info.name
    'faithfulness'
    """
    try:
        text = files(package).joinpath(name).read_text(encoding="utf-8")
    except (ImportError, OSError, ValueError) as error:
        raise SpecError(f"cannot read {name} of the package {package}: {error}") from None
    return _judge(parse_document(text, name), name.rpartition("/")[2].partition(".")[0])


def _judge(document: Document, stem: str) -> Judge:
    if "personas" in document.values:
        return _courtroom(document, stem)
    if "kind" in document.values:
        return _panel(document, stem)
    described = document.read_as(JudgeFile)
    name = _name(document, described.name, stem)
    if described.labels is None and described.form is None:
        raise document.error((), f"give either {KINDS}")
    if described.labels is not None and described.form is not None:
        raise document.error(("schema",), f"labels are also given; give either {KINDS}")
    _check_inputs(document, described)
    make = _classifier if described.form is None else _grader
    try:
        judge = make(document, described, name)
    except SpecError as error:
        # An error with a key comes from a part of the judge. One without has file and line already.
        raise document.error(error.key, str(error)) if error.key else error from None
    if described.long == "refuse":
        return judge
    if "context" not in [each.removesuffix("?") for each in described.inputs]:
        raise document.error(("long",), "only the context is cut, and it is not among the inputs")
    return Windows(judge, name) if described.long == "windows" else Passages(judge, name)


def _name(document: Document, given: str | None, stem: str) -> str:
    name = stem if given is None else given
    if not NAME.fullmatch(name):
        taken = "is taken from the file's name, and " if given is None else ""
        raise document.error(
            ("name",),
            f"{taken}must start with a letter, followed by letters, digits, - and _, at most 64 "
            f"characters; got {name!r:.80}",
        )
    return name


def _courtroom(document: Document, stem: str) -> Judge:
    described = document.read_as(CourtFile)
    personas = []
    for name, part in described.personas.items():
        if not NAME.fullmatch(name):
            raise document.error(
                ("personas", name),
                "a persona's name must start with a letter, followed by letters, digits, - and _",
            )
        try:
            personas.append(Persona(name, part.role, part.text.strip()))
        except SpecError as error:
            raise document.error(("personas", name, "text"), str(error)) from None
    options = described.model_dump(exclude={"name", "version", "summary", "personas"}, exclude_none=True)
    if described.flag is not None:
        options["flag"] = frozenset(described.flag)
    cast = Cast(tuple(personas), described.version, described.summary)
    try:
        return Courtroom(_name(document, described.name, stem), cast=cast, **options)
    except SpecError as error:
        raise document.error((), str(error)) from None


def _panel(document: Document, stem: str) -> Judge:
    kind = document.values["kind"]
    if not isinstance(kind, str) or kind not in PANELS:
        raise document.error(("kind",), f"must be one of {', '.join(PANELS)}; got {kind!r:.80}")
    described = document.read_as(PANELS[kind])
    name = _name(document, described.name, stem)
    members: tuple[Judge, ...] = ()
    if isinstance(described, JuryFile):
        members = tuple(_member(document, at, words) for at, words in enumerate(described.members))
    try:
        match described:
            case JuryFile():
                weights, least = tuple(described.weights), described.least
                return Jury(members, described.aggregate, weights, least, described.threshold, name)
            case GEvalFile():
                steps, scale = tuple(described.steps), described.scale
                return GEval(described.criteria.strip(), steps, scale, described.threshold, name=name)
            case _:
                assert isinstance(described, PairwiseFile)
                return Pairwise(described.criteria.strip(), described.ties, name)
    except SpecError as error:
        raise document.error(("kind",), str(error)) from None


def _member(document: Document, at: int, words: str) -> Judge:
    """Return a member of a jury by the words that name it on the command line."""
    from magistrate.judges import registry  # it reads files of judges with this module

    try:
        return registry.judge(words)
    except SpecError as error:
        raise document.error(("members", at), str(error)) from None


def _check_inputs(document: Document, described: JudgeFile) -> None:
    names = [each.removesuffix("?") for each in described.inputs]
    for index, (each, name) in enumerate(zip(described.inputs, names, strict=True)):
        if not INPUT.fullmatch(each):
            message = f"must be a name, followed by ? if it may be missing; got {each!r:.80}"
        elif name in names[:index]:
            message = f"{name!r} is given twice"
        elif name in (*WORDS, "self"):
            message = f"{name!r} has another meaning in a prompt; choose another name"
        else:
            continue
        raise document.error(("inputs", index), message)


def _reads(described: JudgeFile, scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the fields and the direction of a judge; the direction is declared or follows from `scores`."""
    return {
        "summary": described.summary,
        "direction": described.direction or direction_of(scores) or "minimize",
        "reads": tuple(each.removesuffix("?") for each in described.inputs),
        "requires": tuple(each for each in described.inputs if not each.endswith("?")),
    }


def _classifier(document: Document, described: JudgeFile, name: str) -> Judge:
    assert described.labels is not None
    _only(document, described, "labels", ("scale", "explanation", "max_tokens"))
    for part in DECISION:
        if getattr(described.decision, part) is not None:
            raise document.error(("decision", part), "is only for 'schema'; with two labels, use 'threshold'")
    labels = tuple(
        Label(each, part.score, part.description, tuple(part.answers), part.opening)
        for each, part in described.labels.items()
    )
    _check_labels(document, labels)
    category = ("category",) if described.categories else ()
    criterion = Criterion(
        prompt=_Text(document, described, name, "prompt").template(
            described.inputs, ("reply", *category), ("description",) if category else ()
        ),
        labels=labels,
        categories=tuple(described.categories.items()),
        reread=_Text(document, described, name, "reread").template(["explanation"], ("explanation", "reply"))
        if described.reread
        else None,
        copied=described.copied,
        model=described.model,
        **_reads(described, {each.name: each.score for each in labels}),
    )
    return Classify(
        criterion,
        explain=described.explain,
        permute=described.permute,
        prior=described.prior,
        threshold=described.decision.threshold,
    )


def _check_labels(document: Document, labels: Sequence[Label]) -> None:
    for label in labels:
        if not label.name.strip():
            raise document.error(("labels", label.name), "a label has no name")
    if len(labels) == 2 and labels[0].score == labels[1].score:
        raise document.error(
            ("labels", labels[1].name),
            f"both labels have the score {labels[1].score:g}; two labels need different scores",
        )


def _grader(document: Document, described: JudgeFile, name: str) -> Judge:
    assert described.form is not None
    _only(document, described, "schema", ("categories", "explain", "permute", "prior", "reread", "copied"))
    rule = described.decision
    if missing := [part for part in DECISION if getattr(rule, part) is None]:
        raise document.error(
            ("decision",), f"lacks {', '.join(missing)}; {', '.join(DECISION)} are needed for the verdict"
        )
    if rule.threshold is not None:
        raise document.error(("decision", "threshold"), "is only for 'labels'; with a schema, use 'at_least'")
    if rule.label == rule.otherwise or not (rule.label and rule.otherwise):
        raise document.error(("decision", "otherwise"), "the two labels must differ and not be empty")
    template = _Text(document, described, name, "prompt").template(described.inputs, ("reply",))
    try:
        _check_form(document, described)
        form = Form(
            prompt=template,
            schema=described.form,
            score=str(rule.score),
            scale=described.scale,
            at_least=float(rule.at_least or 0),
            label=str(rule.label),
            otherwise=str(rule.otherwise),
            explanation=described.explanation,
            **_reads(described, {str(rule.label): 1.0, str(rule.otherwise): 0.0}),
        )
    except ConstraintError as error:
        message = str(error).removeprefix(f"{error.pointer}: ").partition(", or Field(")[0]
        raise document.error(("schema", *_place(described.form, error.pointer)), message) from None
    return Grade(form, max_tokens=described.max_tokens)


def _place(form: Any, pointer: str | None) -> Key:
    """Return the keys that a JSON pointer names."""
    place: list[str | int] = []
    for token in (pointer or "#").split("/")[1:]:
        word = token.replace("~1", "/").replace("~0", "~")
        place.append(int(word) if isinstance(form, list) and PLACE.fullmatch(word) else word)
        try:
            form = form[place[-1]]
        except (KeyError, IndexError, TypeError):
            form = None
    return tuple(place)


def _check_form(document: Document, described: JudgeFile) -> None:
    """Reject a schema that the rule cannot read. Raises `ConstraintError` for an invalid schema."""
    form: Any = described.form
    shape = constraint(form)
    if shape.quotes:
        raise document.error(("schema",), "x-quote is only supported in judges written in Python")
    keys = form.get("properties")
    if form.get("type") != "object" or not keys:
        raise document.error(("schema",), "must be of 'type: object', with properties")
    compile_check(shape)
    low, high = described.scale
    score = keys.get(described.decision.score)
    if isinstance(score, dict):
        place = ("schema", "properties", str(described.decision.score))
        if score.get("type", "number") not in ("number", "integer"):
            raise document.error((*place, "type"), "the score must be a number or an integer")
        for key in ("minimum", "maximum"):
            if key in score and low < high and not low <= score[key] <= high:
                raise document.error(
                    (*place, key), f"{score[key]:g} is outside the scale, {low:g} to {high:g}; see 'scale'"
                )
        for each in score.get("enum", []):
            if isinstance(each, bool) or not isinstance(each, int | float) or not low <= each <= high:
                raise document.error(
                    (*place, "enum"),
                    f"{each!r} is not a number on the scale, {low:g} to {high:g}; see 'scale'",
                )
    text = keys.get(described.explanation)
    if isinstance(text, dict) and text.get("type", "string") not in ("string", "array"):
        raise document.error(("explanation",), f"{described.explanation!r} must be a string or an array")


@dataclass(frozen=True)
class _Text:
    """A prompt of the file, checked when the file is read, so that mistakes are reported with their line."""

    document: Document
    described: JudgeFile
    name: str
    key: Literal["prompt", "reread"]

    @property
    def text(self) -> str:
        return str(getattr(self.described, self.key))

    def template(self, inputs: Sequence[str], must: Sequence[str], may: Sequence[str] = ()) -> PromptTemplate:
        """Return the template over `inputs`. It must use the words in `must` and may use those in `may`."""
        self._check_sections()
        reads = [each.removesuffix("?") for each in inputs]
        self._check_names(reads, must, may)
        template = PromptTemplate(self.name, self.described.version, with_section(self.text))
        words = {word: "…" for word in (*must, *may) if word not in reads}
        given: dict[str, Any] = {each: ("…", "…") if each in LISTS else "…" for each in reads}
        self._try(template, given, words)
        if missing := [each.removesuffix("?") for each in inputs if each.endswith("?")]:
            less = {each: () if each in LISTS else "" for each in missing}
            self._try(template, given | less, words, f" (where there is no {' and no '.join(missing)})")
        return template

    def _error(self, message: str, row: int | None = None) -> SpecError:
        return self.document.error((self.key,), message, row=row)

    def _check_sections(self) -> None:
        rows = self.text.split("\n")
        found = [number for number, row in enumerate(rows) if SECTION.fullmatch(row)]
        for number in found:
            if rows[number] not in [f"=== {each}" for each in SECTIONS]:
                raise self._error(
                    f"a section starts with a line {_either([f'=== {each}' for each in SECTIONS])}; got "
                    f"{rows[number]!r:.80}",
                    number + 1,
                )
        before = "\n".join(rows[: found[0]]) if found else ""
        if re.sub(r"\{#.*?#\}|\{%.*?%\}", "", before, flags=re.DOTALL).strip():
            raise self._error("text before the first section would be lost", 1)
        if found and "=== user" not in rows:
            raise self._error("lacks a section '=== user' with the question")

    def _check_names(self, reads: Sequence[str], must: Sequence[str], may: Sequence[str]) -> None:
        from jinja2 import Environment, TemplateSyntaxError, nodes
        from jinja2.meta import find_undeclared_variables

        rows = self.text.rstrip("\n").split("\n")
        try:
            tree = Environment(autoescape=True).parse(self.text)
            names = find_undeclared_variables(tree)
        except TemplateSyntaxError as error:
            raise self._error(f"not Jinja: {error.message}", min(error.lineno, len(rows))) from None
        for each in tree.find_all(nodes.Filter):
            given = each.node.name if isinstance(each.node, nodes.Name) else ""
            if given in reads and given not in LISTS and each.name not in ("default", "d"):
                message = (
                    f"the filter {each.name!r} cannot be applied to {given}: inputs are inserted unchanged"
                )
                raise self._error(message, each.lineno)
        for name in sorted(names.difference(reads, must, may)):
            row = next((at for at, row in enumerate(rows, 1) if re.search(rf"\b{name}\b", row)), None)
            near = difflib.get_close_matches(name, [*reads, *must, *may], n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise self._error(
                f"the prompt uses {{{{ {name} }}}}, which is not among its inputs: {', '.join(reads)}{meant}",
                row,
            )
        for name in must:
            if name not in names:
                raise self._error(f"the prompt must use {{{{ {name} }}}}")

    def _try(
        self, template: PromptTemplate, fields: Mapping[str, Any], words: Mapping[str, Any], when: str = ""
    ) -> None:
        """Render the prompt once to find mistakes."""
        try:
            prompt = template.prompt(fields, words)
        except SpecError as error:
            raise self._error(str(error).removeprefix(f"prompt {self.name!r}: ") + when) from None
        except Exception as error:  # any exception that the template's expressions raise
            raise self._error(f"{type(error).__name__}: {error}{when}") from None
        if any(mark in message.text for message in prompt.messages for mark in "\ue000\ue001"):
            raise self._error("an input can be inserted, tested and iterated over, but not cut or changed")


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(repr(each) for each in words[:-1])} or {words[-1]!r}"


def _only(document: Document, described: JudgeFile, kind: str, foreign: tuple[str, ...]) -> None:
    """Reject keys that would be ignored."""
    for key in foreign:
        if key in described.model_fields_set:
            raise document.error((key,), f"cannot be combined with {kind!r}")
