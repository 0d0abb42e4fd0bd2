"""One sample of a run as a page and as JSON, with the evidence for each judge's outcome.

The evidence consists of claims, marked texts, metrics, data and engine calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response

from magistrate._text import percent, shorten
from magistrate.judges.rubric import KINDS
from magistrate.report.formatting import duration, without_heat
from magistrate.report.html.outcomes import (
    ClaimRow,
    HeatMap,
    Mark,
    OutcomeText,
    Text,
    blocked,
    claim_row,
    facts_of,
    heat_map,
    json_text,
    judged_right,
    outcome_text,
    output_marks,
    source_marks,
    source_title,
)
from magistrate.report.trial import TrialHeard, trial_of
from magistrate.server.figures import JudgeReader, beside_found
from magistrate.server.outcomes import ALL, ListFilter, neighbours
from magistrate.server.responses import (
    error_responses,
    json_response,
    page,
    query_of,
    run_address,
    sample_address,
)
from magistrate.server.run import PageParams, judge_of
from magistrate.server.state import RequestStore, RunCache, run_cache_of
from magistrate.store import Store
from magistrate.store.outcome_lists import Elsewhere
from magistrate.types import Abstention, Claim, Outcome, Sample, Span, Step, Verdict

CLAIMS_AT_ONCE = 200
QUOTE = 300  # characters of a quote in the list; the text marks all of it
REASONING = 4_000
HEATED = 30_000  # characters of an output under a heat map


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLine(ClaimRow):
    """A claim in the list. `in_output` and `in_context` are set if its words are marked there.

    `doubted` is set if the model that wrote it holds another kind for likelier.
    """

    doubted: bool
    in_output: bool
    in_context: bool

    @property
    def anchor(self) -> str:
        """The id that a link to this claim points to."""
        side = "output" if self.in_output else "context" if self.in_context else "claim"
        return f"{side}-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A sample with one judge's outcome. `said` is None if the judge has not judged it yet.

    Of `n_claims`, those from number `first` on are listed and marked, up to a limit; `chosen` is the number
    of one of them. `kinds` are the kinds of all marks. `overlap` is set if some words are marked by several
    claims.
    """

    said: OutcomeText | None
    facts: tuple[tuple[str, str], ...]
    claims: tuple[ClaimLine, ...]
    n_claims: int
    first: int
    chosen: int | None
    kinds: tuple[str, ...]
    overlap: bool
    asked: tuple[Text, ...]
    output: Text | None
    sources: tuple[Text, ...]
    heat: HeatMap | None
    trial: TrialHeard | None
    data: tuple[tuple[str, str], ...]

    @property
    def last(self) -> int:
        """The number of the last listed claim."""
        return self.first + len(self.claims) - 1


def evidence_of(sample: Sample, outcome: Outcome | None, claim: int | None = None) -> Evidence:
    """Return the evidence for an outcome, with the claim of this number selected, if it exists."""
    verdict = outcome if isinstance(outcome, Verdict) else None
    claims = verdict.claims if verdict else ()
    chosen = claim if claim is not None and 1 <= claim <= len(claims) else None
    start = ((chosen or 1) - 1) // CLAIMS_AT_ONCE * CLAIMS_AT_ONCE
    numbered = [*enumerate(claims[start : start + CLAIMS_AT_ONCE], start + 1)]
    kinds = {each.kind for _, each in numbered}
    marks = output_marks(sample, numbered), *source_marks(sample, numbered)
    return Evidence(
        said=outcome_text(outcome) if outcome else None,
        facts=tuple(facts_of(outcome)) if outcome else (),
        claims=tuple(_line(number, each, sample) for number, each in numbered),
        n_claims=len(claims),
        first=start + 1,
        chosen=chosen,
        kinds=(*(kind for kind in KINDS if kind in kinds), *(("gold",) if sample.spans else ())),
        overlap=any(map(_overlap, marks)),
        asked=tuple(_asked(sample)),
        output=None if sample.output is None else _text("Output", sample.output, "output", marks[0], chosen),
        sources=tuple(
            _text(source_title(sample, at), text, "context", marks[1 + at], chosen)
            for at, text in enumerate(sample.sources)
        ),
        heat=heat_map(sample, verdict, HEATED),
        trial=trial_of(verdict.details) if verdict else None,
        data=tuple(_sample_data(sample, verdict)),
    )


def _line(number: int, claim: Claim, sample: Sample) -> ClaimLine:
    row = claim_row(number, claim, sample)
    at, sources = claim.context_index, sample.sources
    beside = sources[at] if at is not None and 0 <= at < len(sources) else None
    return ClaimLine(
        number=number,
        kind=claim.kind,
        output=shorten(row.output[: 4 * QUOTE], QUOTE),
        context=None if row.context is None else shorten(row.context[: 4 * QUOTE], QUOTE),
        place=row.place,
        probability=row.probability,
        reasoning=claim.reasoning if len(claim.reasoning) <= REASONING else claim.reasoning[:REASONING] + "…",
        doubted=claim.probability is not None and claim.probability < 0.5,
        in_output=_stands(claim.output_quote, sample.output),
        in_context=_stands(claim.context_quote, beside),
    )


def _stands(quote: Span | None, text: str | None) -> bool:
    """Return whether the quote covers any of the text."""
    return quote is not None and text is not None and max(quote.start, 0) < min(quote.end, len(text))


def _text(title: str, text: str, side: str, marks: list[Mark], chosen: int | None) -> Text:
    return Text(title, blocked(text, marks, side=side, chosen=chosen))


def _overlap(marks: list[Mark]) -> bool:
    """Return whether the quotes of two claims overlap."""
    places = sorted(
        (mark.start, mark.end) for mark in marks if mark.claim is not None and mark.start < mark.end
    )
    return any(later[0] < earlier[1] for earlier, later in pairwise(places))


def _asked(sample: Sample) -> list[Text]:
    """Return the texts of the sample besides its output and its context."""
    named = [("Input", sample.input), ("Expected", sample.expected)]
    named += [(f"Alternative {at}", text) for at, text in enumerate(sample.alternatives, 1)]
    return [Text(title, blocked(text, ())) for title, text in named if text is not None]


def _sample_data(sample: Sample, verdict: Verdict | None) -> list[tuple[str, str]]:
    details: Mapping[str, object] = without_heat(verdict.details) if verdict else {}
    named = (("Metadata of the sample", sample.metadata), ("Details of the verdict", details))
    return [(title, json_text(values, 100_000)) for title, values in named if values]


STEPS_AT_ONCE = 100
LONGEST = 20_000  # characters shown of a prompt or an answer
OF_THE_SAMPLE = 800  # characters shown of a sample's text within a prompt; the page shows all of it above
RECOGNISED = 24  # minimum length of a text to be recognised in the middle of a line of a prompt
OPTIONS = 50
TEXTS_KNOWN = 50  # number of the sample's longest texts that are searched in a prompt
TEXT_KEYS = ("thinking", "text", "error")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a prompt. `name` is the name of the sample's text in it, None for the judge's own words.

    Between `text` and `rest`, `left_out` characters are omitted.
    """

    text: str
    name: str | None = None
    left_out: int = 0
    rest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One engine call, with a short `summary` of its result.

    `options` are the possible choices with their probabilities in [0, 1], the most likely first. `texts`
    are generated texts and errors, by name.
    """

    number: int
    verb: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    prompt: tuple[tuple[str, tuple[Part, ...]], ...]
    options: tuple[tuple[str, float], ...]
    texts: tuple[tuple[str, Part], ...]
    rest: str | None


def steps_of(sample: Sample, steps: Iterable[Step]) -> tuple[StepView, ...]:
    """Return at most `STEPS_AT_ONCE` of the steps, numbered from 1."""
    known = _SampleTexts(sample)
    shown = zip(range(1, STEPS_AT_ONCE + 1), steps, strict=False)
    return tuple(_step(number, step, known) for number, step in shown)


def _step(number: int, step: Step, known: _SampleTexts) -> StepView:
    result = dict(step.result)
    options = _options(result.get("probabilities"))
    texts = tuple(
        (name, _cut(text, LONGEST)) for name in TEXT_KEYS if isinstance(text := result.get(name), str)
    )
    used = {name for name, _ in texts} | ({"probabilities"} if options else set())
    rest = {name: value for name, value in result.items() if name not in used and value is not None}
    usage = step.usage
    facts = [("time", duration(step.seconds)), ("read", f"{usage.prompt:,} tokens")]
    facts += [("from cache", f"{usage.cached:,}")] if usage.cached else []
    facts += [("written", f"{usage.generated:,}")] if usage.generated else []
    facts += [("forced", f"{usage.forced:,}")] if usage.forced else []
    return StepView(
        number=number,
        verb=step.verb,
        summary=_summary(result, options),
        facts=tuple(facts),
        prompt=tuple((role, tuple(known.parts(text))) for role, text in step.prompt),
        options=options[:OPTIONS],
        texts=texts,
        rest=json_text(rest) if rest else None,
    )


def _options(shares: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(shares, Mapping):
        return ()
    known = [(str(label), float(share)) for label, share in shares.items() if isinstance(share, int | float)]
    return tuple(sorted(known, key=lambda each: -each[1]))


def _summary(result: Mapping[str, Any], options: tuple[tuple[str, float], ...]) -> str:
    if isinstance(error := result.get("error"), str):
        return f"went wrong: {error}"[:200]
    if "best" in result:
        share = dict(options).get(str(result["best"]))
        return f"{result['best']}"[:100] + ("" if share is None else f", {percent(share)}")
    if isinstance(numbers := result.get("logprobs"), list) and numbers:
        return f"{len(numbers):,} tokens, {sum(numbers) / len(numbers):.2f} nats each"
    if isinstance(thoughts := result.get("thinking"), str):
        return f"thought: {thoughts}"[:200]
    return str(result.get("text", ""))[:200]


def _cut(text: str, longest: int, name: str | None = None) -> Part:
    """Return a text, without its middle if it is too long."""
    if len(text) <= longest:
        return Part(text, name)
    kept = longest // 4
    return Part(text[: longest - kept], name, len(text) - longest, text[-kept:])


class _SampleTexts:
    """Finds a sample's texts within prompts, to distinguish them from the judge's own words.

    A step keeps the prompt as plain text, so only unchanged texts are found, and short ones only at the end
    of a line.
    """

    def __init__(self, sample: Sample) -> None:
        named = [("output", sample.output), ("input", sample.input), ("expected", sample.expected)]
        named += [(source_title(sample, at).lower(), text) for at, text in enumerate(sample.sources)]
        named += [(f"alternative {at}", text) for at, text in enumerate(sample.alternatives, 1)]
        names = {text.strip(): name for name, text in reversed(named) if text and text.strip()}
        longest_first = sorted(names.items(), key=lambda each: -len(each[0]))
        self._texts = longest_first[:TEXTS_KNOWN]
        self._found: dict[str, tuple[Part, ...]] = {}

    def parts(self, prompt: str) -> tuple[Part, ...]:
        """Return the parts of a message of a prompt, in order."""
        if prompt not in self._found:
            self._found[prompt] = tuple(self._parts(prompt))
        return self._found[prompt]

    def _parts(self, prompt: str) -> Iterator[Part]:
        at = 0
        for start, end, name in self._places(prompt):
            if start > at:
                yield _cut(prompt[at:start], LONGEST)
            yield _cut(prompt[start:end], OF_THE_SAMPLE, name)
            at = end
        if at < len(prompt):
            yield _cut(prompt[at:], LONGEST)

    def _places(self, prompt: str) -> list[tuple[int, int, str]]:
        """Return the places of the texts, in order; of two that overlap, only the longer one."""
        taken = bytearray(len(prompt))
        places = []
        for text, name in self._texts:
            start = prompt.find(text)
            while start >= 0:
                end = start + len(text)
                if taken.find(1, start, end) < 0 and (
                    len(text) >= RECOGNISED or _ends_a_line(prompt, start, end)
                ):
                    taken[start:end] = b"\1" * len(text)
                    places.append((start, end, name))
                start = prompt.find(text, end)
        return sorted(places)


def _ends_a_line(prompt: str, start: int, end: int) -> bool:
    before, behind = prompt[start - 1 : start], prompt[end : end + 1]
    return (not before or before.isspace()) and behind in ("", "\n")


Kind = Literal["verdict", "failure", "abstention"]
ERRORS = error_responses(404, 422, 503)

Name = Annotated[str, Query(max_length=1000)]

router = APIRouter()
api = APIRouter(tags=["samples"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judge's outcome. `right` is None if its label or the gold label is not faithful or hallucinated."""

    judge: str
    kind: Kind
    right: bool | None
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """A sample with its outcomes.

    `model` is the one that the selected judge calls, `none` if it is code. `position` is the sample's number
    in the run, from 0, of `n_samples`. `judges` are all judges of the run, even without an outcome for this
    sample. `judge` is the selected one, None in a run without judges.
    `previous` and `next` are ids. `elsewhere` has outcomes of the same sample in other runs, newest first.
    """

    run_id: str
    run_name: str | None
    dataset: str
    model: str
    position: int
    n_samples: int
    sample: Sample
    judges: tuple[str, ...]
    judge: str | None
    outcomes: tuple[Judged, ...]
    previous: str | None
    next: str | None
    elsewhere: tuple[Elsewhere, ...]

    @property
    def judged(self) -> Judged | None:
        """The outcome of the selected judge; None if it has not judged the sample yet."""
        return next((each for each in self.outcomes if each.judge == self.judge), None)


def sample_view(
    store: Store,
    run_id: str,
    sample_id: str,
    judge: str | None = None,
    *,
    wanted: ListFilter = ALL,
    cache: RunCache | None = None,
    all_steps: bool = False,
) -> SampleView:
    """Return the sample, with the steps of `judge` (by default the run's first judge) or of all judges.

    The samples before and after it are those of the list filtered by `wanted`, by default of the run. Words
    are looked for by `cache`, and ignored without it. Raises `SpecError` if there is no such run, sample or
    judge.
    """
    with store.snapshot() as moment:
        record = moment.record(run_id)
        sample = moment.sample(run_id, sample_id)
        chosen = judge_of(record, judge)
        all_steps = all_steps or len(record.judges) == 1
        outcomes = moment.outcomes(run_id, sample_id=sample_id, with_steps=all_steps)
        found = {each.judge: each for each in outcomes}
        if chosen in found and not all_steps:
            (found[chosen],) = moment.outcomes(run_id, judge=chosen, sample_id=sample_id, with_steps=True)
        recipe = None if chosen is None else record.recipes.get(chosen)
        position = moment.position(run_id, sample_id)
        assert position is not None, "the sample was found"
        if cache is not None and wanted.words and chosen is not None:
            reader = JudgeReader(moment, cache, store.seen(record), chosen)
            before, after = beside_found(reader, wanted, position)
        elif wanted.query and chosen is not None:
            before, after = neighbours(moment, run_id, chosen, wanted, position)
        else:
            before, after = moment.beside(run_id, position)
        recipe = None if chosen is None else record.recipes.get(chosen)
        return SampleView(
            run_id=run_id,
            run_name=record.name,
            dataset=record.dataset,
            model=record.model if recipe is None else recipe.model,
            position=position,
            n_samples=record.n_samples,
            sample=sample,
            judges=record.judges,
            judge=chosen,
            outcomes=tuple(_judged(sample, found[name]) for name in record.judges if name in found),
            previous=before,
            next=after,
            elsewhere=tuple(moment.elsewhere(run_id, sample_id)),
        )


def _judged(sample: Sample, outcome: Outcome) -> Judged:
    kind: Kind = (
        "verdict"
        if isinstance(outcome, Verdict)
        else "abstention"
        if isinstance(outcome, Abstention)
        else "failure"
    )
    return Judged(judge=outcome.judge, kind=kind, right=judged_right(sample, outcome), outcome=outcome)


@router.get("/runs/{run_id}/samples/{sample_id:path}")
def page_by_path(
    request: Request, run_id: str, sample_id: str, store: RequestStore, query: PageParams
) -> Response:
    """Show a sample whose id fits into a path."""
    return _page(request, store, run_id, sample_id, query.wanted)


@router.get("/runs/{run_id}/sample")
def page_by_query(request: Request, run_id: str, store: RequestStore, query: PageParams) -> Response:
    """Show a sample whose id does not fit into a path."""
    return _page(request, store, run_id, id_in_query(request), query.wanted)


def id_in_query(request: Request) -> str:
    """Return the sample's id in the query, which may be empty; 422 if there is none."""
    found = query_of(request).get("id")
    if found is None:
        raise HTTPException(422, "the address has no sample: ?id=… is missing")
    return found[-1]


def _page(request: Request, store: Store, run_id: str, sample_id: str, wanted: ListFilter) -> Response:
    judge = query_of(request).get("judge", [""])[-1] or None
    view = sample_view(store, run_id, sample_id, judge, wanted=wanted, cache=run_cache_of(request))
    outcome = view.judged.outcome if view.judged else None
    return page(
        request,
        "sample.html",
        view=view,
        evidence=evidence_of(view.sample, outcome, _number(query_of(request).get("claim", [""])[-1])),
        steps=steps_of(view.sample, outcome.steps) if outcome else (),
        n_steps=len(outcome.steps) if outcome else 0,
        claims_at_once=CLAIMS_AT_ONCE,
        within=wanted.chooses,
        to=_Links(view, {"judge": judge, **wanted.query}),
    )


def _number(text: str) -> int | None:
    """Parse the number of a claim; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class _Links:
    """The addresses that a sample's page links to, with the fields `kept` of its query."""

    def __init__(self, view: SampleView, kept: dict[str, Any]) -> None:
        self._view = view
        self._kept = kept

    def sample(self, sample_id: str) -> str:
        """Return the address of another sample of the run."""
        return sample_address(self._view.run_id, sample_id, **self._kept)

    def judge(self, judge: str) -> str:
        """Return the address of the same sample by another judge."""
        return sample_address(self._view.run_id, self._view.sample.id, **{**self._kept, "judge": judge})

    def claim(self, number: int, anchor: str) -> str:
        """Return the address of the same page with this claim selected."""
        return (
            f"{sample_address(self._view.run_id, self._view.sample.id, **self._kept, claim=number)}#{anchor}"
        )

    @property
    def here(self) -> str:
        """The same page with no claim selected."""
        return self.sample(self._view.sample.id)

    @property
    def data(self) -> str:
        """The sample and all of its outcomes as JSON."""
        return sample_address(self._view.run_id, self._view.sample.id, start="/api")

    @property
    def run(self) -> str:
        """The run, with the same list."""
        return run_address(self._view.run_id, **self._kept)

    @staticmethod
    def elsewhere(run_id: str, sample_id: str, judge: str) -> str:
        """Return the address of a sample of another run."""
        return sample_address(run_id, sample_id, judge=judge)


# --- as JSON --------------------------------------------------------------------------------------


@api.get("/runs/{run_id}/samples/{sample_id:path}", response_model=SampleView, responses=ERRORS)
def sample(run_id: str, sample_id: str, store: RequestStore, judge: Name = "") -> Response:
    """Get a sample with all outcomes and their steps. Use the query form for ids that do not fit a path."""
    return _data(sample_view(store, run_id, sample_id, judge or None, all_steps=True))


@api.get("/runs/{run_id}/sample", response_model=SampleView, responses=ERRORS)
def sample_of_any_id(
    request: Request,
    run_id: str,
    store: RequestStore,
    id: Annotated[str, Query()],
    judge: Name = "",
) -> Response:
    """Get a sample by an id in the query, which may contain any characters or be empty."""
    return _data(sample_view(store, run_id, id_in_query(request), judge or None, all_steps=True))


def _data(view: SampleView) -> Response:
    return json_response(asdict(view))
