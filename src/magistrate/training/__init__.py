"""Training: a detector, a probe, a model to judge with, and synthetic data to train on."""
