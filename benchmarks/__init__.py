"""Everything that measures: speed, quality, reliability, install size. Not part of the wheel."""
