"""How good a judge is, asked of stored runs: agreement, comparison, calibration, prevalence, audit."""
