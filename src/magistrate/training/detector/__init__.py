"""Trains a detector: its data, network, training loop and export."""
