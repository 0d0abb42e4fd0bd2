"""Synthetic training data: small changes of faithful texts, some of which make them wrong."""

from magistrate.training.synthetic.lexicon import Lexicon
from magistrate.training.synthetic.variants import HARMLESS, KINDS, WRONG, Kind, perturb

__all__ = ["HARMLESS", "KINDS", "WRONG", "Kind", "Lexicon", "perturb"]
