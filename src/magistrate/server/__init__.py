"""The page: runs, their figures and samples in a browser, and the same as a JSON API."""
