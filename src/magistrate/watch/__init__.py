"""Watching production: traces are read, each rule decides of what they offer, and what it takes is judged."""
