"""The server: runs, their figures and samples as pages in a browser and as a JSON API."""
