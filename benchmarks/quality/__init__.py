"""Measures how well judges do on labelled sets, by a fixed protocol."""
