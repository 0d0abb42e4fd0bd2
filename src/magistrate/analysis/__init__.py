"""Judging the judge: outcomes and labels become agreement, comparison, calibration and prevalence."""
