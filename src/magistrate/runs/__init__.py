"""Runs of judges over a data set: specification, preparation, execution, storing and resuming."""
