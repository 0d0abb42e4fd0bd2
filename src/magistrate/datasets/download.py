"""Fetches one file of a public git repository or hub data set at a pinned commit, once, and keeps it.

A commit id pins the content as far as the hosting is honest. Where the catalogue has no sha256 of
its own, the hash of the first download is recorded beside the file, and anything else is refused
from then on. `MAGISTRATE_GIT_RAW` replaces the address that `/OWNER/REPOSITORY/COMMIT/PATH` is
appended to, and `HF_ENDPOINT` that of the hub, for mirrors.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from magistrate._text import address
from magistrate._version import __version__
from magistrate.errors import DatasetError

Host = Literal["git", "hub"]
HOSTS: dict[Host, tuple[str, str, str]] = {
    "git": ("MAGISTRATE_GIT_RAW", "https://raw.githubusercontent.com", "{repository}/{revision}/{path}"),
    "hub": ("HF_ENDPOINT", "https://huggingface.co", "datasets/{repository}/resolve/{revision}/{path}"),
}
"""The variable that names a mirror of each host, its own address, and what is appended to it."""
CHUNK = 1 << 20
SECONDS = 60.0


def kept_at(folder: Path, repository: str, revision: str, path: str) -> Path:
    """Where a file of a commit is kept, whether it is there or not."""
    return folder / repository.replace("/", "--") / revision / PurePosixPath(path)


def fetch(
    folder: Path,
    repository: str,
    revision: str,
    path: str,
    sha256: str | None = None,
    host: Host = "git",
) -> Path:
    """The file, downloaded if it is not kept yet; DatasetError where it cannot be had or has changed."""
    target = kept_at(folder, repository, revision, path)
    record = target.with_name(target.name + ".sha256")
    expected = sha256 or (record.read_text().strip() if record.exists() else None)
    if target.exists():
        if expected is not None and _sha256(target) != expected:
            raise DatasetError(f"{target} is not what was downloaded; delete it and try again")
        return target
    url = _url(host, repository, revision, path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial, found = _download(url, target.parent)
        try:
            if expected is not None and found != expected:
                raise DatasetError(
                    f"{address(url)} has sha256 {found[:12]}…, not {expected[:12]}… as pinned; "
                    f"it was not kept. "
                    f"Something between here and there changes it, or it was replaced upstream"
                )
            if expected is None:
                _write(record, found + "\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DatasetError(f"no room left under {folder} for {path}; free some and try again") from error
        raise DatasetError(f"cannot write under {folder}: {error.strerror or error}") from error
    return target


def _url(host: Host, repository: str, revision: str, path: str) -> str:
    variable, usual, form = HOSTS[host]
    base = os.environ.get(variable, usual).rstrip("/")
    if urlsplit(base).scheme not in ("http", "https"):
        raise DatasetError(f"{variable} must begin with http:// or https://, got {base!r}")
    return f"{base}/{form.format(repository=repository, revision=revision, path=quote(path))}"


def _download(url: str, folder: Path) -> tuple[Path, str]:
    """A complete copy of what is at `url` in a new file, and its sha256."""
    digest, size = hashlib.sha256(), 0
    descriptor, name = tempfile.mkstemp(prefix=".partial-", dir=folder)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as copy:
            try:
                request = Request(url, headers={"User-Agent": f"magistrate/{__version__}"})
                with urlopen(request, timeout=SECONDS) as answer:
                    announced = answer.headers.get("Content-Length")
                    while chunk := _read(answer.read, url):
                        copy.write(chunk)
                        digest.update(chunk)
                        size += len(chunk)
            except HTTPError as error:
                error.close()
                raise DatasetError(
                    f"cannot fetch {address(url)}: it answered {error.code} {error.reason}"
                ) from None
            except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
                reason = getattr(error, "reason", None) or error
                raise DatasetError(f"cannot fetch {address(url)}: {reason}; is there a network?") from None
        if announced is not None and size != int(announced):
            raise DatasetError(
                f"cannot fetch {address(url)}: it broke off after {size} of {announced} bytes; try again"
            )
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial, digest.hexdigest()


def _read(read: Callable[[int], bytes], url: str) -> bytes:
    # An error while reading is the network's, one while writing the disk's: both are OSError.
    try:
        return read(CHUNK)
    except (OSError, HTTPException) as error:
        raise DatasetError(f"cannot fetch {address(url)}: it broke off ({error}); try again") from None


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".partial-{path.name}")
    partial.write_text(text)
    partial.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
