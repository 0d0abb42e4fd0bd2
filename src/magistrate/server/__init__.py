"""The server: runs, their metrics and samples as web pages and as a JSON API."""
