"""Import OpenVINO with its telemetry disabled.

Importing `openvino` runs the set-up of its model converter, which reports the import over the network if
the package `openvino_telemetry` can be imported, and falls back to a stub if not.
"""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType

from magistrate._work import PerProcess
from magistrate.errors import MissingExtra

TELEMETRY = "openvino_telemetry"
_lock = PerProcess(threading.Lock)


def import_openvino() -> ModuleType:
    """Import and return the package `openvino` without its telemetry.

    Import `openvino_genai` after this call, never before. The telemetry is hidden only during the import:
    OpenVINO binds its stub then and keeps it, and other users of the telemetry in this process are
    unaffected. Raises `MissingExtra` if OpenVINO is not installed.
    """
    with _lock.get():
        if "openvino" in sys.modules:
            return sys.modules["openvino"]
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_telemetry(name)}
        sys.modules[TELEMETRY] = None  # type: ignore[assignment]
        try:
            return importlib.import_module("openvino")
        except ModuleNotFoundError as error:
            if error.name != "openvino":
                raise
            raise MissingExtra("openvino", "local") from None
        finally:
            del sys.modules[TELEMETRY]
            sys.modules.update(hidden)


def _is_telemetry(name: str) -> bool:
    return name == TELEMETRY or name.startswith(TELEMETRY + ".")
