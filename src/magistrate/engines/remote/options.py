"""Options of an engine on a server: the ones after the model's name, the server's address, the key."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Any, TypeVar, get_args, get_type_hints
from urllib.parse import SplitResult, urlsplit

from magistrate.errors import SpecError

Options = TypeVar("Options")

SHOWN_MODELS = 20  # the most models that a warning lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """The official server of a protocol, and the environment variables that select another one.

    `owner` appears in messages (`OpenAI's`). `prefix` is the prefix of a model (`openai:MODEL`). `official`
    is the address of the official server, and `example` shows how to write another address.
    """

    owner: str
    prefix: str
    official: str
    url_variable: str
    key_variable: str
    example: str

    def address(self, given: str | None) -> str:
        """Return the server's address: the given one, else the environment's, else the official one.

        Raises `SpecError` for an invalid address, and for one that contains a secret, because addresses are
        stored and shown.
        """
        url = (given or os.environ.get(self.url_variable) or self.official).strip().rstrip("/")
        check_address(url, self.key_variable, f"use a form like --base-url {self.example}")
        return url

    def key_for(self, url: str) -> str:
        """Return the key to send to `url`, from the environment. Raises `SpecError` if the official
        server's key is missing."""
        key = os.environ.get(self.key_variable, "").strip()
        if not key and url == self.official:
            raise SpecError(
                f"{self.owner} server needs a key: set {self.key_variable}; for your own server, use "
                f"--base-url {self.example}"
            )
        return key or "none"  # the packages require one; servers without keys ignore it

    def read_options(
        self, words: str, kind: type[Options], minimum: Mapping[str, int]
    ) -> tuple[str, Options]:
        """Parse the model's name, and the `name=value` pairs after it as fields of `kind`.

        A field is one of several words, true or false, or a whole number of at least `minimum` (0 if not
        listed there). Raises `SpecError`.
        """
        model, *pairs = words.split(",")
        if not model.strip():
            raise SpecError(f"this engine needs a model: {self.prefix}:MODEL")
        types = get_type_hints(kind)
        known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        found: dict[str, Any] = {}
        for pair in pairs:
            name, sign, value = pair.partition("=")
            if not sign or name not in known:
                raise SpecError(
                    f"{pair!r} is not an option of {self.prefix}:{model}; known, as name=value: "
                    f"{', '.join(known)}"
                )
            found[name] = _value(name, value, types[name], minimum.get(name, 0))
        return model, kind(**found)


def check_address(url: str, key_variable: str, how: str) -> SplitResult:
    """Split `url` into its parts. Raises `SpecError` if it is invalid or contains a secret.

    An address is stored and shown, so keys belong in the environment variable `key_variable`. `how`
    describes how to write an address.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SpecError(f"this is not the address of a server ({error}); {how}") from None
    if parts.username is not None or parts.password is not None:
        raise SpecError(f"an address must not contain a user or a password; set {key_variable} instead")
    if parts.query or parts.fragment:
        raise SpecError(f"an address must not contain '?' or '#'; put a key into {key_variable}; {how}")
    if parts.scheme not in ("http", "https") or not host:
        raise SpecError(f"{url[:200]!r} is not the address of a server; {how}")
    return parts


def is_local(url: str) -> bool:
    """Return whether `url` is this machine or one in its own network: a single computer, not a service."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".lan", ".internal"))
    return address.is_private or address.is_loopback or address.is_link_local


def warn_unlisted_model(address: str, model: str, listed: Sequence[str]) -> None:
    """Warn that the server at `address` does not list `model`, though it answers for it.

    Some servers have one model and use it for any name. A typo would then go unnoticed, and results would
    be stored under the wrong name.
    """
    names = ", ".join(listed[:SHOWN_MODELS]) + (", …" if len(listed) > SHOWN_MODELS else "")
    warnings.warn(
        f"{address} does not list the model {model!r}, but answers for it; it lists: {names}. Use the exact "
        f"name, because results are stored under the name {model!r}",
        UserWarning,
        stacklevel=2,
    )


def _value(name: str, value: str, kind: Any, minimum: int) -> Any:
    if kind is not int:
        words = ("true", "false") if kind is bool else get_args(kind)
        if value not in words:
            raise SpecError(f"{name}={value!r} is unknown; known: {', '.join(words)}")
        return value == "true" if kind is bool else value
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) < minimum:
        raise SpecError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
    return int(value)
