"""Training data made from faithful texts: small changes that make them wrong, and others that do not."""

from magistrate.training.synthetic.lexicon import Lexicon
from magistrate.training.synthetic.variants import HARMLESS, KINDS, WRONG, Kind, perturb

__all__ = ["HARMLESS", "KINDS", "WRONG", "Kind", "Lexicon", "perturb"]
