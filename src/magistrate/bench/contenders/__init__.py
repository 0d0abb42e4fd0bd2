"""The engines that are measured, one a file; each imports its packages inside its methods."""
