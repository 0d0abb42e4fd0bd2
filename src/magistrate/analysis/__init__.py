"""Measures of judges from outcomes and labels: agreement, comparison, calibration, power and audits."""
