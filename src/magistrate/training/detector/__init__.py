"""How a detector is trained: what it learns from, the network, the loop, the export."""
