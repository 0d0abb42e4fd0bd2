"""What is learnt from labels: calibrations of judges, and the files that keep them."""
