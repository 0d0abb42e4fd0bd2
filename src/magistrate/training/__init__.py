"""Training: a detector, a probe, a judge model, a stack, and synthetic data to train on."""
