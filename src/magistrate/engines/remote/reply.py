"""What a server wrote, before anybody has looked whether it can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magistrate.types import Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server wrote, `thinking` apart from it; `finish` is `length` where the budget ended it.

    `notes` say what else a reader of the text must know.
    """

    text: str
    finish: Literal["stop", "length"]
    usage: Usage
    thinking: str = ""
    notes: tuple[str, ...] = ()
