"""Use judges as metrics of other frameworks, and load their samples. Each module needs only its framework."""
