"""`arena`: compare applications or models on questions, by pairwise battles and by faithful share.

Every phase is a stored run, identified by its data and recipes, so the same call resumes where the last one
stopped. `NAME-questions` holds the examiner's questions, `NAME-answers` the models' answers,
`NAME-faithful` the verdict on every answer, and `NAME-round-1` and so on the battles.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from magistrate import _async
from magistrate.analysis.arena import APPLICATION, ArenaReport, Standing, Unplayed, standings
from magistrate.analysis.pairing import rounds_for, swiss_pairs
from magistrate.analysis.ranking import Match, ranking
from magistrate.api.evaluate import RunSession
from magistrate.api.rank import SIDES, matches_of
from magistrate.api.stored import StorePlace, judged
from magistrate.datasets import load
from magistrate.datasets.fields import check_mapping, plain
from magistrate.datasets.files import open_file
from magistrate.datasets.rows import Problem, RowError, Tally, kind_of
from magistrate.datasets.samples import at_path, columns_of, to_sample, without_path
from magistrate.engines.base import DEFAULT, Engine
from magistrate.engines.models import default as default_model
from magistrate.engines.none import NONE
from magistrate.engines.prices import price_of
from magistrate.errors import DatasetError, SpecError
from magistrate.judges.arena_roles import SUPPORT, TEXT, Entrant, Examiner
from magistrate.judges.base import Judge
from magistrate.judges.committee import Committee, members_of
from magistrate.judges.cross_examination import AUTHORS, MOST_ROUNDS, CrossExamination
from magistrate.runs.limits import UNLIMITED, Cost, Limits
from magistrate.runs.prepare import Overrides, RunPlan, prepare, price_for
from magistrate.runs.progress import ProgressListener
from magistrate.runs.resume import recipe_differences
from magistrate.runs.spec import RunSpec, spec_from
from magistrate.store import RunRecord
from magistrate.types import Sample, Usage, Verdict

MOST_ENTRANTS = 24
ASKED = "question"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaSpec:
    """The candidates of an arena, and how it is decided.

    `columns` maps application names to the columns of the file with their answers. `models` maps names to
    engines that answer. With `examiner` the rows are documents, and a model writes a question on each.
    `members` vote in the committee; without them the run's `model` votes as three personas. `judge` decides
    whether each answer is faithful. `rounds` is how often candidates are paired, None for as many as
    needed. In each battle the two sides examine each other for up to `cross_examine` rounds before the
    committee votes: a model speaks for its own answer, the run's `model` for an answer of the file. `price`,
    dollars per million tokens as `IN/OUT`, is the price of all models.
    """

    name: str
    columns: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Engine] = field(default_factory=dict)
    examiner: bool = False
    members: Sequence[Engine] = ()
    judge: str = "auto"
    criteria: str = ""
    rounds: int | None = None
    cross_examine: int = 0
    model: str | None = None
    price: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) < max(len(names), 2) or len(names) > MOST_ENTRANTS:
            raise SpecError(
                f"an arena needs 2 to {MOST_ENTRANTS} candidates with different names, got "
                f"{', '.join(names) or 'none'}: --app COLUMN, --answer NAME=MODEL"
            )
        if self.examiner and self.columns:
            raise SpecError(
                "--app and --examiner cannot be combined: answers in a file belong to its "
                "questions, and an examiner writes new ones"
            )
        if self.rounds is not None and self.rounds < 1:
            raise SpecError(f"rounds must be at least 1, got {self.rounds}")
        if not 0 <= self.cross_examine <= MOST_ROUNDS:
            raise SpecError(f"cross_examine is 0 to {MOST_ROUNDS} rounds, got {self.cross_examine}")

    @property
    def names(self) -> list[str]:
        """The names of the candidates."""
        return [*self.columns, *self.models]

    @property
    def speakers(self) -> dict[str, Engine | None]:
        """The model that speaks for each candidate, None for the run's; empty without cross-examination."""
        return {name: self.models.get(name) for name in self.names} if self.cross_examine else {}


async def aarena(
    file: str | Path,
    spec: ArenaSpec,
    *,
    mapping: Mapping[str, str] | None = None,
    limits: Limits = UNLIMITED,
    model: Engine | None = None,
    store: StorePlace | None = None,
    watcher: ProgressListener | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ArenaReport:
    """Let applications or models compete over the questions of a file, or over documents, and rank them.

    `limits` apply to all phases together: calls, tokens and cost with what earlier calls of this arena
    spent, seconds from now on. If a limit ends the arena early, the report says so and what was not played,
    and the same call continues it. `model` is an engine that replaces the one `spec.model` names. Raises
    `SpecError` and `DatasetError` for unknown or unreadable input, also for a cost limit on a model without
    a known price.
    """
    rows, given = read_questions(file, spec.columns, mapping)
    with RunSession(store) as session:
        arena = _Arena(session, spec, limits, model, watcher, clock)
        return await arena.held(rows, given)


arena = _async.synchronous(aarena)


def read_questions(
    file: str | Path, columns: Mapping[str, str], mapping: Mapping[str, str] | None = None
) -> tuple[list[Sample], dict[str, dict[str, str]]]:
    """Return the rows of a file as samples without outputs, and the answers by application and sample id.

    Blank answers are missing. Raises `DatasetError` for a column that no row has, and for answers that are
    no text.
    """
    fields, source, tally = check_mapping(mapping), open_file(file), Tally()
    samples: dict[str, Sample] = {}
    answers: dict[str, dict[str, str]] = {name: {} for name in columns}
    present, told = set[str](), ""
    for row in source.rows():
        if isinstance(row, Problem):
            tally.problem(row)
            continue
        rest, said, told = dict(row.values), dict[str, Any](), told or columns_of(row.values)
        for name, column in columns.items():
            try:
                said[name] = at_path(row.values, column, "--app")
                present.add(name)
            except RowError:
                said[name] = None
        for column in columns.values():
            rest = without_path(rest, column)
        try:
            found = to_sample(rest, id=row.id, mapping=fields, need_output=False, cells=row.cells)
            if found.id in samples:
                raise RowError(f"the id {plain(repr(found.id))} is given twice")
            for name, answer in said.items():
                if not isinstance(answer, str | None):
                    raise RowError(f"the answer of {plain(name)} must be text, got {kind_of(answer)}")
        except RowError as error:
            tally.problem(row.problem(str(error)))
            continue
        tally.read += 1
        samples[found.id] = replace(found, output="", alternatives=(), label=None, spans=())
        for name, answer in said.items():
            if answer is not None and answer.strip():
                answers[name][found.id] = answer
    tally.refuse(source.shown, 0.0)
    if not samples:
        raise DatasetError(f"{source.shown} has no rows")
    for name, column in columns.items():
        if name not in present:
            raise DatasetError(f"{source.shown} has no column {plain(column)!r} for --app; {told}")
    return list(samples.values()), answers


class _Stopped(Exception):
    """A limit ended a phase; the message names it."""


@dataclass(slots=True)
class _Arena:
    session: RunSession
    spec: ArenaSpec
    limits: Limits
    model: Engine | None
    watcher: ProgressListener | None
    clock: Callable[[], float]
    runs: dict[str, str] = field(default_factory=dict)
    spent: Usage = Usage()
    paid: float = 0.0
    began: float = 0.0
    planned: dict[str, Unplayed] = field(default_factory=dict)

    async def held(self, rows: list[Sample], given: dict[str, dict[str, str]]) -> ArenaReport:
        """Execute all phases, as far as the limits allow."""
        spec, stopped = self.spec, None
        self.began = self.clock()
        questions, answers = rows, given
        self._plan(len(rows))
        self._check_prices()
        matches, left_out, found = list[Match](), Counter[str](), list[Standing]()
        try:
            if spec.examiner:
                questions = await self._questions(rows)
                self._plan(len(questions))
            if spec.models:
                answers = {**answers, **await self._answers(questions)}
            found = await self._faithful(questions, answers)
            matches, left_out = await self._battles(questions, answers)
        except _Stopped as limit:
            stopped = str(limit)
            matches, left_out = self._fought()
        places = ranking(matches, source=spec.name, left_out=left_out, seed=spec.seed) if matches else None
        known = {each.name: each for each in found}
        return ArenaReport(
            name=spec.name,
            n_questions=len(questions),
            ranking=places,
            standings=tuple(known.get(name) or Standing.unknown(name) for name in spec.names),
            runs=dict(self.runs),
            spent=self.spent,
            stopped=stopped,
            unplayed=() if stopped is None else tuple(self.planned.values()),
            examined=self._examined(),
        )

    def _plan(self, n_questions: int) -> None:
        """Note what is to be played, by phase. Phases take their own out as they finish."""
        spec = self.spec
        phases = [] if self.runs or not spec.examiner else ["questions"]
        phases += ["answers"] if spec.models else []
        phases += ["faithful", *(f"round-{at}" for at in range(1, self._rounds(n_questions) + 1))]
        self.planned = {phase: Unplayed(phase) for phase in phases}

    def _rounds(self, n_questions: int) -> int:
        return min(self.spec.rounds or rounds_for(len(self.spec.names)), n_questions)

    # --- the phases ---------------------------------------------------------------------------------

    async def _questions(self, documents: Sequence[Sample]) -> list[Sample]:
        """Write a question and its supporting passage on each document. Drops documents without one."""
        bare = [replace(each, input=None) for each in documents]
        record = await self._phase("questions", bare, [Examiner()])
        by_id = {each.id: each for each in bare}
        found = []
        for outcome in self.session.store.outcomes(record.id):
            if isinstance(outcome, Verdict):
                document = by_id[outcome.sample_id]
                more = {**document.metadata, SUPPORT: outcome.details[SUPPORT]}
                found.append(replace(document, input=outcome.details[TEXT], metadata=more))
        if not found:
            raise DatasetError(f"the examiner wrote no question; see: magistrate show {record.id}")
        return found

    async def _answers(self, questions: Sequence[Sample]) -> dict[str, dict[str, str]]:
        """Return each model's answers by question id."""
        entrants = [Entrant(name, engine) for name, engine in self.spec.models.items()]
        record = await self._phase("answers", questions, entrants, self.spec.models.values())
        answers: dict[str, dict[str, str]] = {name: {} for name in self.spec.models}
        for outcome in self.session.store.outcomes(record.id):
            if isinstance(outcome, Verdict):
                answers[outcome.judge][outcome.sample_id] = outcome.details[TEXT]
        return answers

    async def _faithful(
        self, questions: Sequence[Sample], answers: Mapping[str, Mapping[str, str]]
    ) -> list[Standing]:
        """Judge every answer by itself, and return the standing of each candidate."""
        samples = [
            replace(
                each,
                id=f"{each.id}/{name}",
                output=said[each.id],
                metadata={**each.metadata, APPLICATION: name, ASKED: each.id},
            )
            for name, said in answers.items()
            for each in questions
            if each.id in said
        ]
        if not samples:
            raise DatasetError("no candidate has an answer; check the columns given by --app")
        record = await self._phase("faithful", samples, self.spec.judge)
        own = judged(record.id, None, self.session.place)
        return standings(own.samples.values(), own.outcomes, list(answers), len(questions))

    async def _battles(
        self, questions: Sequence[Sample], answers: Mapping[str, Mapping[str, str]]
    ) -> tuple[list[Match], Counter[str]]:
        """Execute rounds of Swiss-system pairs, each round on its own questions."""
        spec, names = self.spec, sorted(answers)
        draw = random.Random(spec.seed)
        asked = draw.sample(list(questions), len(questions))
        draw.shuffle(names)
        rounds = self._rounds(len(asked))
        met, byes = set[frozenset[str]](), set[str]()
        examination = CrossExamination(spec.cross_examine, spec.speakers) if spec.cross_examine else None
        judge = Committee(members_of(spec.members), criteria=spec.criteria, examination=examination)
        voters: Sequence[Engine | None] = spec.members or (None,)
        engines = [*voters, *spec.speakers.values()]
        for number in range(1, rounds + 1):
            pairs = swiss_pairs(names, _points(self._fought()[0]), met, byes)
            met |= {frozenset(pair) for pair in pairs}
            byes |= set(names) - {name for pair in pairs for name in pair}
            samples = [
                _battle(question, pair, answers, spec.seed, number)
                for question in asked[number - 1 :: rounds]
                for pair in pairs
                if all(question.id in answers[name] for name in pair)
            ]
            if samples:
                await self._phase(f"round-{number}", samples, [judge], engines)
            else:
                del self.planned[f"round-{number}"]
        return self._fought()

    def _fought(self) -> tuple[list[Match], Counter[str]]:
        """Return all battles of the rounds started so far."""
        matches, left_out = list[Match](), Counter[str]()
        for phase, run_id in self.runs.items():
            if phase.startswith("round-"):
                more, without = matches_of(
                    judged(run_id, None, self.session.place), SIDES, f"metadata.{ASKED}"
                )
                matches += more
                left_out += without
        return matches, left_out

    def _examined(self) -> Counter[str]:
        """Count why cross-examinations ended."""
        found = Counter[str]()
        for phase, run_id in self.runs.items() if self.spec.cross_examine else ():
            if phase.startswith("round-"):
                for each in self.session.store.outcomes(run_id):
                    if isinstance(each, Verdict) and "cross_examination" in each.details:
                        found[each.details["cross_examination"]["ended"]] += 1
        return found

    # --- runs -----------------------------------------------------------------------------------------

    async def _phase(
        self,
        phase: str,
        samples: Sequence[Sample],
        judges: Sequence[Judge] | str,
        engines: Iterable[Engine | None] = (None,),
    ) -> RunRecord:
        """Return the finished run of a phase: stored, resumed or newly executed.

        `engines` are all that are asked, None for the run's. Raises `_Stopped` if a limit ended it.
        """
        asked = list(engines)
        engine = None if None in asked else asked[0]
        name = f"{self.spec.name}-{phase}"
        dataset = load(list(samples))
        dataset.name = name
        made = None if isinstance(judges, str) else judges
        words = [judges] if isinstance(judges, str) else [each.info.name for each in judges]
        overrides = Overrides(dataset=dataset, judges=made, model=engine or self.model)
        plan = prepare(self._spec(name, words), overrides, store=self.session.existing_store)
        cost = self._cost(plan, [plan.engine if each is None else each for each in asked])
        record = self._known(plan, dataset.digest)
        self._note(phase, samples, len(plan.judges), record)
        if record is not None and record.status == "done":
            plan = replace(plan, cost=cost)
        else:
            try:
                plan = replace(plan, limits=self._left(), cost=cost)
            except _Stopped:
                self._count(phase, record, cost)
                raise
            plan.check()
        if record is None:
            record = (await self.session.start(plan, self.watcher)).record
        elif record.status != "done":
            record = (await self.session.resume(record, plan, self.watcher)).record
        self._count(phase, record, cost)
        if record.status != "done":
            self._note(phase, samples, len(plan.judges), record)
            raise _Stopped(f"{name}: {record.reason or record.status}")
        del self.planned[phase]
        return record

    def _count(self, phase: str, record: RunRecord | None, cost: Cost | None) -> None:
        """Count what was played and spent in a phase; nothing if it has no run."""
        if record is not None:
            self.runs[phase] = record.id
            spent = self.session.store.spent(record.id)
            self.spent += spent
            self.paid += 0.0 if cost is None else cost(spent)

    def _note(self, phase: str, samples: Sequence[Sample], n_judges: int, record: RunRecord | None) -> None:
        """Note what a phase has still to do."""
        done = Counter[str]()
        if record is not None:
            done.update(each.sample_id for each in self.session.store.outcomes(record.id))
        left = [each for each in samples if done[each.id] < n_judges]
        pairs = Counter[str]()
        if phase.startswith("round-"):
            pairs.update(" - ".join(sorted(each.metadata[key] for key in AUTHORS.values())) for each in left)
        total = len(samples) * n_judges
        self.planned[phase] = Unplayed(phase, total - done.total(), total, dict(pairs))

    def _spec(self, name: str, judges: list[str]) -> RunSpec:
        values: dict[str, Any] = {"dataset": {"source": "rows", "seed": self.spec.seed}, "judges": judges}
        values |= {"name": name, "tags": ["arena", self.spec.name]}
        if self.spec.model is not None or self.spec.price is not None:
            values["engines"] = {DEFAULT: {"model": self.spec.model, "price": self.spec.price}}
        return spec_from(values)

    def _left(self) -> Limits:
        """The limits minus what earlier phases spent. A run counts its own. Raises `_Stopped` at a limit."""
        limits, spent = self.limits, self.spent
        seconds = self.clock() - self.began
        for name, gone, told in (
            ("max_calls", spent.calls, f"{spent.calls:,} calls have been made"),
            ("max_tokens", tokens := spent.prompt + spent.generated, f"{tokens:,} tokens have been used"),
            ("max_cost", self.paid, f"${self.paid:,.4f} have been spent"),
            ("max_seconds", seconds, f"{seconds:,.0f} seconds have passed"),
        ):
            most = getattr(limits, name)
            if most is None:
                continue
            if gone >= most:
                raise _Stopped(f"{told} ({name})")
            limits = replace(limits, **{name: most - gone})
        return limits

    def _cost(self, plan: RunPlan, engines: Iterable[Engine]) -> Cost | None:
        """Return the cost of a phase, at the price of its most expensive model. None if one is unknown."""
        if plan.engine is NONE:
            return plan.cost
        prices = [price_for(each, self.spec.price) for each in engines]
        known = [each for each in prices if each is not None]
        return None if len(known) < len(prices) else lambda usage: max(each.cost(usage) for each in known)

    def _check_prices(self) -> None:
        """Raise `SpecError` for a cost limit on a model without a price, before anything is spent."""
        if self.limits.max_cost is None or self.spec.price is not None:
            return
        spec = self.spec
        asked = [each.info.model for each in (*spec.models.values(), *spec.members)]
        if self.model is not None:
            asked.append(self.model.info.model)
        elif spec.examiner or not spec.members or None in spec.speakers.values():
            asked.append(spec.model or default_model().name)
        for name in asked:
            if price_of(name) is None:
                raise SpecError(
                    f"max_cost needs a price, but none is known for {name!r}; "
                    "give it in US dollars per million tokens: --price IN/OUT"
                )

    def _known(self, plan: RunPlan, digest: str) -> RunRecord | None:
        """Return the newest run of this phase that no process is working on."""
        if self.session.existing_store is None:
            return None
        assert plan.dataset is not None
        for record in self.session.store.runs(dataset=plan.dataset.name):
            same = record.dataset_digest == digest and not list(
                recipe_differences(record.recipes, plan.recipes)
            )
            if same and not self.session.store.held(record.id):
                return record
        return None


def _battle(
    question: Sample,
    pair: tuple[str, str],
    answers: Mapping[str, Mapping[str, str]],
    seed: int,
    number: int,
) -> Sample:
    """Return a sample with two answers, whose order is decided by a hash and so reproducible."""
    first, second = sorted(pair)
    if hashlib.sha256(repr((seed, question.id, first, second)).encode()).digest()[0] % 2:
        first, second = second, first
    sides = {AUTHORS["A"]: first, AUTHORS["B"]: second, ASKED: question.id, "round": number}
    return replace(
        question,
        id=f"{question.id}/{first}/{second}",
        output=answers[first][question.id],
        alternatives=(answers[second][question.id],),
        metadata={**question.metadata, **sides},
    )


def _points(matches: Sequence[Match]) -> dict[str, float]:
    """Return the points: one per battle won, half of one per tie."""
    points: dict[str, float] = {}
    for each in matches:
        for side, name in (("first", each.first), ("second", each.second)):
            worth = 0.5 if each.winner == "tie" else float(each.winner == side)
            points[name] = points.get(name, 0.0) + worth
    return points
