"""What may be said of an engine on a server: options behind its model's name, an address, a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args, get_type_hints

from magistrate.engines.remote.addresses import checked
from magistrate.errors import SpecError

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Who is asked where nobody else is named: whose server stands at `official`, by which `word` its engine
    is named, where the environment has an address and a key, and how the address of another is written."""

    whose: str
    word: str
    official: str
    url_variable: str
    key_variable: str
    example: str

    def address(self, said: str | None) -> str:
        """The address of the server: what was said, else the environment's, else the official one.

        Raises `SpecError` for what is no address, and for one that holds a secret: it would be stored and
        shown.
        """
        url = (said or os.environ.get(self.url_variable) or self.official).strip().rstrip("/")
        checked(url, self.key_variable, f"write it as in --base-url {self.example}")
        return url

    def key_for(self, url: str) -> str:
        """The key to send to `url`, from the environment. Raises `SpecError` where the official server's is
        missing."""
        key = os.environ.get(self.key_variable, "").strip()
        if not key and url == self.official:
            raise SpecError(
                f"{self.whose} server needs a key: set {self.key_variable}; a server of your own is named "
                f"with --base-url {self.example}"
            )
        return key or "none"  # the packages demand one; servers without keys do not look at it

    def read_options(self, words: str, kind: type[Options], least: Mapping[str, int]) -> tuple[str, Options]:
        """The model's name, and what stands behind it as `name=value` of the fields of `kind`.

        A field is one of several words, true or false, or a whole number of at least `least`, 0 where that
        says nothing of it. Raises `SpecError`.
        """
        model, *said = words.split(",")
        if not model.strip():
            raise SpecError(f"this engine needs a model: {self.word}:MODEL")
        types = get_type_hints(kind)
        known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        found: dict[str, Any] = {}
        for each in said:
            name, sign, value = each.partition("=")
            if not sign or name not in known:
                raise SpecError(
                    f"{each!r} is no option of {self.word}:{model}; known, as name=value: {', '.join(known)}"
                )
            found[name] = _value(name, value, types[name], least.get(name, 0))
        return model, kind(**found)


def _value(name: str, value: str, kind: Any, least: int) -> Any:
    if kind is not int:
        words = ("true", "false") if kind is bool else get_args(kind)
        if value not in words:
            raise SpecError(f"{name}={value!r} is not known; known: {', '.join(words)}")
        return value == "true" if kind is bool else value
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) < least:
        raise SpecError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)
