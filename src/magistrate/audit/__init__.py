"""Audits: how a judge holds when the texts on trial are written to mislead it."""

from magistrate.audit.hostile import ATTACKS, Attack, attacked, control, harmless

__all__ = ["ATTACKS", "Attack", "attacked", "control", "harmless"]
