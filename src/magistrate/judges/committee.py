"""The judge `committee`: several members vote on two answers, discuss once if they differ, and vote again.

Each member does all of it in both orders: the output is answer A and stands first, or answer B and stands
second. Before that, the two sides may examine each other, see `cross_examination`.

Create it in Python, as `magistrate arena` does, because its members are objects.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from magistrate.constraints import Constraint, constraint
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Capability, Engine, Sampling, in_role, require
from magistrate.errors import EngineError, InvalidOutput, SpecError
from magistrate.judges import cross_examination
from magistrate.judges.base import READS, Call, JudgeInfo
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.cross_examination import NAMES, SWAPPED, CrossExamination, Exchange, record_of
from magistrate.judges.outcomes import FATAL, member_outcome
from magistrate.judges.pairwise import BETTER, FAITHFULNESS, FIRST, SECOND, TIE, WORSE
from magistrate.judges.question import Answers, Label, LabelProbabilities, choose_label
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import Abstention, Failure, Outcome, Prompt, Sample, Verdict

ARGUMENT = 300  # characters
ARGUMENT_TOKENS = 160
MOST_MEMBERS = 9
NEEDS: frozenset[Capability] = frozenset({"choose", "generate", "constraints"})
PERSONAS = {
    "auditor": "You check each figure, name, date and condition of an answer against the context.",
    "editor": "You read for what an answer adds that the context does not say, also where it may be true.",
    "reader": "You ask whether an answer says what was asked for, as far as the context says it.",
}
LABELS = (
    Label(FIRST, 1.0, answers=("A",)),
    Label(SECOND, 0.0, answers=("B",)),
    Label(TIE, 0.5, answers=("Tie",)),
)
ORDERS = (False, True)  # whether the answers are swapped
Said = tuple[str, str]  # a member's argument in each order


@dataclass(frozen=True, slots=True)
class Member:
    """A voter: a name, a persona that says what to look for, and a model, None for the run's."""

    name: str
    persona: str
    engine: Engine | None = None

    def __str__(self) -> str:
        asked = (
            "" if self.engine is None else f"={self.engine.info.model}#{self.engine.info.fingerprint[:12]}"
        )
        return f"{self.name}{asked}"


def members_of(engines: Sequence[Engine]) -> tuple[Member, ...]:
    """Return one member per model, with alternating personas; without models one per persona."""
    personas = list(PERSONAS.items())
    if not engines:
        return tuple(Member(*each) for each in personas)
    return tuple(
        Member(f"{personas[at % len(personas)][0]}-{at + 1}", personas[at % len(personas)][1], engine)
        for at, engine in enumerate(engines)
    )


@dataclass(frozen=True)
class Committee:
    """Decides if the output is better or worse than `alternatives[0]`, by the votes of several members.

    Each member votes with the two answers in both orders. A member whose two votes conflict votes for a
    tie. If the members differ, each gives an argument in a sentence or two, in both orders, because an
    argument calls the answers by their letters; each reads the arguments of an order, and votes in it once
    more. The label is the one with more than half of the votes, else `tie`. The score is the mean of
    the members' probabilities that the output is better, where a tie counts half. A member that fails is
    left out and counted. With fewer than `least` votes the committee fails. With an `examination` the
    members read what both sides asked and replied. Details hold all votes and arguments (`members`; of the
    two arguments the first calls the output A, the second B), whether they `discussed`, whether all final
    votes were the same in both orders (`consistent`), and the exchange (`cross_examination`).
    """

    members: tuple[Member, ...]
    criteria: str = ""
    least: int = 2
    name: str = "committee"
    examination: CrossExamination | None = None

    def __post_init__(self) -> None:
        if not self.least <= len(self.members) <= MOST_MEMBERS or self.least < 1:
            raise SpecError(f"a committee needs {max(self.least, 1)} to {MOST_MEMBERS} members")
        if len({each.name for each in self.members}) < len(self.members):
            raise SpecError("the members of a committee need different names")
        for each in self.members:
            if each.engine is not None:
                require(each.engine.info, NEEDS, f"the member {each.name!r} of a committee")

    @property
    def info(self) -> JudgeInfo:
        template = builtin_prompt("committee")
        pinned = None if self.examination is None else self.examination.pinned
        content = repr(
            (template.source, self.criteria or FAITHFULNESS, [each.persona for each in self.members], pinned)
        )
        own = any(each.engine is None for each in self.members)
        spoken = self.examination is not None and self.examination.asks_the_run
        examined: frozenset[Capability] = cross_examination.NEEDS if spoken else frozenset()
        return JudgeInfo(
            name=self.name,
            version=template.version,
            summary="which of two answers is better: members vote, discuss once and vote again",
            labels=(BETTER, TIE, WORSE),
            direction="maximize",
            reads=(*READS, "alternatives"),
            requires=("output", "alternatives") if self.criteria else ("context", "output", "alternatives"),
            needs=(NEEDS if own else frozenset()) | examined,
            prompt=hashlib.sha256(content.encode()).hexdigest()[:12],
            constraint=_argument().digest,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls of each member: two votes, two arguments, and two votes after all arguments.

        Those of the examination come first.
        """
        calls = [] if self.examination is None else self.examination.plan(sample, self._criterion)
        return [*calls, *self._voting(sample, Exchange())]

    def _voting(self, sample: Sample, exchange: Exchange) -> list[Call]:
        heard = len(self.members) * ARGUMENT_TOKENS
        calls = []
        for each in self.members:
            ballot = self._ballot(each, exchange)
            calls += [
                Call(ballot.prompt(sample, False), engine=each.engine, times=2),
                Call(ballot.prompt(sample, False, "argue"), ARGUMENT_TOKENS, engine=each.engine, times=2),
                Call(ballot.prompt(sample, True), 1, heard, each.engine, times=2),
            ]
        return calls

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if not sample.alternatives[0].strip():
            return Abstention(sample.id, self.name, "missing_input", "the first alternative is blank")
        if sample.alternatives[0].strip() == (sample.output or "").strip():
            because = "both answers are identical"
            return Verdict(sample.id, self.name, TIE, 0.5, explanation=because, details={"method": "rule"})
        exchange = Exchange()
        if self.examination is not None:
            exchange = await self.examination.held(
                sample, self._criterion, engine, lambda said: self._voting(sample, said)
            )
        first = await self._votes(sample, engine, exchange)
        votes, arguments = first, dict[str, Said]()
        said = {vote.label for vote in first.values() if isinstance(vote, Verdict)}
        if len(said) > 1:
            arguments = await self._arguments(sample, engine, exchange)
            if arguments:
                votes = await self._votes(sample, engine, exchange, tuple(arguments.values()))
        verdict = self._decided(sample, first, arguments, votes)
        if self.examination is None:
            return verdict
        details = {**verdict.details, "cross_examination": exchange.recorded()}
        n = len(exchange.rounds)
        told = f"{verdict.explanation}; {n} {'round' if n == 1 else 'rounds'} of cross-examination"
        return replace(verdict, explanation=told, details=details)

    # --- the votes ----------------------------------------------------------------------------------

    @property
    def _criterion(self) -> str:
        return self.criteria or FAITHFULNESS

    def _ballot(self, member: Member, exchange: Exchange, said: tuple[Said, ...] = ()) -> Ballot:
        return Ballot(member, self._criterion, exchange, said)

    async def _votes(
        self, sample: Sample, engine: Engine, exchange: Exchange, said: tuple[Said, ...] = ()
    ) -> dict[str, Outcome]:
        """Return each member's vote by name; an error becomes that member's failure."""
        asked = [
            member_outcome(self._ballot(each, exchange, said), sample, in_role(engine, each.engine))
            for each in self.members
        ]
        return dict(zip((each.name for each in self.members), await gather_or_cancel(asked), strict=True))

    async def _arguments(self, sample: Sample, engine: Engine, exchange: Exchange) -> dict[str, Said]:
        """Return the members' arguments by name, without members that failed to give one in both orders."""
        told = await gather_or_cancel(
            self._argued(sample, engine, each, exchange, swapped)
            for each in self.members
            for swapped in ORDERS
        )
        pairs = zip(self.members, told[::2], told[1::2], strict=True)
        return {each.name: (one, two) for each, one, two in pairs if one is not None and two is not None}

    async def _argued(
        self, sample: Sample, engine: Engine, member: Member, exchange: Exchange, swapped: bool
    ) -> str | None:
        prompt = self._ballot(member, exchange).prompt(sample, swapped, "argue")
        try:
            written = await in_role(engine, member.engine).generate(
                prompt, _argument(), sampling=Sampling(max_tokens=ARGUMENT_TOKENS)
            )
        except FATAL:
            raise
        except EngineError:  # its call is among the steps, and the member has no argument in the details
            return None
        return None if written.finish == "length" else str(written.value["argument"]).strip() or None

    def _decided(
        self,
        sample: Sample,
        first: dict[str, Outcome],
        arguments: dict[str, Said],
        votes: dict[str, Outcome],
    ) -> Verdict:
        cast = {name: vote for name, vote in votes.items() if isinstance(vote, Verdict)}
        if len(cast) < self.least:
            failed = next(str(vote) for vote in votes.values() if not isinstance(vote, Verdict))
            raise InvalidOutput(
                f"only {len(cast)} of {len(votes)} members voted, {self.least} are needed; {failed}"
            )
        counts = Counter(vote.label for vote in cast.values())
        label, most = counts.most_common(1)[0]
        label = label if 2 * most > len(cast) else TIE
        told = ", ".join(f"{n} {said}" for said, n in counts.most_common())
        without = len(votes) - len(cast)
        return Verdict(
            sample.id,
            self.name,
            label,
            fmean(vote.score for vote in cast.values()),
            explanation=f"{told}{' after a discussion' if arguments else ''}"
            + (f"; {without} of {len(votes)} members failed" if without else ""),
            details={
                "members": [
                    {
                        "name": name,
                        "first": _said(first[name]),
                        "arguments": arguments.get(name),
                        "last": _said(vote),
                    }
                    for name, vote in votes.items()
                ],
                "discussed": bool(arguments),
                "left_out": without,
                "consistent": all(vote.details["consistent"] for vote in cast.values()),
            },
        )


@dataclass(frozen=True)
class Ballot:
    """One member's vote, asked with the answers in both orders; `said` holds the arguments.

    The answer that stands first is always A. So whoever prefers a letter or a place prefers one answer in one
    order and the other answer in the other, which is a tie. Whoever's answer stands first also speaks first
    in the exchange.
    """

    member: Member
    criteria: str
    exchange: Exchange
    said: tuple[Said, ...] = ()

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(name=self.member.name, reads=(*READS, "alternatives"), needs=frozenset({"choose"}))

    def prompt(self, sample: Sample, swapped: bool, stage: str = "vote") -> Prompt:
        """Return the prompt for the member, with the output as answer A, or `swapped` as answer B."""
        names = SWAPPED if swapped else NAMES
        record, texts = record_of(list(self.exchange.lines(names, swapped=swapped)))
        answers = sample.output or "", sample.alternatives[0]
        fields = {
            **fields_of(sample, READS),
            "first": answers[swapped],
            "second": answers[not swapped],
            "exchange": texts,
            "said": tuple(each[swapped] for each in self.said),
        }
        words = {
            "persona": self.member.persona,
            "criteria": self.criteria,
            "record": record,
            "stage": stage,
            "reply": Answers(LABELS).reply(),
        }
        return builtin_prompt("committee").prompt(fields, words)

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        straight, swapped = await gather_or_cancel(self._asked(sample, engine, turn) for turn in ORDERS)
        label = {FIRST: BETTER, SECOND: WORSE, TIE: TIE}[straight.best]
        consistent = label == {FIRST: WORSE, SECOND: BETTER, TIE: TIE}[swapped.best]
        score = (_share(straight, FIRST) + _share(swapped, SECOND)) / 2
        label = label if consistent else TIE
        return Verdict(sample.id, self.member.name, label, score, details={"consistent": consistent})

    async def _asked(self, sample: Sample, engine: Engine, swapped: bool) -> LabelProbabilities:
        return await choose_label(engine, LABELS, lambda _: self.prompt(sample, swapped))


def _share(found: LabelProbabilities, place: str) -> float:
    """Return the probability that the answer in a place is better, where a tie counts half."""
    return min(1.0, found.probability(place) + found.probability(TIE) / 2)


def _said(vote: Outcome) -> str:
    """Return the label of a vote, or why there is none."""
    if isinstance(vote, Verdict):
        return vote.label
    return f"{'failed' if isinstance(vote, Failure) else 'abstained'}: {vote.message}"


@cache
def _argument() -> Constraint:
    return constraint(closed_object({"argument": short_text(ARGUMENT)}))
