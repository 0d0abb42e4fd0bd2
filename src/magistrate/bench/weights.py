"""One model's weights in the forms that contenders read; what is made is kept under `$MAGISTRATE_HOME`."""

from __future__ import annotations

from pathlib import Path

from magistrate._paths import home
from magistrate.bench.contender import Registered, Weights
from magistrate.engines import models
from magistrate.engines.models import disk
from magistrate.engines.models.catalogue import USUAL, split
from magistrate.engines.models.gguf import rewrite
from magistrate.engines.models.pull import fetch
from magistrate.errors import ModelError

GGUF = "model.gguf"


class WeightsShelf:
    """The forms of one model: a catalogue name, a GGUF file or an OpenVINO folder.

    Raises `SpecError` or `ModelError` at once for a model that is not there.
    """

    def __init__(self, model: str, report: disk.Report) -> None:
        self._report = report
        self._names = {entry.name for entry in models.entries()}
        self._base = split(model, self._names)[0]
        self.folder = models.locate(model, report)

    def take(self, registered: Registered) -> Weights:
        """The weights that a contender runs on. Raises `ModelError` or `SpecError` where they cannot be
        had."""
        if registered.files == "gguf":
            return Weights(self.folder, self._eight_bits(), self.folder)
        if registered.weights == "f16":
            spec = f"{self._base}:f16"
            known = self._base in self._names
            folder = models.pull(spec, self._report) if known else models.locate(spec, self._report)
            return Weights(folder, None, folder)
        return Weights(self.folder, None, self.folder)

    def _eight_bits(self) -> Path:
        """The Q8_0 GGUF that the model's own folder was imported from, made anew and kept."""
        path = Path(self._base).expanduser()
        entry = models.entry(self._base) if self._base in self._names else None
        if entry is None and not path.is_file():
            raise ModelError(
                f"{path} is an OpenVINO folder: there is no GGUF of it, which this contender reads"
            )
        sha256 = entry.sha256 if entry else disk.sha256(path, self._report)
        target = home() / "bench" / sha256[:16]
        if not (target / GGUF).is_file():
            with disk.claimed(target, self._report) as scratch:
                if not (target / GGUF).is_file():
                    original = fetch(entry, scratch, self._report) if entry else path
                    made = scratch / "made"
                    made.mkdir()
                    rewrite.rewrite(rewrite.opened(original), made / GGUF, USUAL, self._report)
                    disk.publish(made, target, scratch)
        return target / GGUF
