"""Numbers computed from a sample or from a forward pass over it."""

from magistrate.features.signals import ngram_novelty, output_length
from magistrate.features.words import words

__all__ = ["ngram_novelty", "output_length", "words"]
