"""Numbers read off a sample alone, before any model is asked."""

from magistrate.features.overlap import ngram_novelty, output_length
from magistrate.features.words import words

__all__ = ["ngram_novelty", "output_length", "words"]
