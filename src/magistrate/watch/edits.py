"""Which rules are in force: those of the rules file, or what somebody has saved of them on the page.

A revision that was saved on the page holds until the same rule is changed in the file. What is in the file
then is what its owner wants now; the revision stays in the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magistrate.errors import SpecError
from magistrate.runs.prepare import RunPlan, prepare_judges
from magistrate.store.rule_edits import RuleEdit
from magistrate.watch.rules import Rule, edited_rule


@dataclass(frozen=True, slots=True)
class InForce:
    """A rule as workers apply it. `edit` is the revision that it is from, None for the file.

    A revision that cannot be read any more, for the reason `problem`, switches the rule off.
    """

    rule: Rule
    enabled: bool = True
    edit: RuleEdit | None = None
    problem: str = ""


def in_force(rule: Rule, edit: RuleEdit | None) -> InForce:
    """Return what holds for a rule of the file, of which `edit` is the newest revision."""
    if edit is None or edit.base != rule.digest:
        return InForce(rule)
    try:
        return InForce(edited_rule(edit.text, rule), edit.enabled, edit)
    except SpecError as error:
        return InForce(rule, False, edit, str(error))


def plans_of(rule: Rule) -> Sequence[RunPlan]:
    """Create the judges and engines of a rule: one plan per judge.

    Raises `SpecError` if a budget is in dollars and no price is known, and the errors of models.
    """
    plans = [prepare_judges(spec) for spec in rule.specs()]
    if rule.budget.in_dollars:
        for plan in plans:
            _require_price(rule, plan)
    return plans


def _require_price(rule: Rule, plan: RunPlan) -> None:
    if plan.cost is None:
        raise SpecError(
            f"the budget of rule {rule.name!r} is in dollars, but no price is known for "
            f"{plan.engine.info.model!r}; give it in US dollars per million tokens: price: IN/OUT, below the "
            "judge"
        )
