"""Pages: each parses its address, asks a view and renders it."""
