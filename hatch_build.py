"""Puts the documentation into what is built, if `make docs` has written it: `magistrate docs` opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Site(BuildHookInterface):
    """Adds build/site/VERSION to the wheel as magistrate/site, and to the sdist where it is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        site = Path(self.root, "build", "site", self.metadata.version)
        if version != "editable" and (site / "index.html").is_file():
            wheel = self.target_name == "wheel"
            place = "magistrate/site" if wheel else site.relative_to(self.root).as_posix()
            build_data["force_include"][str(site)] = place
