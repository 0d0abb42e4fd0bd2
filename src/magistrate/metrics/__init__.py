"""Numbers about judgements, each with the interval that says how far it can be trusted."""

from magistrate.metrics.classification import METRICS, Classification, Confusion, Estimate, classification

__all__ = ["METRICS", "Classification", "Confusion", "Estimate", "classification"]
