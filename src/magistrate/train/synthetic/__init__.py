"""Training data made from faithful texts: small changes that make them wrong, and others that do not."""

from magistrate.train.synthetic.lexicon import Lexicon
from magistrate.train.synthetic.perturbing import HARMLESS, KINDS, WRONG, Kind, perturb

__all__ = ["HARMLESS", "KINDS", "WRONG", "Kind", "Lexicon", "perturb"]
