"""Metrics of verdicts, each with a 95 % interval."""

from magistrate.metrics.classification import METRICS, Classification, Confusion, Estimate, classification

__all__ = ["METRICS", "Classification", "Confusion", "Estimate", "classification"]
