"""Audits: what flips a judge that should not, from harmless edits to texts that are written to mislead it."""

from magistrate.analysis.audit.hostile import ATTACKS, Attack, attacked, control, harmless, spread
from magistrate.analysis.audit.perturbations import PERTURBATIONS

__all__ = ["ATTACKS", "PERTURBATIONS", "Attack", "attacked", "control", "harmless", "spread"]
