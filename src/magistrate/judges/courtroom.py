"""The judge `courtroom`: a prosecutor brings charges, a defender answers them, an arbiter rules on each.

All quotes are verbatim. The arbiter does not know which side it reads, and decides in both orders of the
sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal, get_args

from magistrate.constraints import Constraint, constraint
from magistrate.constraints.quote import Quote, Unit, quote_schema, quoted
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Capability, Choice, Engine, Generation, Option, Sampling, in_role, require
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.base import LABELS, READS, Call, JudgeInfo, label_of, probability_of, unfit
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.question import Answers, Label, choose_label
from magistrate.judges.rubric import COMBINE, FLAG, Combine, check_flag, decided
from magistrate.judges.template import HEADER, builtin_prompt, fields_of
from magistrate.types import FAITHFUL, HALLUCINATED, Claim, Data, Outcome, Prompt, Sample, Span, Verdict

Role = Literal["prosecutor", "defender", "arbiter"]
ROLES: tuple[Role, ...] = get_args(Role)
Stopped = Literal["no charge", "rounds", "all conceded", "nothing new", "tokens", "window"]

Side = Literal["prosecution", "defence"]
PROSECUTION: Literal["prosecution"] = "prosecution"
DEFENCE: Literal["defence"] = "defence"
OPENING = (Label(FAITHFUL, 0.0, answers=("Yes",)), Label(HALLUCINATED, 1.0, answers=("No",)))
ARGUMENT = 200  # characters, at most
CHARGE_TOKENS = 128  # reserved per charge; beyond that the engine steers the text to its end
REPLY_TOKENS = 96  # reserved per reply to a charge
HEAD_TOKENS = 32  # for the template's words around a charge's speeches
THRESHOLD = 0.5  # a charge is upheld at this probability and above


# --- participants ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persona:
    """A participant: a name, a role, and the instructions for the model.

    The text is trusted and part of the prompt. Raises `SpecError` if it is empty or would end a prompt
    section.
    """

    name: str
    role: Role
    text: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise SpecError(
                f"the role of persona {self.name!r} must be {' or '.join(ROLES)}, got {self.role!r}"
            )
        if not self.text.strip() or HEADER.search(self.text) or "\ue000" in self.text:
            raise SpecError(f"persona {self.name!r} needs a text without a line that starts with '==='")


@dataclass(frozen=True, slots=True)
class Cast:
    """The available personas, at least one per role. With `version` 0 the prompt's version is used."""

    personas: tuple[Persona, ...]
    version: int = 0
    summary: str = "a prosecutor's charges and a defence, both with quotes, and a blind ruling on each charge"

    def named(self, names: Sequence[str], role: Role) -> tuple[Persona, ...]:
        """Return the personas in `names` with this role, or the first with this role if none is named.

        Raises `SpecError` for unknown names, and for several personas in a role other than arbiter.
        """
        known = {persona.name: persona for persona in self.personas}
        if unknown := [name for name in names if name not in known]:
            raise SpecError(f"there is no persona {unknown[0]!r}; known: {', '.join(known)}")
        found = [known[name] for name in dict.fromkeys(names) if known[name].role == role]
        found = found or [persona for persona in self.personas if persona.role == role][:1]
        if not found or (len(found) > 1 and role != "arbiter"):
            told = " and ".join(persona.name for persona in found) or "nobody"
            raise SpecError(f"a courtroom needs exactly one {role}, got {told}")
        return tuple(found)


@cache
def shipped_cast() -> Cast:
    """Return the personas of the package, from `judges/personas.toml`."""
    import tomllib

    told = tomllib.loads((files("magistrate.judges") / "personas.toml").read_text(encoding="utf-8"))
    return Cast(tuple(Persona(name, each["role"], each["text"].strip()) for name, each in told.items()))


# --- charges and speeches -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Charge:
    """A quote from the output that the prosecutor claims is contradicted by the context, or not in it."""

    number: int
    kind: Literal["contradiction", "unsupported"]
    words: Quote
    against: Quote | None
    argument: str

    @property
    def key(self) -> str:
        """Its key in the JSON of replies."""
        return f"charge_{self.number}"


@dataclass(frozen=True, slots=True)
class Speech:
    """What one side says about a charge. The charge itself is the prosecution's first speech.

    With `yields` a side ends its part: the defence concedes, or the prosecution rests.
    """

    side: Side
    yields: bool = False
    quote: Quote | None = None
    argument: str = ""


@dataclass
class Trial:
    """All speeches by charge number, and why the hearing stopped."""

    charges: list[Charge]
    speeches: dict[int, list[Speech]]
    spent: int = 0
    rounds: int = 0
    stopped: Stopped = "rounds"
    steered: list[str] = field(default_factory=list)

    @property
    def open(self) -> list[Charge]:
        """The charges that the defence has not conceded."""
        return [charge for charge in self.charges if not self.conceded(charge)]

    def conceded(self, charge: Charge) -> bool:
        """Return whether the defence has conceded a charge."""
        return any(said.side == DEFENCE and said.yields for said in self.speeches[charge.number])

    def add(self, charge: Charge, said: Speech) -> bool:
        """Store a speech. Return whether it quotes words that were not quoted before for this charge."""
        before = {str(each.quote) for each in self.speeches[charge.number] if each.quote is not None}
        self.speeches[charge.number].append(said)
        return said.quote is not None and str(said.quote) not in before


# --- the judge ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Courtroom:
    """Brings `least` to `most` charges against an output, has them defended, and decides on each.

    First one forward pass gives the probability that the context does not support the output. Then the
    prosecutor brings charges, each with a quote from the output and, for a contradiction, one from the
    context. Without a charge that first probability is the score. The defender must concede each charge or
    quote the context. Then both sides reply to each other up to `rounds` times. That ends early if
    everything is conceded, neither side quotes anything new, the speeches have used `budget_tokens` tokens
    (0: no limit), or the next speech does not fit the model's window.

    For each charge the arbiter decides which of two sides is right, without knowing which is which. It
    decides once with each side first (`order=first`: only with the prosecution first), and the
    probabilities are averaged. A charge upheld with a probability of at least .5 becomes a claim of its
    kind, any other one a claim of `agreement`. The claims and `flag` decide as in a rubric, see `decided`.
    `combine` makes one score of them: `any` treats them as independent probabilities, `max` takes the
    highest.

    `prosecutor`, `defender` and `arbiter` are engines, by default the run's engine. `personas` are names in
    `cast`; by default the first persona of each role is used. Several arbiters all decide, and are
    averaged. If one call fails, the whole judgement fails.
    """

    name: str = "courtroom"
    flag: frozenset[str] = FLAG
    least: int = 0
    most: int = 4
    rounds: int = 1
    budget_tokens: int = 0
    combine: Combine = "any"
    order: Literal["both", "first"] = "both"
    unit: Unit = "words"
    prosecutor: Engine | None = None
    defender: Engine | None = None
    arbiter: Engine | None = None
    personas: tuple[str, ...] = ()
    cast: Cast = field(default_factory=shipped_cast)

    def __post_init__(self) -> None:
        check_flag(self.flag)
        if not (0 <= self.least <= self.most and 1 <= self.most <= 20):
            raise SpecError(
                "the number of charges must be least to most, with most 1 to 20; got "
                f"{self.least} and {self.most}"
            )
        if not (0 <= self.rounds <= 10 and self.budget_tokens >= 0):
            raise SpecError(
                f"rounds must be 0 to 10 and budget_tokens at least 0; got {self.rounds} and "
                f"{self.budget_tokens}"
            )
        if self.combine not in COMBINE or self.order not in ("both", "first"):
            raise SpecError(
                f"combine must be any or max, and order both or first; got {self.combine} and {self.order}"
            )
        for role in ROLES:
            self._of(role)
        for engine, who in ((self.prosecutor, "prosecutor"), (self.defender, "defender")):
            if engine is not None:
                require(engine.info, frozenset({"generate", "constraints"}), f"the {who} of a courtroom")
        if self.arbiter is not None:
            require(self.arbiter.info, frozenset({"choose"}), "the arbiter of a courtroom")

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("courtroom")
        needs: set[Capability] = set() if self.arbiter is not None else {"choose"}
        if self.prosecutor is None or self.defender is None:
            needs |= {"generate", "constraints"}
        return JudgeInfo(
            name=self.name,
            version=self.cast.version or prompt.version,
            summary=self.cast.summary,
            labels=LABELS,
            reads=READS,
            requires=("context", "output"),
            needs=frozenset(needs),
            prompt=f"{prompt.digest}+{self._cast_digest}",
            constraint=self._shapes_digest,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls of the opening, charges, defence, optional replies and the longest ruling."""
        charge = Charge(1, "unsupported", Quote("…", "output", 0, 0), None, "…")
        trial = Trial([charge], {1: []})
        said = self.most * (CHARGE_TOKENS + HEAD_TOKENS)
        reply = self.most * (REPLY_TOKENS + HEAD_TOKENS)
        arguing = (1 + 2 * self.rounds) * reply
        orders = (2 if self.order == "both" else 1) * len(self._of("arbiter"))
        times = self.rounds
        calls = [
            Call(self._opening(sample, Answers(OPENING)), engine=self.arbiter),
            Call(self._charging(sample), self._charge_budget, engine=self.prosecutor),
            Call(self._replying(sample, trial, DEFENCE), self._reply_budget(self.most), said, self.defender),
            *(
                Call(
                    self._replying(sample, trial, side),
                    self._reply_budget(self.most),
                    said + arguing,
                    engine,
                    times=times,
                    optional=True,
                )
                for side, engine in ((PROSECUTION, self.prosecutor), (DEFENCE, self.defender))
                if times
            ),
        ]
        ruling = self._ruling(sample, trial, charge, self._of("arbiter")[0], True)
        room = (said + reply) // self.most  # a reply is requested only if all that follows fits
        return [*calls, Call(ruling, 1, room, self.arbiter, times=self.most * orders)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        court = _Engines(
            in_role(engine, self.prosecutor), in_role(engine, self.defender), in_role(engine, self.arbiter)
        )
        opening = await choose_label(court.arbiter, OPENING, lambda answers: self._opening(sample, answers))
        suspected = opening.probability(HALLUCINATED)
        trial = await self._heard(sample, court)
        details: dict[str, Any] = {
            "opening": suspected,
            "stopped": trial.stopped,
            "rounds": trial.rounds,
            "steered": trial.steered,
        }
        if not trial.charges:
            label = label_of(suspected, THRESHOLD)
            sure = None if opening.probabilities is None else probability_of(label, suspected)
            told = "there was no charge; the score is from the opening question"
            return Verdict(
                sample.id,
                self.name,
                label,
                suspected,
                sure,
                told,
                mass=opening.mass,
                details={**details, "trial": []},
            )
        rulings = await gather_or_cancel(
            self._ruled(sample, trial, charge, court.arbiter) for charge in trial.charges
        )
        decisions = list(zip(trial.charges, rulings, strict=True))
        details |= {"combine": self.combine, "trial": [_recorded(*each, trial) for each in decisions]}
        claims = tuple(_claim(*each, trial) for each in decisions)
        return decided(
            Verdict(sample.id, self.name, FAITHFUL, 0.0, claims=claims, details=details), self.flag
        )

    # --- the hearing ------------------------------------------------------------------------------

    async def _heard(self, sample: Sample, court: _Engines) -> Trial:
        """Run the hearing: charges, defence and replies."""
        prompt = self._charging(sample)
        written = await court.prosecutor.generate(
            prompt, _over(self._charges(sample), sample), sampling=Sampling(max_tokens=self._charge_budget)
        )
        _check_whole(written, "prosecutor")
        charges = _numbered(sample, written.value["charges"], self.unit)
        if written.steered and not charges:
            raise InvalidOutput("the prosecutor was cut off before a charge was written", written.text)
        trial = Trial(charges, {charge.number: [] for charge in charges})
        if not charges:
            trial.stopped = "no charge"
            return trial
        for charge in charges:
            trial.add(charge, Speech(PROSECUTION, quote=charge.against, argument=charge.argument))
        await self._spent(trial, court.prosecutor, prompt, written)
        _note_steered(trial, written, f"{PROSECUTION}, speech 1")
        await self._speech(sample, trial, DEFENCE, court.defender)
        while (stopped := await self._over(sample, trial, court)) is None:
            new = await self._speech(sample, trial, PROSECUTION, court.prosecutor)
            new |= await self._speech(sample, trial, DEFENCE, court.defender)
            trial.rounds += 1
            if not new and trial.open:
                stopped = "nothing new"
                break
        trial.stopped = stopped
        return trial

    async def _over(self, sample: Sample, trial: Trial, court: _Engines) -> Stopped | None:
        """Return why the hearing stops here, None if another round follows."""
        if not trial.open:
            return "all conceded"
        if trial.rounds >= self.rounds:
            return "rounds"
        if self.budget_tokens and trial.spent >= self.budget_tokens:
            return "tokens"
        budget = self._reply_budget(len(trial.open))
        more = len(trial.open) * (REPLY_TOKENS + HEAD_TOKENS)  # the prosecution's next speech
        for side, engine, extra in ((PROSECUTION, court.prosecutor, 0), (DEFENCE, court.defender, more)):
            if await unfit(Call(self._replying(sample, trial, side), budget, extra), engine):
                return "window"
        return None

    async def _speech(self, sample: Sample, trial: Trial, side: Side, engine: Engine) -> bool:
        """Let a side reply to every open charge. Return whether it quoted anything new."""
        charges = trial.open
        prompt = self._replying(sample, trial, side)
        shape = _over(self._replies(sample, charges, side), sample)
        written = await engine.generate(
            prompt, shape, sampling=Sampling(max_tokens=self._reply_budget(len(charges)))
        )
        _check_whole(written, "prosecutor" if side == PROSECUTION else "defender")
        spoken = sum(said.side == side for said in trial.speeches[charges[0].number])
        _note_steered(trial, written, f"{side}, speech {spoken + 1}")
        new = False
        for charge in charges:
            new |= trial.add(charge, _speech_of(sample, written.value[charge.key], side, self.unit))
        await self._spent(trial, engine, prompt, written)
        return new

    async def _spent(self, trial: Trial, engine: Engine, prompt: Prompt, written: Generation) -> None:
        """Add a speech's tokens, counted from the text and not from usage, so that cached calls count too."""
        if self.budget_tokens:
            whole = prompt.continued(Data(written.text, "speech"))
            trial.spent += await engine.count(whole)

    async def _ruled(self, sample: Sample, trial: Trial, charge: Charge, engine: Engine) -> _Ruling:
        """Rule on a charge: average over the arbiters and both orders."""
        asked = [
            (persona, first)
            for persona in self._of("arbiter")
            for first in ((True, False) if self.order == "both" else (True,))
        ]
        choices = await gather_or_cancel(
            engine.choose(self._ruling(sample, trial, charge, persona, first), _sides(first))
            for persona, first in asked
        )
        said = [(*each, choice) for each, choice in zip(asked, choices, strict=True)]
        return _Ruling.of(charge, [(persona.name, first, choice) for persona, first, choice in said])

    # --- prompts and shapes -----------------------------------------------------------------------

    def _of(self, role: Role) -> tuple[Persona, ...]:
        return self.cast.named(self.personas, role)

    @cached_property
    def _cast_digest(self) -> str:
        told = repr([self._of(role) for role in ROLES])
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    @cached_property
    def _shapes_digest(self) -> str:
        nothing = Sample("", "")
        charge = [Charge(1, "unsupported", Quote("", "output", 0, 0), None, "")]
        replies = [self._replies(nothing, charge, side) for side in (DEFENCE, PROSECUTION)]
        return "+".join(shape.digest for shape in (self._charges(nothing), *replies))

    def _prompt(self, sample: Sample, stage: str, words: Mapping[str, Any], **said: Any) -> Prompt:
        known = {"persona": "", "record": [], "open": "", "count": "", "reply": ""}
        fields = {**fields_of(sample, READS), "disputed": "", "said": (), **said}
        return builtin_prompt("courtroom").prompt(fields, {**known, "stage": stage, **words})

    def _opening(self, sample: Sample, answers: Answers) -> Prompt:
        return self._prompt(sample, "open", {"reply": answers.reply()})

    def _charging(self, sample: Sample) -> Prompt:
        count = f"{self.least} to {self.most}" if self.least else f"at most {self.most}, or none"
        words = {"persona": self._of("prosecutor")[0].text, "count": count}
        return self._prompt(sample, "charge", words)

    def _replying(self, sample: Sample, trial: Trial, side: Side) -> Prompt:
        """Return the prompt for a side's reply."""
        names = {PROSECUTION: "Prosecution", DEFENCE: "Defence"}
        lines: list[tuple[str, str | None]] = []
        for charge in trial.charges:
            state = ", conceded" if trial.conceded(charge) else ""
            head = f"Charge {charge.number}{state}, against these words of the answer: "
            lines.append((head, str(charge.words)))
            lines += _lines(charge, trial.speeches[charge.number], names)
        role: Role = "prosecutor" if side == PROSECUTION else "defender"
        words = {"persona": self._of(role)[0].text, "open": ", ".join(charge.key for charge in trial.open)}
        return self._with_record(sample, "rebut" if side == PROSECUTION else "defend", words, lines)

    def _ruling(self, sample: Sample, trial: Trial, charge: Charge, persona: Persona, first: bool) -> Prompt:
        """Return the arbiter's prompt for a charge, with the prosecution as Side 1 (`first`) or as Side 2."""
        sides = (PROSECUTION, DEFENCE) if first else (DEFENCE, PROSECUTION)
        lines: list[tuple[str, str | None]] = []
        for number, side in enumerate(sides, 1):
            spoken = [each for each in trial.speeches[charge.number] if each.side == side]
            lines += _lines(charge, spoken, {side: f"Side {number}"})
        return self._with_record(sample, "rule", {"persona": persona.text}, lines, disputed=str(charge.words))

    def _with_record(
        self,
        sample: Sample,
        stage: str,
        words: Mapping[str, Any],
        lines: Sequence[tuple[str, str | None]],
        **said: str,
    ) -> Prompt:
        """Return a prompt that shows the speeches: the template's words as trusted text, all else as data."""
        texts = [text for _, text in lines if text is not None]
        places: Iterator[int] = iter(range(len(texts)))
        record = [{"head": head, "at": None if text is None else next(places)} for head, text in lines]
        return self._prompt(sample, stage, {**words, "record": record}, said=tuple(texts), **said)

    @property
    def _charge_budget(self) -> int:
        return CHARGE_TOKENS * self.most + 16

    def _reply_budget(self, charges: int) -> int:
        return REPLY_TOKENS * charges + 16

    def _charges(self, sample: Sample) -> Constraint:
        """Return the schema of up to `most` charges. Only a contradiction quotes the context."""
        words = quote_schema("output", self.unit, (sample.output or "",))

        def charge(kind: str, against: Mapping[str, Any]) -> dict[str, Any]:
            named = {"answer_quote": words, "kind": {"enum": [kind]}, "context_quote": against}
            return closed_object({**named, "argument": short_text(ARGUMENT)})

        kinds = [
            charge("contradiction", quote_schema("context", self.unit, sample.sources)),
            charge("unsupported", {"type": "null"}),
        ]
        charges = {"type": "array", "items": {"anyOf": kinds}, "minItems": self.least, "maxItems": self.most}
        return constraint(closed_object({"charges": charges}))

    def _replies(self, sample: Sample, charges: Sequence[Charge], side: Side) -> Constraint:
        """Return the schema of replies to all charges.

        The defence concedes or quotes; the prosecution rests or speaks.
        """
        against = quote_schema("context", self.unit, sample.sources)
        argument = {"argument": short_text(ARGUMENT)}
        key = "concede" if side == DEFENCE else "rest"
        goes_on = {key: {"enum": [False]}}
        replies = [
            closed_object({key: {"enum": [True]}}),
            closed_object({**goes_on, "context_quote": against, **argument}),
        ]
        if side == PROSECUTION:
            replies.append(closed_object({**goes_on, "context_quote": {"type": "null"}, **argument}))
        return constraint(closed_object({charge.key: {"anyOf": replies} for charge in charges}))


@dataclass(frozen=True, slots=True)
class _Engines:
    """The engine of each role."""

    prosecutor: Engine
    defender: Engine
    arbiter: Engine


@dataclass(frozen=True, slots=True)
class _Ruling:
    """The decision on a charge. `probability` that it is right is None if the engine only named a side."""

    upheld: bool
    probability: float | None
    mass: float | None
    votes: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, charge: Charge, asked: Sequence[tuple[str, bool, Choice]]) -> _Ruling:
        """Average the arbiters' choices. Raises `InvalidOutput` for a tie without probabilities."""
        votes = tuple(
            {
                "arbiter": name,
                "side_1": PROSECUTION if first else DEFENCE,
                "for": choice.best,
                "probability": None if choice.probabilities is None else choice.probabilities[PROSECUTION],
            }
            for name, first, choice in asked
        )
        choices = [choice for _, _, choice in asked]
        masses = [choice.mass for choice in choices if choice.mass is not None]
        mass = min(masses, default=None)
        shares = [choice.probabilities[PROSECUTION] for choice in choices if choice.probabilities is not None]
        if len(shares) == len(choices):
            share = sum(shares) / len(shares)
            return cls(share >= THRESHOLD, share, mass, votes)
        ayes = sum(choice.best == PROSECUTION for choice in choices)
        if 2 * ayes == len(choices):
            raise InvalidOutput(
                f"the arbiter has no probabilities, and on charge {charge.number} it decided for both sides",
                ", ".join(choice.best for choice in choices),
            )
        return cls(2 * ayes > len(choices), None, mass, votes)


def _sides(first: bool) -> tuple[Option, Option]:
    """Return the digits that an arbiter answers with, as options for the two sides."""
    mine, theirs = ("1", "2") if first else ("2", "1")
    return Option(PROSECUTION, (mine, f" {mine}")), Option(DEFENCE, (theirs, f" {theirs}"))


def _check_whole(written: Generation, role: str) -> None:
    """Raise `InvalidOutput` if a speech was cut off."""
    if written.finish == "length":
        raise InvalidOutput(f"the {role} was cut off at the token limit", written.text)


def _note_steered(trial: Trial, written: Generation, what: str) -> None:
    if written.steered:
        trial.steered.append(what)


def _over(shape: Constraint, sample: Sample) -> Constraint:
    """Return the constraint with its quotes bound to the sample's texts."""
    texts = {"output": sample.output or "", "context": sample.sources}
    return shape.over(**{name: texts[name] for name in shape.quotes})


def _numbered(sample: Sample, written: Sequence[Mapping[str, Any]], unit: Unit) -> list[Charge]:
    """Number the charges, without duplicates: small models repeat themselves."""
    found: dict[tuple[str, str, str | None], Charge] = {}
    for each in written:
        words = quoted(each["answer_quote"], "output", unit, (sample.output or "",))
        against = each["context_quote"]
        if against is not None:
            against = quoted(against, "context", unit, sample.sources)
        key = (str(words), each["kind"], None if against is None else str(against))
        found.setdefault(key, Charge(len(found) + 1, each["kind"], words, against, each["argument"]))
    return list(found.values())


def _speech_of(sample: Sample, written: Mapping[str, Any], side: Side, unit: Unit) -> Speech:
    if written.get("concede") or written.get("rest"):
        return Speech(side, yields=True)
    against = written["context_quote"]
    quote = None if against is None else quoted(against, "context", unit, sample.sources)
    return Speech(side, quote=quote, argument=written["argument"])


def _lines(
    charge: Charge, spoken: Sequence[Speech], names: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Yield the speeches about a charge as lines: our own words, then a participant's words or None."""
    held = {
        "contradiction": "the context says otherwise",
        "unsupported": "the context says nothing of the kind",
    }
    begun: set[str] = set()
    for said in spoken:
        name = names[said.side]
        if said.side not in begun and not said.yields:
            holds = held[charge.kind] if said.side == PROSECUTION else "the context bears them out"
            yield f"{name} holds that {holds}.", None
        begun.add(said.side)
        if said.yields:
            no_more = "nothing to add" if said.side == PROSECUTION else "no words of the context to show"
            yield f"{name} has {no_more}.", None
        if said.quote is not None:
            yield f"{name} quotes the context: ", str(said.quote)
        if said.argument:
            yield f"{name} argues: ", said.argument


def _recorded(charge: Charge, ruling: _Ruling, trial: Trial) -> dict[str, Any]:
    """Return a charge as plain values, for the verdict's details."""
    return {
        "charge": charge.number,
        "kind": charge.kind,
        "words": str(charge.words),
        "speeches": [
            {
                "side": said.side,
                "yields": said.yields,
                "quote": None if said.quote is None else str(said.quote),
                "argument": said.argument,
            }
            for said in trial.speeches[charge.number]
        ],
        "upheld": ruling.upheld,
        "probability": ruling.probability,
        "mass": ruling.mass,
        "votes": list(ruling.votes),
    }


def _claim(charge: Charge, ruling: _Ruling, trial: Trial) -> Claim:
    """Return an upheld charge as a claim of its kind, any other as an agreement with the defence's quote."""
    share = ruling.probability
    defence = next((each for each in trial.speeches[charge.number] if each.side == DEFENCE), None)
    beside, reasoning = charge.against, charge.argument
    if not ruling.upheld and defence is not None and defence.quote is not None:
        beside, reasoning = defence.quote, defence.argument
    return Claim(
        kind=charge.kind if ruling.upheld else "agreement",
        output_quote=Span(charge.words.start, charge.words.end, charge.kind),
        context_quote=None if beside is None else Span(beside.start, beside.end, "statement"),
        context_index=None if beside is None else beside.source_index,
        reasoning=reasoning,
        probability=share if ruling.upheld or share is None else 1 - share,
        output_text=str(charge.words),
        context_text=None if beside is None else str(beside),
    )
