"""Rules for monitoring, as a YAML file: what is judged, by which judges, and how much of it.

rules:
  - name: refunds
    where: {root.service: refunds, gen_ai.usage.output_tokens: {at_least: 20}}
    judges:
      - novelty
      - judge: hallucination
        model: openai:gpt-4o-mini
        uncertain: [0.2, 0.8]
        floor: 0.05
    sample: 0.25
    budget: {day: {dollars: 2}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from magistrate._yaml import DIALECT, Document, Key, dump_document, parse_document, read_document
from magistrate.engines.base import DEFAULT
from magistrate.errors import MagistrateError, SpecError
from magistrate.judges import registry
from magistrate.judges.base import check_binary
from magistrate.runs.spec import EnginePart, JudgeWords, RunSpec, anchored, judges_of, spec_from
from magistrate.watch.alert_rules import AlertPart, SinkPart
from magistrate.watch.outputs import SendPart
from magistrate.watch.parts import MOST_DAYS, Part, Seconds, under

COMPARED = ("above", "at_least", "below", "at_most")
ENVIRONMENT = ("deployment.environment.name", "deployment.environment")

Plain = str | int | float | bool
Share = Annotated[float, Field(gt=0, le=1)]


class Condition(Part):
    """A condition on the value of an attribute. All given fields must hold."""

    equals: Plain | None = Field(default=None, description="Equal to this.")
    one_of: list[Plain] | None = Field(default=None, alias="in", min_length=1, description="One of these.")
    exists: bool | None = Field(default=None, description="Whether it must exist or must not exist.")
    above: float | None = Field(default=None, description="A number above this.")
    at_least: float | None = Field(default=None, description="A number of at least this.")
    below: float | None = Field(default=None, description="A number below this.")
    at_most: float | None = Field(default=None, description="A number of at most this.")

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError(
                "has no condition; known: a value, equals, in, exists, above, at_least, below, at_most"
            )
        return self

    def why_not(self, attributes: Mapping[str, Any], name: str) -> str | None:
        """Return why the attribute `name` fails the condition, without quoting its value, or None."""
        if name not in attributes:
            return None if self.exists is False else "it does not exist"
        if self.exists is False:
            return "it exists"
        value = attributes[name]
        if self.equals is not None and not _same(value, self.equals):
            return f"it is not {self.equals!r}"
        if self.one_of is not None and not any(_same(value, each) for each in self.one_of):
            return "it is not one of the given values"
        for word in COMPARED:
            bound = getattr(self, word)
            if bound is not None and not _holds(value, word, bound):
                return f"it is not a number {word.replace('_', ' ')} {bound:g}"
        return None


def _same(value: Any, wanted: Plain) -> bool:
    """Return whether two values are equal; true is not 1."""
    return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)


def _holds(value: Any, word: str, bound: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return {
        "above": value > bound,
        "at_least": value >= bound,
        "below": value < bound,
        "at_most": value <= bound,
    }[word]


class JudgePart(EnginePart):
    """A judge and the model that it calls.

    Every judge after the first is called only if the previous one's score lies in the band `uncertain`, or
    if the previous one abstained because it was unsure or the sample was too long. It also judges a random
    share `floor` of all others, so that rates of the more expensive judge can be estimated for all targets.
    """

    judge: JudgeWords = Field(description="Its name, with options as on the command line.")
    uncertain: tuple[float, float] | None = Field(
        default=None,
        description="The range of scores of the judge before, [low, high]; by default [0.2, 0.8].",
    )
    floor: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="The share of certain verdicts that is also judged; by default 0.",
    )

    @model_validator(mode="before")
    @classmethod
    def _list_to_pair(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("uncertain"), list):
            return value | {"uncertain": tuple(value["uncertain"])}
        return value

    @property
    def band(self) -> tuple[float, float]:
        """The score band in which the previous judge is uncertain."""
        return self.uncertain or (0.2, 0.8)


class SamplePart(Part):
    """The share of traces that is judged."""

    rate: Share = Field(default=1.0, description="The share, in (0, 1].")
    cohort: str = Field(default="", description="Rules with the same cohort sample the same traces.")


class Amount(Part):
    """The most that may be spent in one window. All given limits hold."""

    calls: int | None = Field(default=None, ge=1, description="Calls of a model.")
    tokens: int | None = Field(default=None, ge=1, description="Tokens read and generated.")
    dollars: float | None = Field(default=None, gt=0, description="US dollars, at the judge's price.")


class BudgetPart(Part):
    """The budget of a rule per hour and per UTC day. What does not fit is judged in the next one."""

    hour: Amount = Field(default=Amount(), description="Per hour.")
    day: Amount = Field(default=Amount(), description="Per day.")

    @property
    def in_dollars(self) -> bool:
        """Whether the budget is in dollars, so that a price must be known."""
        return self.hour.dollars is not None or self.day.dollars is not None


Conditions = dict[
    str,
    Annotated[Condition, BeforeValidator(partial(under, "equals"), json_schema_input_type=Plain | Condition)],
]
Judges = list[
    Annotated[JudgePart, BeforeValidator(partial(under, "judge"), json_schema_input_type=str | JudgePart)]
]


class Rule(Part):
    """What is judged, by which judges, and how much of it."""

    name: str = Field(min_length=1, max_length=100, description="Its name in counts and reports.")
    target: Literal["answer", "call"] = Field(
        default="answer", description="What to judge: the answer of each trace, or each call of a model."
    )
    environment: str | None = Field(
        default=None, description="The deployment environment of spans; by default any."
    )
    where: Conditions = Field(
        default={},
        description="Conditions on attributes of the span, by name; attributes of the trace's root and of "
        "its resource start with `root.` and `resource.`.",
    )
    judges: Judges = Field(min_length=1, description="The judges, the cheap one first.")
    sample: Annotated[
        SamplePart, BeforeValidator(partial(under, "rate"), json_schema_input_type=Share | SamplePart)
    ] = Field(default=SamplePart(), description="The share of traces that is judged.")
    budget: BudgetPart = Field(default=BudgetPart(), description="The limits of what is spent.")
    quiet: Seconds = Field(
        default=10.0,
        ge=0,
        description="A trace is read when its root has ended and no span has come for this long.",
    )
    order: Literal["oldest", "newest"] = Field(default="oldest", description="The order of judging.")
    keep: Seconds | None = Field(
        default=None,
        gt=0,
        description="Answers that could not be judged for this long expire; by default never.",
    )
    most_queued: int | None = Field(
        default=None,
        ge=1,
        description="The maximum number that waits; the oldest are dropped above it; by default no limit.",
    )
    deadline: Seconds = Field(default=300.0, gt=0, description="Time limit for a verdict.")
    concurrency: int = Field(default=4, ge=1, description="How many targets are judged at the same time.")

    def plain(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, as JSON."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def yaml(self) -> str:
        """Return the rule as YAML."""
        return dump_document(self.plain())

    @property
    def digest(self) -> str:
        """The sha256 of the rule's content."""
        return sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()

    def specs(self) -> list[RunSpec]:
        """Build one run specification per judge, from which the judge and its engine are made."""
        found = []
        for part in self.judges:
            engine = part.model_dump(include=set(EnginePart.model_fields), exclude_defaults=True)
            limits = {"concurrency": self.concurrency, "deadline": self.deadline}
            values: dict[str, Any] = {
                "dataset": f"watch {self.name}",
                "judges": [part.judge],
                "limits": limits,
            }
            found.append(spec_from(values | ({"engines": {DEFAULT: engine}} if engine else {})))
        return found


class RuleFile(Part):
    """A whole rules file: rules, destinations of verdicts, alerts and retention."""

    rules: list[Rule] = Field(min_length=1, description="The rules; each one decides independently.")
    send: list[SendPart] = Field(default=[], description="Where verdicts are sent, over OTLP or to Phoenix.")
    alerts: list[AlertPart] = Field(default=[], description="Alerts on bounds of figures.")
    sinks: dict[str, SinkPart] = Field(default={}, description="The receivers of alerts, by name.")
    keep_days: float | None = Field(
        default=None,
        gt=0,
        le=MOST_DAYS,
        description="Traces that have received no span for this long are deleted; by default none.",
    )


def read_rule_file(path: Path) -> RuleFile:
    """Read a rules file, with absolute paths of judges, models and files.

    Raises `SpecError` with the file, line and key of an invalid value.
    """
    found, folder = rule_file_of(read_document(path)), path.absolute().parent
    sinks = {
        name: sink if sink.file is None else sink.model_copy(update={"file": str(folder / sink.file)})
        for name, sink in found.sinks.items()
    }
    rules = [_anchored(rule, folder) for rule in found.rules]
    return found.model_copy(update={"rules": rules, "sinks": sinks})


def rules_of(document: Document) -> list[Rule]:
    """Return the rules of a document. Each judge is constructed once to validate it."""
    return rule_file_of(document).rules


def rule_file_of(document: Document) -> RuleFile:
    """Parse and validate a rules document. Each judge is constructed once to validate it."""
    found = document.read_as(RuleFile)
    for number, rule in enumerate(found.rules):
        if rule.name in [each.name for each in found.rules[:number]]:
            raise document.error(("rules", number, "name"), f"{rule.name!r} is given twice")
        _check_judges(document, ("rules", number), rule)
    for number, part in enumerate(found.send):
        if part.destinations.keys() & {name for each in found.send[:number] for name in each.destinations}:
            raise document.error(("send", number), "the same results are already sent to this endpoint")
    for number, alert in enumerate(found.alerts):
        _check_alert(document, found, number, alert)
    return found


def edited_rule(text: str, current: Rule) -> Rule:
    """Parse the YAML of one rule as somebody has edited it from outside, such as on the page.

    `current` is the rule in the file. Its name stays, and its judges may be taken over as they are, with
    their models, files and addresses. Any other judge is an installed one, without a model of its own and
    with harmless options. Raises `SpecError` with the line and key of an invalid value.
    """
    document = parse_document(text, "rule")
    rule = document.read_as(Rule)
    if rule.name != current.name:
        raise document.error(("name",), f"stays {current.name!r}")
    known = [_engine_of(part) for part in current.judges]
    for place, part in enumerate(rule.judges):
        if (said := _engine_of(part)) in known:
            continue
        if said.keys() != {"judge"}:
            others = ", ".join(sorted(said.keys() - {"judge"}))
            raise document.error(
                ("judges", place), f"{others}: what a judge asks, and where, is said in the rules file alone"
            )
        try:  # before anything constructs it: it may name a file of code
            registry.judge(part.judge, outside=True)
        except MagistrateError as error:
            raise document.error(("judges", place, "judge"), str(error)) from None
    _check_judges(document, (), rule)
    return rule


def _engine_of(part: JudgePart) -> dict[str, Any]:
    """Return the judge and the settings of its engine, without defaults."""
    return part.model_dump(include={"judge", *EnginePart.model_fields}, exclude_defaults=True)


def _check_alert(document: Document, file: RuleFile, number: int, alert: AlertPart) -> None:
    names = [rule.name for rule in file.rules]
    if alert.name in [each.name for each in file.alerts[:number]]:
        raise document.error(("alerts", number, "name"), f"{alert.name!r} is given twice")
    if alert.rule is None and len(names) > 1:
        raise document.error(("alerts", number), f"has no rule; known: {', '.join(names)}")
    if alert.rule is not None and alert.rule not in names:
        raise document.error(("alerts", number, "rule"), f"no rule {alert.rule!r}; known: {', '.join(names)}")
    if alert.judge is not None:
        rule = next(each for each in file.rules if alert.rule in (None, each.name))
        judges = [judge.info.name for spec in rule.specs() for judge in judges_of(spec)]
        if alert.judge not in judges:
            told = f"rule {rule.name!r} has no judge {alert.judge!r}; known: {', '.join(judges)}"
            raise document.error(("alerts", number, "judge"), told)
    for name in alert.to or ():
        if name not in file.sinks:
            known = ", ".join(file.sinks) or "there are none"
            raise document.error(("alerts", number, "to"), f"no sink {name!r}; known: {known}")


def _check_judges(document: Document, where: Key, rule: Rule) -> None:
    names: list[str] = []
    for place, (part, spec) in enumerate(zip(rule.judges, rule.specs(), strict=True)):
        key = (*where, "judges", place)
        try:
            (judge,) = judges_of(spec)
            if len(rule.judges) > 1:
                check_binary(judge.info, "a rule with several judges")
        except SpecError as error:
            raise document.error((*key, "judge"), str(error)) from None
        if judge.info.lacks:
            raise document.error((*key, "judge"), f"{judge.info.name!r} {judge.info.lacks}")
        if judge.info.name in names:
            raise document.error((*key, "judge"), f"{judge.info.name!r} is given twice")
        names.append(judge.info.name)
        if place == 0 and (part.uncertain is not None or part.floor is not None):
            raise document.error(
                key, "the first judge judges everything; uncertain and floor are for later judges"
            )
        low, high = part.band
        if not 0 <= low <= high <= 1:
            raise document.error(
                (*key, "uncertain"), f"must go from low to high in [0, 1]; got {low:g} to {high:g}"
            )


def _anchored(rule: Rule, folder: Path) -> Rule:
    """Return the rule with absolute paths of judges and models, valid from any folder."""
    judges = []
    for part, spec in zip(rule.judges, rule.specs(), strict=True):
        whole = anchored(spec, folder)
        changes = {"judge": whole.judges[0], "model": whole.engine.model}
        judges.append(part.model_copy(update=changes))
    return rule.model_copy(update={"judges": judges})


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a rules file, for editors."""
    found = RuleFile.model_json_schema(mode="validation", by_alias=True)
    return {"$schema": DIALECT, **found, "title": "Rules of Magistrate"}
