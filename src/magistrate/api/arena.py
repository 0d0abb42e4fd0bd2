"""`arena`: compare applications or models on questions, by pairwise battles and by faithful share.

Every phase is a stored run, identified by its data and recipes, so the same call resumes where the last one
stopped. `NAME-questions` holds the examiner's questions, `NAME-answers` the models' answers,
`NAME-faithful` the verdict on every answer, and `NAME-round-1` and so on the battles.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from magistrate import _async
from magistrate.analysis.arena import APPLICATION, ArenaReport, Standing, standings
from magistrate.analysis.pairing import rounds_for, swiss_pairs
from magistrate.analysis.ranking import Match, ranking
from magistrate.api.evaluate import RunSession
from magistrate.api.rank import SIDES, matches_of
from magistrate.api.stored import StorePlace, judged
from magistrate.datasets import load
from magistrate.datasets.fields import check_mapping, plain
from magistrate.datasets.files import open_file
from magistrate.datasets.rows import Problem, RowError, Tally
from magistrate.datasets.samples import at_path, columns_of, to_sample, without_path
from magistrate.engines.base import Engine
from magistrate.errors import DatasetError, SpecError
from magistrate.judges.arena_roles import SUPPORT, TEXT, Entrant, Examiner
from magistrate.judges.base import Judge
from magistrate.judges.committee import Committee, members_of
from magistrate.runs.limits import UNLIMITED, Limits
from magistrate.runs.prepare import Overrides, RunPlan, prepare
from magistrate.runs.progress import ProgressListener
from magistrate.runs.resume import recipe_differences
from magistrate.runs.spec import DEFAULT, RunSpec, spec_from
from magistrate.store import RunRecord
from magistrate.types import Sample, Usage, Verdict

MOST_ENTRANTS = 24
ASKED = "question"
SIDE_NAMES = {side: path.removeprefix("metadata.") for side, path in SIDES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaSpec:
    """The candidates of an arena, and how it is decided.

    `columns` maps application names to the columns of the file with their answers. `models` maps names to
    engines that answer. With `examiner` the rows are documents, and a model writes a question on each.
    `members` vote in the committee; without them the run's `model` votes as three personas. `judge` decides
    whether each answer is faithful. `rounds` is how often candidates are paired, None for as many as
    needed.
    """

    name: str
    columns: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Engine] = field(default_factory=dict)
    examiner: bool = False
    members: Sequence[Engine] = ()
    judge: str = "auto"
    criteria: str = ""
    rounds: int | None = None
    model: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        names = [*self.columns, *self.models]
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


async def aarena(
    file: str | Path,
    spec: ArenaSpec,
    *,
    mapping: Mapping[str, str] | None = None,
    limits: Limits = UNLIMITED,
    model: Engine | None = None,
    store: StorePlace | None = None,
    watcher: ProgressListener | None = None,
) -> ArenaReport:
    """Let applications or models compete over the questions of a file, or over documents, and rank them.

    `limits` apply to all phases together. If a limit ends the arena early, the report says so, and the same
    call continues it. `model` is an engine that replaces the one `spec.model` names. Raises `SpecError` and
    `DatasetError` for unknown or unreadable input.
    """
    rows, given = read_questions(file, spec.columns, mapping)
    with RunSession(store) as session:
        arena = _Arena(session, spec, limits, model, watcher)
        return await arena.held(rows, given)


arena = _async.synchronous(aarena)


def read_questions(
    file: str | Path, columns: Mapping[str, str], mapping: Mapping[str, str] | None = None
) -> tuple[list[Sample], dict[str, dict[str, str]]]:
    """Return the rows of a file as samples without outputs, and the answers by application and sample id.

    Blank answers are missing. Raises `DatasetError` for a column that no row has.
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
        except RowError as error:
            tally.problem(row.problem(str(error)))
            continue
        tally.read += 1
        samples[found.id] = replace(found, output="", alternatives=(), label=None, spans=())
        for name, answer in said.items():
            if isinstance(answer, str) and answer.strip():
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
    runs: dict[str, str] = field(default_factory=dict)
    spent: Usage = Usage()

    async def held(self, rows: list[Sample], given: dict[str, dict[str, str]]) -> ArenaReport:
        """Execute all phases, as far as the limits allow."""
        spec, stopped = self.spec, None
        questions, answers = rows, given
        matches, left_out, found = list[Match](), Counter[str](), list[Standing]()
        try:
            if spec.examiner:
                questions = await self._questions(rows)
            if spec.models:
                answers = {**answers, **await self._answers(questions)}
            found = await self._faithful(questions, answers)
            matches, left_out = await self._battles(questions, answers)
        except _Stopped as limit:
            stopped = str(limit)
            matches, left_out = self._fought()
        places = ranking(matches, source=spec.name, left_out=left_out, seed=spec.seed) if matches else None
        known = {each.name: each for each in found}
        names = [*spec.columns, *spec.models]
        return ArenaReport(
            name=spec.name,
            n_questions=len(questions),
            ranking=places,
            standings=tuple(known.get(name) or Standing.unknown(name) for name in names),
            runs=dict(self.runs),
            spent=self.spent,
            stopped=stopped,
        )

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
        record = await self._phase("answers", questions, entrants, next(iter(self.spec.models.values())))
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
        rounds = min(spec.rounds or rounds_for(len(names)), len(asked))
        met, byes = set[frozenset[str]](), set[str]()
        judge = Committee(members_of(spec.members), criteria=spec.criteria)
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
                engine = spec.members[0] if spec.members else None
                await self._phase(f"round-{number}", samples, [judge], engine)
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

    # --- runs -----------------------------------------------------------------------------------------

    async def _phase(
        self,
        phase: str,
        samples: Sequence[Sample],
        judges: Sequence[Judge] | str,
        engine: Engine | None = None,
    ) -> RunRecord:
        """Return the finished run of a phase: stored, resumed or newly executed.

        Raises `_Stopped` if a limit ended it.
        """
        name = f"{self.spec.name}-{phase}"
        dataset = load(list(samples))
        dataset.name = name
        made = None if isinstance(judges, str) else judges
        words = [judges] if isinstance(judges, str) else [each.info.name for each in judges]
        overrides = Overrides(dataset=dataset, judges=made, model=engine or self.model)
        plan = prepare(self._spec(name, words), overrides, store=self.session.existing_store)
        plan = replace(plan, limits=self._left())
        record = self._known(plan, dataset.digest)
        if record is None:
            record = (await self.session.start(plan, self.watcher)).record
        elif record.status != "done":
            record = (await self.session.resume(record, plan, self.watcher)).record
        self.runs[phase] = record.id
        self.spent += self.session.store.spent(record.id)
        if record.status != "done":
            raise _Stopped(f"{name}: {record.reason or record.status}")
        return record

    def _spec(self, name: str, judges: list[str]) -> RunSpec:
        values: dict[str, Any] = {"dataset": {"source": "rows", "seed": self.spec.seed}, "judges": judges}
        values |= {"name": name, "tags": ["arena", self.spec.name]}
        if self.spec.model is not None:
            values["engines"] = {DEFAULT: {"model": self.spec.model}}
        return spec_from(values)

    def _left(self) -> Limits:
        """The limits minus the tokens that earlier phases spent. A run counts its own."""
        most = self.limits.max_tokens
        if most is None:
            return self.limits
        left = most - self.spent.prompt - self.spent.generated
        if left < 1:
            raise _Stopped(f"{most:,} tokens have been used (max_tokens)")
        return replace(self.limits, max_tokens=left)

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
    sides = {SIDE_NAMES["first"]: first, SIDE_NAMES["second"]: second, ASKED: question.id, "round": number}
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
