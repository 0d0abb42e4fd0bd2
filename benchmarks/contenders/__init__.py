"""The engines that the speed benchmark measures, one per file; packages are imported inside methods."""
