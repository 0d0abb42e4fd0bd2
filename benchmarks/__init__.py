"""Benchmarks of speed, quality, reliability and install size. Not part of the wheel."""
