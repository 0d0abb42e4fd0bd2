"""View values of larger pages: frozen dataclasses that templates and the JSON API show."""
