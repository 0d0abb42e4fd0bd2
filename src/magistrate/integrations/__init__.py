"""Judges as metrics of other frameworks, and their samples as ours; each module needs its framework alone."""
