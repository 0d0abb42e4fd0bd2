"""`magistrate cache`: show and prune the cache of engine calls."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import json_option
from magistrate.cli.output import print_json, print_table

if TYPE_CHECKING:
    from datetime import datetime

    from magistrate.engines.cache_file import CallCache

EXAMPLE = "Example: magistrate cache prune --older-than 30d"
HOURS = {"h": 1, "d": 24, "w": 7 * 24}
SIZES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class Age(click.ParamType[timedelta]):
    """A duration: `12h`, `30d` or `4w`."""

    name = "AGE"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> timedelta:
        found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([hdw])", str(value).strip().lower())
        if found is None:
            self.fail(f"an age is written like 12h, 30d or 4w, got {value!r}", parameter, context)
        return timedelta(hours=float(found[1]) * HOURS[found[2]])


class Size(click.ParamType[int]):
    """A size: `500MB`, `2GiB` or a number of bytes."""

    name = "SIZE"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        found = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([A-Z]*)", str(value).strip().upper())
        if found is None or found[2] not in SIZES:
            self.fail(f"a size is written like 500MB or 2GiB, got {value!r}", parameter, context)
        return int(float(found[1]) * SIZES[found[2]])


@click.group(short_help="Show and prune the cache of model answers.", epilog=EXAMPLE)
def command() -> None:
    """Show and prune the cache of model answers, which saves runs from repeating a call."""


@command.command(
    short_help="Show how many answers are cached, their size and models.",
    epilog="Example: magistrate cache stats --json",
)
@json_option
def stats(as_json: bool) -> None:
    """Show the number and size of the cached answers, their models, and the cache file."""
    from magistrate._paths import default_cache

    path = default_cache()
    if not path.exists():
        nothing = {"path": str(path), "entries": 0, "bytes": 0, "file_bytes": 0}
        if as_json:
            print_json({**nothing, "oldest": None, "newest": None, "models": {}})
        else:
            click.echo(f"the cache is empty; it would be at {path}")
        return
    with _opened() as cache:
        found = cache.stats()
    if as_json:
        names = ("path", "entries", "bytes", "file_bytes", "oldest", "newest")
        models = {name: asdict(kept) for name, kept in found.models.items()}
        print_json({**{name: getattr(found, name) for name in names}, "models": models})
        return
    click.echo(f"{path}: {_counted(found.entries)}, {size(found.file_bytes)} on disk")
    if found.oldest and found.newest:
        click.echo(f"last used between {_day(found.oldest)} and {_day(found.newest)}")
        click.echo("")
        rows = [[name, f"{kept.entries:,}", size(kept.bytes)] for name, kept in found.models.items()]
        print_table(["model", "answers", "size"], rows)


@command.command(epilog=EXAMPLE)
@click.option("--older-than", type=Age(), help="Remove what was not used for this long, such as 30d.")
@click.option(
    "--max-size",
    type=Size(),
    help="Remove the least recently used answers until the cache has this size, such as 500MB.",
)
@click.option("--model", help="Remove only answers of this model; without other options, all of them.")
@click.option("--all", "everything", is_flag=True, help="Everything.")
@json_option
def prune(
    older_than: timedelta | None, max_size: int | None, model: str | None, everything: bool, as_json: bool
) -> None:
    """Remove cached answers and print how many were removed."""
    from magistrate._paths import default_cache
    from magistrate.engines.cache_file import CallCache, Kept
    from magistrate.errors import SpecError, StoreError

    others = older_than is not None or max_size is not None or model is not None
    if everything and others:
        raise SpecError("--all removes everything; it cannot be combined with other options")
    if not everything and not others:
        raise SpecError("choose what to remove: --older-than, --max-size, --model or --all")
    path, removed, freed = default_cache(), Kept(), 0
    if path.exists():
        with CallCache.open(path) as cache:
            before = cache.stats().file_bytes
            try:
                removed = cache.prune(
                    older_than=older_than, max_bytes=max_size, model=model, everything=everything
                )
                freed = max(before - cache.stats().file_bytes, 0)
            except StoreError:
                if not (everything and cache.damaged):
                    raise
        if everything and cache.damaged:
            freed = CallCache.discard(path)
    if as_json:
        print_json({"entries": removed.entries, "bytes": removed.bytes, "freed": freed})
    else:
        click.echo(f"removed {_counted(removed.entries)}, about {size(removed.bytes or freed)}")


def size(count: int) -> str:
    """Format a number of bytes for people.

    >>> size(512), size(48_300), size(2 * 2**30)
    ('512 B', '48.3 kB', '2,147.5 MB')
    """
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:,.1f} kB" if count < 10**6 else f"{count / 10**6:,.1f} MB"


def _opened() -> CallCache:
    """Open the cache, and raise `StoreError` if it is damaged or unusable."""
    from magistrate.engines.cache_file import CallCache
    from magistrate.errors import StoreError

    cache = CallCache.open()
    if cache.trouble is not None:
        cache.close()
        raise StoreError(f"cache {cache.path}: {cache.trouble}")
    return cache


def _counted(entries: int) -> str:
    return f"{entries:,} answer{'' if entries == 1 else 's'}"


def _day(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"
