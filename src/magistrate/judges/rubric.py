"""The judge `rubric`: reason freely, then extract claims with quotes from output and context.

The decision from the claims is a pure function, so that other flags can be applied without a model.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from magistrate.constraints import Constraint, constraint
from magistrate.constraints.quote import Unit, quote_schema, quoted
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Capability, Engine, Option, Sampling, in_role, require
from magistrate.errors import SpecError
from magistrate.judges.base import LABELS, READS, Call, JudgeInfo
from magistrate.judges.composite import aggregated
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Claim,
    ClaimKind,
    Data,
    Outcome,
    Prompt,
    Sample,
    Span,
    Verdict,
)

KINDS: tuple[str, ...] = get_args(ClaimKind)
FLAG: frozenset[str] = frozenset({"contradiction", "unsupported"})
BELOW = 0.5 - 1e-9  # the highest score of a faithful output
Combine = Literal["any", "max"]
COMBINE: tuple[Combine, ...] = get_args(Combine)


def check_flag(flag: Collection[str]) -> None:
    """Raise `SpecError` for an empty flag or an unknown kind of claim."""
    if not flag or not set(flag) <= set(KINDS):
        raise SpecError(
            f"flag must be kinds of claims, at least one of {', '.join(KINDS)}; got "
            f"{', '.join(sorted(flag)) or 'none'}"
        )


def decided(verdict: Verdict, flag: Collection[str] = FLAG) -> Verdict:
    """Return `verdict` with label, score, probability and explanation decided by its claims and `flag`.

    The label is `hallucinated` if one claim is of a flagged kind. The score is then the highest probability
    of a flagged claim's kind, at least .5. Otherwise it is the highest doubt about a claim, always below
    .5. Without probabilities it is 1 or 0, without claims 0. If the details have `combine: any`, the score
    is instead the probability that any claim is of a flagged kind, if they are independent, within the same
    bounds. Raises `SpecError` for an invalid flag.
    """
    check_flag(flag)
    flagged = [claim for claim in verdict.claims if claim.kind in flag]
    others = [claim for claim in verdict.claims if claim.kind not in flag]
    details = {**verdict.details, "flag": sorted(flag)}
    any_of = _any_of(verdict.claims, flag) if details.get("combine") == "any" else None
    if flagged:
        share = _most([claim.probability for claim in flagged]) if any_of is None else any_of
        score = 1.0 if share is None else max(0.5, share)
        because = max(flagged, key=lambda claim: claim.probability or 0.0)
        explanation = f"{because.kind}: {because.reasoning}"
        return replace(
            verdict,
            label=HALLUCINATED,
            score=score,
            probability=share,
            explanation=explanation,
            details=details,
        )
    doubt = _most([None if claim.probability is None else 1 - claim.probability for claim in others])
    if any_of is not None:
        doubt = min(any_of, BELOW)
    return replace(
        verdict,
        label=FAITHFUL,
        score=0.0 if doubt is None else min(doubt, BELOW),
        probability=None if doubt is None else 1 - doubt,
        explanation="no disagreement remains" if others else "no disagreement was found",
        details=details,
    )


def reflagged(outcome: Outcome, flag: Collection[str]) -> Outcome:
    """Decide `outcome` again with another flag, if its claims decided it; return any other as it is."""
    return decided(outcome, flag) if isinstance(outcome, Verdict) and by_claims(outcome) else outcome


def by_claims(outcome: Outcome) -> bool:
    """Return whether an outcome is a verdict that its claims decided."""
    return isinstance(outcome, Verdict) and "flag" in outcome.details


def _any_of(claims: Sequence[Claim], flag: Collection[str]) -> float | None:
    """Return the probability that any claim is of a flagged kind; None unless all probabilities are known."""
    known = [(claim.kind in flag, claim.probability) for claim in claims if claim.probability is not None]
    if len(known) < len(claims):
        return None
    shares = [share if flagged else 1 - share for flagged, share in known]
    return aggregated(shares, "noisy_or") if shares else None


def _most(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)


# --- the judge ------------------------------------------------------------------------------------

REASONING = 160  # characters, at most
CLAIM_TOKENS = 112  # reserved per claim; beyond that the engine steers the text to its end

Wording = Literal["context", "expert"]
WORDINGS: Mapping[Wording, Mapping[str, str]] = {
    "context": {
        "answer": "an answer",
        "context_name": "the context that it must keep to",
        "source_name": "context",
        "output_name": "answer",
        "source_title": "Context",
        "output_title": "Answer",
        "context_key": "context_quote",
        "output_key": "answer_quote",
    },
    "expert": {
        "answer": "a candidate's answer",
        "context_name": "the advice of an expert",
        "source_name": "expert advice",
        "output_name": "candidate answer",
        "source_title": "Expert advice",
        "output_title": "Candidate answer",
        "context_key": "expert_quote",
        "output_key": "candidate_quote",
    },
}


@dataclass(frozen=True)
class Rubric:
    """Extracts up to `most` claims on which output and context may disagree, and decides by their kinds.

    First the model reasons freely in up to `reasoning_tokens` tokens (not with `free_stage=false`). Then
    the claims are extracted under a schema, by `extractor` if given, else by the same engine. A claim
    quotes the output and, unless it is `unsupported`, the context, both verbatim, as runs of `unit`.
    `kinds` are the possible kinds of the context's words. The decision is a pure function of the claims and
    of `flag`, the kinds that make an output hallucinated: see `decided`. `order` says whether a claim's
    reasoning or its quotes are written first, `wording` how prompt and schema name the two texts.
    """

    name: str = "rubric"
    flag: frozenset[str] = FLAG
    free_stage: bool = True
    extractor: Engine | None = None
    wording: Wording = "context"
    order: Literal["quotes_first", "reasoning_first"] = "quotes_first"
    unit: Unit = "words"
    kinds: tuple[str, ...] = ("statement", "instruction", "question")
    least: int = 1
    most: int = 4
    reasoning_tokens: int = 256

    def __post_init__(self) -> None:
        check_flag(self.flag)
        if not (0 <= self.least <= self.most and 1 <= self.most <= 20 and self.reasoning_tokens >= 1):
            raise SpecError(
                "the number of claims must be least to most, with most 1 to 20, and reasoning_tokens at "
                f"least 1; got {self.least}, {self.most} and {self.reasoning_tokens}"
            )
        if not self.kinds or not all(self.kinds) or len(set(self.kinds)) < len(self.kinds):
            raise SpecError(f"kinds must be different words, at least one, got {list(self.kinds)}")
        if self.extractor is not None:
            require(self.extractor.info, frozenset({"generate", "constraints"}), "the extractor of a rubric")

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("rubric")
        needs: set[Capability] = {"generate"}
        if self.extractor is None:
            needs |= {"constraints"}
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="free reasoning, then claims with quotes from output and context; their kinds decide",
            labels=LABELS,
            reads=READS,
            requires=("context", "output"),
            needs=frozenset(needs),
            prompt=prompt.digest,
            constraint=self._shape.digest,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls of the free stage, of the longest extraction, and of each claim's kind."""
        thought = [Call(self._prompt(sample, "reason"), self.reasoning_tokens)] if self.free_stage else []
        prompt = self._prompt(sample, "extract", "…" if self.free_stage else "")
        room = 2 * self.reasoning_tokens if self.free_stage else 0
        return [
            *thought,
            Call(prompt, self._budget, room, self.extractor),
            Call(prompt, 1, room + self._budget - 1, self.extractor, times=self.most),
        ]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        details: dict[str, Any] = {}
        reasoning = ""
        if self.free_stage:
            thought = await engine.generate(
                self._prompt(sample, "reason"), sampling=Sampling(max_tokens=self.reasoning_tokens)
            )
            reasoning = thought.text.strip()
            details = {"reasoning": reasoning, "reasoning_cut": thought.finish == "length"}
        extractor = in_role(engine, self.extractor)
        prompt = self._prompt(sample, "extract", reasoning)
        written = await extractor.generate(
            prompt, self._shape_over(sample), sampling=Sampling(max_tokens=self._budget)
        )
        entries = _distinct(written.value["claims"])
        shares = [await self._probability(entries, at, prompt, extractor) for at in range(len(entries))]
        claims = tuple(self._claim(each, share, sample) for each, share in zip(entries, shares, strict=True))
        details |= {"steered": written.steered}
        return decided(
            Verdict(sample.id, self.name, FAITHFUL, 0.0, claims=claims, details=details), self.flag
        )

    # ------------------------------------------------------------------------------------------------

    def _prompt(self, sample: Sample, stage: str, reasoning: str = "") -> Prompt:
        words = {
            **WORDINGS[self.wording],
            "stage": stage,
            "count": f"{self.least} to {self.most}" if self.least else f"at most {self.most}, or none",
            "order": self.order,
            "kinds": " or ".join(f'"{kind}"' for kind in self.kinds),
        }
        return builtin_prompt("rubric").prompt({**fields_of(sample, READS), "reasoning": reasoning}, words)

    @property
    def _budget(self) -> int:
        return CLAIM_TOKENS * self.most + 16

    @property
    def _keys(self) -> tuple[str, str]:
        return WORDINGS[self.wording]["output_key"], WORDINGS[self.wording]["context_key"]

    @cached_property
    def _shape(self) -> Constraint:
        return self._constraint("", ())

    def _shape_over(self, sample: Sample) -> Constraint:
        output, sources = sample.output or "", sample.sources
        return self._constraint(output, sources).over(output=output, context=sources)

    def _constraint(self, output: str, sources: Sequence[str]) -> Constraint:
        output_key, context_key = self._keys

        def claim(supported: bool) -> dict[str, Any]:
            quotes: dict[str, Any] = {output_key: quote_schema("output", self.unit, (output,))}
            quotes |= (
                {
                    context_key: quote_schema("context", self.unit, sources),
                    "quoted": {"enum": list(self.kinds)},
                }
                if supported
                else {context_key: {"type": "null"}}
            )
            reasoning = {"reasoning": short_text(REASONING)}
            fields = {**reasoning, **quotes} if self.order == "reasoning_first" else {**quotes, **reasoning}
            fields["kind"] = {"enum": ["contradiction", "agreement"] if supported else ["unsupported"]}
            return closed_object(fields)

        claims = {
            "type": "array",
            "items": {"anyOf": [claim(True), claim(False)]},
            "minItems": self.least,
            "maxItems": self.most,
        }
        return constraint(closed_object({"claims": claims}))

    async def _probability(
        self, entries: Sequence[Mapping[str, Any]], at: int, prompt: Prompt, engine: Engine
    ) -> float | None:
        """Return the probability of a claim's kind, given all text before it; None if the engine has none.

        For an unsupported claim it is the probability of `null` in place of a quote from the context.
        """
        if not {"choose", "exact_probability"} <= engine.info.can:
            return None
        entry = entries[at]
        key = self._keys[1] if entry["kind"] == "unsupported" else "kind"
        before = json.dumps(
            {name: entry[name] for name in _until(entry, key)}, ensure_ascii=False, separators=(",", ":")
        )
        earlier = "".join(
            json.dumps(each, ensure_ascii=False, separators=(",", ":")) + "," for each in entries[:at]
        )
        begun = f'{{"claims":[{earlier}{before[:-1]},"{key}":'
        options = (
            (Option("unsupported", ("null",)), Option("quoted", ('"',)))
            if key != "kind"
            else (Option("contradiction", ('"contradiction"',)), Option("agreement", ('"agreement"',)))
        )
        choice = await engine.choose(prompt.continued(Data(begun, "claims")), options)
        return None if choice.probabilities is None else choice.probabilities[entry["kind"]]

    def _claim(self, entry: Mapping[str, Any], probability: float | None, sample: Sample) -> Claim:
        output_key, context_key = self._keys
        mine = quoted(entry[output_key], "output", self.unit, (sample.output or "",))
        theirs = None
        if entry[context_key] is not None:
            theirs = quoted(entry[context_key], "context", self.unit, sample.sources)
        return Claim(
            kind=entry["kind"],
            output_quote=Span(mine.start, mine.end, entry["kind"]),
            context_quote=None if theirs is None else Span(theirs.start, theirs.end, entry["quoted"]),
            context_index=None if theirs is None else theirs.source_index,
            reasoning=entry["reasoning"],
            probability=probability,
            output_text=str(mine),
            context_text=None if theirs is None else str(theirs),
        )


def _distinct(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the claims without exact repetitions, which small models are prone to."""
    found: list[Mapping[str, Any]] = []
    for entry in entries:
        if entry not in found:
            found.append(entry)
    return found


def _until(entry: Mapping[str, Any], key: str) -> list[str]:
    names = list(entry)
    return names[: names.index(key)]
