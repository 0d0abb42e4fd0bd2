"""Stores the users of a server: their names, roles, and the hashes of their tokens."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, get_args

from sqlalchemy import Connection, Row, delete, insert, select, update

from magistrate.errors import SpecError
from magistrate.store.audit import log_change
from magistrate.store.labels import checked_annotator
from magistrate.store.runs import near, shown
from magistrate.store.schema import StorePart, stop_writers, users

Role = Literal["ingest", "view", "label", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""`ingest` sends spans and may do nothing else. Of the others, each may do what the ones before it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user. `token_at` is when their token was made; of the token only the hash is stored."""

    name: str
    role: Role
    created_at: datetime
    token_at: datetime


def digest(secret: bytes) -> bytes:
    """Return the hash that is kept of a token or a session id instead of the value.

    Tokens are 256 random bits, so they need no salt and no slow hash.
    """
    return sha256(secret).digest()


def checked_user(name: str) -> str:
    """Return a user's name, which is also their annotator's name. Raises `SpecError` if it is invalid."""
    name = checked_annotator(name)
    if name.startswith("("):
        raise SpecError("a user's name does not begin with (, as the log names those without a user so")
    return name


@dataclass(frozen=True, slots=True)
class Users(StorePart):
    """The users of a store, available as `store.users`. `by` is who makes a change, for the audit log."""

    def add(self, name: str, role: Role, *, by: str, now: datetime) -> str:
        """Store a new user and return their token, which is not stored.

        Raises `SpecError` if the name is invalid, or taken in any spelling of upper and lower case.
        """
        name, token = checked_user(name), secrets.token_urlsafe(32)
        if role not in ROLES:
            raise SpecError(f"unknown role {shown(role)}; known: {', '.join(ROLES)}")
        row = {"name": name, "role": role, "token": _hash(token), "created_at": now, "token_at": now}
        with self._writing() as connection:
            stop_writers(connection, users)
            for known in connection.scalars(select(users.c.name)):
                if known.casefold() == name.casefold():
                    raise SpecError(f"there is a user {shown(known)} already; choose another name")
            connection.execute(insert(users), [row])
            log_change(connection, by, "add user", name, now, f"role {role}")
        return token

    def rotate(self, name: str, *, by: str, now: datetime) -> str:
        """Give the user a new token and return it. The old one and its sessions end at once."""
        token = secrets.token_urlsafe(32)
        with self._writing() as connection:
            found = _require(connection, name)
            changed = update(users).where(users.c.name == found)
            connection.execute(changed.values(token=_hash(token), token_at=now))
            log_change(connection, by, "rotate token", found, now)
        return token

    def remove(self, name: str, *, by: str, now: datetime) -> None:
        """Remove the user. Their labels and their entries in the audit log stay."""
        with self._writing() as connection:
            found = _require(connection, name)
            connection.execute(delete(users).where(users.c.name == found))
            log_change(connection, by, "remove user", found, now)

    def all(self) -> list[User]:
        """Return all users by name."""
        with self._reading() as connection:
            return [_user(row) for row in connection.execute(select(users).order_by(users.c.name))]

    def is_user(self, name: str) -> bool:
        """Return whether there is a user of this name, in any spelling of upper and lower case."""
        return any(each.name.casefold() == name.casefold() for each in self.all())

    def find(self, token: bytes) -> User | None:
        """Return the user whose token has this `digest`."""
        with self._reading() as connection:
            row = connection.execute(select(users).where(users.c.token == token.hex())).one_or_none()
        return None if row is None else _user(row)


def _hash(token: str) -> str:
    return digest(token.encode()).hex()


def _require(connection: Connection, name: str) -> str:
    known = list(connection.scalars(select(users.c.name).order_by(users.c.name)))
    if name not in known:
        raise SpecError(f"unknown user {shown(name)}; {near(name, known)}; see 'magistrate users'")
    return name


def _user(row: Row[Any]) -> User:
    return User(name=row.name, role=row.role, created_at=row.created_at, token_at=row.token_at)
