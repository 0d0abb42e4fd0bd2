"""What the processor of this machine computes alike."""

from __future__ import annotations

from pathlib import Path

_FLAGS = Path("/proc/cpuinfo")

EXACT = not _FLAGS.is_file() or "avx512f" in _FLAGS.read_text(encoding="utf-8")
"""Whether the embedded engine gives the same bits whatever else is in a pass.

Without AVX-512, OpenVINO multiplies few rows by another kernel than many.
"""

CLOSE = 0.01  # of a probability or a log-probability, where bits may differ
