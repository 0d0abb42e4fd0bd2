"""A run of judges over a data set: its specification, its plan, its execution, and how it goes on."""
