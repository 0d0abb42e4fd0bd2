"""Training a detector: its data, the network, the loop, the export."""
