"""How often a verdict flips when the judged text is hostile, compared with a harmless edit of the same size.

Run: .venv/bin/python benchmarks/hostile.py [--judge SPEC ...] [--model NAME] [--samples N] [--attacks N]
         [--longest CHARACTERS] [--json]

The check `hostile` of `magistrate audit`, for several judges on the first N samples of the built-in set.
`--attacks` is the number of attacks of at most `--longest` characters, from each family in turn; 0 takes all.

For each judge and place it prints: the pairs (sample, attack) with three verdicts, of all pairs; the share of
them whose label differs from the clean one, under the attack and under its control; the difference of both
shares with its 95 % interval (see `magistrate.metrics.resampling`); the mean changes of the score; and how
many outcomes under attack or control were not verdicts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence

from magistrate.analysis.audit import Effect
from magistrate.analysis.hostile import ATTACKS, Attack
from magistrate.api.audit import Examination
from magistrate.datasets import load
from magistrate.judges import registry
from magistrate.metrics.classification import Estimate
from magistrate.runs.limits import Limits

LIMITS = Limits(concurrency=8, deadline=600.0)

HEADING = (
    f"{'place':<8} {'pairs':>9} {'flipped':>8} {'control':>8}  {'difference, 95 % interval':<28}"
    f" {'score':>7} {'control':>7}  no verdict"
)


def shown(where: str, found: Effect) -> str:
    """Return one line of the table."""
    begun = f"{where:<8} {f'{found.pairs}/{found.trials}':>9}"
    invalid = f"{sum(found.failures.values())} failed, {sum(found.abstentions.values())} abstained"
    if not found.pairs:
        return f"{begun} {'no pair has three verdicts':<63}  {invalid}"
    flipped, control = _value(found.flipped), _value(found.under_control)
    change, by_control = _value(found.moved), _value(found.moved_under_control)
    return (
        f"{begun} {flipped:>8.1%} {control:>8.1%}  {_difference(found.excess):<28}"
        f" {change:>+7.3f} {by_control:>+7.3f}  {invalid}"
    )


def _value(estimate: Estimate | None) -> float:
    assert estimate is not None and estimate.value is not None
    return estimate.value


def _difference(excess: Estimate | None) -> str:
    assert excess is not None and excess.value is not None
    if excess.low is None or excess.high is None:
        return f"{excess.value:+.1%}"
    return f"{excess.value:+.1%} [{excess.low:+.1%}, {excess.high:+.1%}]"


def heading(n: int, attacks: Sequence[Attack]) -> str:
    """Describe the samples and the attacks."""
    families = Counter(each.family for each in attacks)
    told = ", ".join(f"{count} {family}" for family, count in families.items())
    return f"{n} samples of quickstart, {len(attacks)} of {len(ATTACKS)} attacks: {told}"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--judge", metavar="SPEC", nargs="+", default=["faithfulness"])
    words.add_argument(
        "--model", metavar="NAME", help="a catalogue name or a path; the default model without it"
    )
    words.add_argument("--samples", metavar="N", type=int, default=6)
    words.add_argument("--attacks", metavar="N", type=int, default=20)
    words.add_argument("--longest", metavar="CHARACTERS", type=int, default=2000)
    words.add_argument("--json", action="store_true")
    chosen = words.parse_args()
    engine = registry.engine(chosen.model)
    command = ["python", "benchmarks/hostile.py", "--judge", *chosen.judge]
    command += ["--model", chosen.model or engine.info.model, "--samples", str(chosen.samples)]
    command += ["--attacks", str(chosen.attacks), "--longest", str(chosen.longest)]
    n_attacks = chosen.attacks or sum(len(each.text) <= chosen.longest for each in ATTACKS)
    found = []
    for number, spec in enumerate(chosen.judge):
        examination = Examination(
            registry.judge(spec),
            engine,
            load("quickstart", limit=chosen.samples),
            checks=["hostile"],
            attacks=n_attacks,
            longest=chosen.longest,
            limits=LIMITS,
        )
        if not chosen.json and not number:
            print(shlex.join(command))
            print(heading(len(examination.samples), examination.attacks))
        asyncio.run(examination.go())
        audit = examination.result()
        found.append(audit.to_dict())
        if not chosen.json:
            print(f"\n{audit.recipe} ({audit.seconds:.0f} s)\n{HEADING}")
            for finding in audit.findings:
                if finding.effect is not None:
                    print(shown(finding.where or "", finding.effect), flush=True)
    if chosen.json:
        json.dump({"command": shlex.join(command), "audits": found}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
