"""The engines that the speed benchmark measures, one a file; each imports its packages inside its methods."""
