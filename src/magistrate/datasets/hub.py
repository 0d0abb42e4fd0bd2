"""Download data: sets of the Hugging Face hub by `hf://` addresses, and pinned files of public sets.

`hf://datasets/OWNER/NAME[@REVISION]/path/file.parquet` is one file of a set, in any supported format.
`hf://OWNER/NAME[@REVISION][:CONFIG][/SPLIT]` are the rows of a set, from the Parquet files that the hub
makes of every public set. A branch or tag is resolved to its commit first. The returned name contains that
commit, so that it reads the same bytes later. This needs the extra `hub`. Files are kept under
`datasets/hub` in `MAGISTRATE_HOME`; `HF_ENDPOINT` names a mirror.

`fetch` downloads one file of a public git repository or hub data set at a pinned commit, once, and keeps
it. A commit id pins the content only if the host is honest. If the catalogue has no sha256, the hash of the
first download is recorded beside the file, and any other content is rejected from then on.
`MAGISTRATE_GIT_RAW` replaces the address that `/OWNER/REPOSITORY/COMMIT/PATH` is appended to.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from magistrate._paths import datasets_dir
from magistrate._text import address
from magistrate._version import __version__
from magistrate.datasets.fields import near, plain
from magistrate.datasets.files import FileSource, format_of, open_file
from magistrate.datasets.rows import Problem, Row, Source
from magistrate.errors import DatasetError, MissingExtra, SpecError

Host = Literal["git", "hub"]
HOSTS: dict[Host, tuple[str, str, str]] = {
    "git": ("MAGISTRATE_GIT_RAW", "https://raw.githubusercontent.com", "{repository}/{revision}/{path}"),
    "hub": ("HF_ENDPOINT", "https://huggingface.co", "datasets/{repository}/resolve/{revision}/{path}"),
}
"""The variable that names a mirror of each host, its own address, and what is appended to it."""
CHUNK = 1 << 20
SECONDS = 60.0


def kept_at(folder: Path, repository: str, revision: str, path: str) -> Path:
    """Return the path at which a file of a commit is kept, whether it exists or not."""
    return folder / repository.replace("/", "--") / revision / PurePosixPath(path)


def fetch(
    folder: Path,
    repository: str,
    revision: str,
    path: str,
    sha256: str | None = None,
    host: Host = "git",
) -> Path:
    """Return the file, downloaded if it is not kept. DatasetError if that fails or the content differs."""
    target = kept_at(folder, repository, revision, path)
    record = target.with_name(target.name + ".sha256")
    expected = sha256 or (record.read_text(encoding="ascii").strip() if record.exists() else None)
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
                    f"{address(url)} has sha256 {found[:12]}…, but {expected[:12]}… is pinned; the file was "
                    "deleted. A proxy changed it, or it was replaced at the source"
                )
            if expected is None:
                _write(record, found + "\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DatasetError(
                f"not enough space under {folder} for {path}; free some space and try again"
            ) from error
        raise DatasetError(f"cannot write under {folder}: {error.strerror or error}") from error
    return target


def _url(host: Host, repository: str, revision: str, path: str) -> str:
    variable, usual, form = HOSTS[host]
    base = os.environ.get(variable, usual).rstrip("/")
    if urlsplit(base).scheme not in ("http", "https"):
        raise DatasetError(f"{variable} must start with http:// or https://, got {base!r}")
    return f"{base}/{form.format(repository=repository, revision=revision, path=quote(path))}"


def _download(url: str, folder: Path) -> tuple[Path, str]:
    """Download `url` into a new file and return its path and sha256."""
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
                    f"cannot download {address(url)}: the server answered {error.code} {error.reason}"
                ) from None
            except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
                reason = getattr(error, "reason", None) or error
                raise DatasetError(f"cannot download {address(url)}: {reason}; check the network") from None
        if announced is not None and size != int(announced):
            raise DatasetError(
                f"cannot download {address(url)}: it stopped after {size} of {announced} bytes; try again"
            )
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial, digest.hexdigest()


def _read(read: Callable[[int], bytes], url: str) -> bytes:
    # Network errors and disk errors are both OSError; those raised while reading come from the network.
    try:
        return read(CHUNK)
    except (OSError, HTTPException) as error:
        raise DatasetError(
            f"cannot download {address(url)}: the connection broke ({error}); try again"
        ) from None


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".partial-{path.name}")
    partial.write_text(text, encoding="ascii")
    partial.replace(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


CONVERTED = "refs/convert/parquet"
COMMIT = re.compile(r"[0-9a-f]{40}")
SET_FORM = re.compile(
    r"hf://(?:datasets/)?(?P<repo>[^/@:]+/[^/@:]+)(?:@(?P<revision>[^:/]+))?"
    r"(?::(?P<config>[^/]+))?(?:/(?P<split>[^/]+))?"
)
FILE_FORM = re.compile(r"hf://datasets/(?P<repo>[^/@:]+/[^/@:]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)")
FORMS = "hf://datasets/OWNER/NAME/path/file.parquet or hf://OWNER/NAME[:CONFIG][/SPLIT]"
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True)
class Shards:
    """Several files that form one set, read one after the other."""

    parts: tuple[FileSource, ...]

    def rows(self) -> Iterator[Row | Problem]:
        for part in self.parts:
            yield from part.rows()

    def digest(self) -> str:
        return hashlib.sha256("".join(part.digest() for part in self.parts).encode()).hexdigest()

    def count(self) -> int | None:
        counts = [part.count() for part in self.parts]
        return None if None in counts else sum(n or 0 for n in counts)


def open_set(address: str) -> tuple[str, Source]:
    """Return the pinned name and the rows of an `hf://` address, downloading the files that are not kept
    yet.

    Raises SpecError for an invalid address, and DatasetError if the hub does not provide the data.
    """
    if found := FILE_FORM.fullmatch(address):
        return _file(found["repo"], unquote(found["revision"] or "main"), found["path"])
    if found := SET_FORM.fullmatch(address):
        revision = unquote(found["revision"] or CONVERTED)
        return _split(found["repo"], revision, found["config"], found["split"])
    raise SpecError(f"cannot read the address {plain(repr(address), 200)}; known: {FORMS}")


def _file(repo: str, revision: str, path: str) -> tuple[str, Source]:
    if format_of(Path(path)) is None:
        raise SpecError(f"unknown file type of {plain(repr(path), 200)} in {repo}")
    if COMMIT.fullmatch(revision):
        commit = revision  # already resolved: a kept file needs no network
    else:
        commit, files = _listing(repo, revision)
        if path not in files:
            raise SpecError(f"{repo} has no file {plain(repr(path), 200)}{near(path, files)}")
    name = f"hf://datasets/{repo}@{commit}/{path}"
    opened = open_file(_fetched(repo, commit, path))
    return name, replace(opened, shown=name)


def _split(repo: str, revision: str, config: str | None, split: str | None) -> tuple[str, Source]:
    commit, files = _listing(repo, revision)
    splits: dict[str, dict[str, list[str]]] = {}
    for file in sorted(files):
        parts = file.split("/")
        if len(parts) == 3 and file.endswith(".parquet"):
            splits.setdefault(parts[0], {}).setdefault(parts[1], []).append(file)
    if not splits:
        raise DatasetError(
            f"{repo} has no Parquet files of its splits at {plain(revision)}; give a file: {FORMS}"
        )
    chosen = _one_of(f"{repo} has no configuration", config, list(splits), "default", f"hf://{repo}:CONFIG")
    inside = splits[chosen]
    part = _one_of(f"{repo}:{chosen} has no split", split, list(inside), None, f"hf://{repo}:{chosen}/SPLIT")
    stem = repo.rpartition("/")[2]
    shards = []
    for number, file in enumerate(inside[part], 1):
        opened = open_file(_fetched(repo, commit, file))
        own = stem if len(inside[part]) == 1 else f"{stem}-{number}"
        shards.append(replace(opened, shown=f"hf://datasets/{repo}/{file}", stem=own))
    return f"hf://{repo}@{commit}:{chosen}/{part}", Shards(tuple(shards))


def _one_of(missing: str, asked: str | None, known: list[str], usual: str | None, how: str) -> str:
    if asked is None and len(known) == 1:
        return known[0]
    if asked is None and usual in known:
        asked = usual
    listed = ", ".join(plain(each) for each in known[:20])
    if asked is None:
        raise SpecError(f"choose one of {listed}: {how}")
    if asked not in known:
        raise SpecError(f"{missing} {plain(repr(asked))}{near(asked, known)}; known: {listed}")
    return asked


# --- the hub's client -------------------------------------------------------------------------------


def _listing(repo: str, revision: str) -> tuple[str, list[str]]:
    """Return the commit that a revision currently points to, and the files in it."""
    client = _client()
    with _explained(repo, revision):
        api = client.HfApi(endpoint=_endpoint(), library_name="magistrate", library_version=__version__)
        info = api.dataset_info(repo, revision=revision)
    return str(info.sha), [str(sibling.rfilename) for sibling in info.siblings or ()]


def _fetched(repo: str, commit: str, path: str) -> Path:
    client = _client()
    with _explained(repo, commit):
        kept = Path(
            client.hf_hub_download(
                repo,
                path,
                repo_type="dataset",
                revision=commit,
                cache_dir=datasets_dir() / "hub",
                endpoint=_endpoint(),
                library_name="magistrate",
                library_version=__version__,
            )
        )
    # The hub names a large file by its sha256, but the client checks only its size.
    promised = kept.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", promised):
        with kept.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != promised:
                kept.resolve().unlink()
                raise DatasetError(
                    f"{path} of {repo} differs from what the hub announced; it was deleted; try again"
                )
    return kept


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _client() -> Any:
    """Import the package `huggingface_hub` with telemetry and progress bars disabled.

    Its settings are read when its `constants` are imported; a program that has already done so keeps its
    own.
    """
    if "huggingface_hub.constants" in sys.modules:
        return sys.modules["huggingface_hub"]
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update(QUIET)
    try:
        import huggingface_hub
        import huggingface_hub.constants
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise MissingExtra("huggingface_hub", "hub") from None
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return huggingface_hub


@contextmanager
def _explained(repo: str, revision: str) -> Iterator[None]:
    import huggingface_hub.errors as errors

    at = plain(revision)
    try:
        yield
    except errors.GatedRepoError as error:
        raise DatasetError(
            f"{repo} is gated: accept its terms on the hub and set HF_TOKEN ({_short(error)})"
        ) from None
    except errors.RepositoryNotFoundError:
        raise DatasetError(
            f"the hub at {address(_endpoint())} has no public data set {repo!r}; check the name, or set "
            "HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        made = " (the hub has made no Parquet files of it)" if revision == CONVERTED else ""
        raise DatasetError(f"{repo} has no revision {at!r}{made}; give a file: {FORMS}") from None
    except errors.EntryNotFoundError as error:
        raise DatasetError(f"{repo} at {at} does not provide the file: {_short(error)}") from None
    except errors.HFValidationError as error:
        raise SpecError(
            f"{plain(repr(repo))} is not a valid name of a hub data set: {_short(error)}"
        ) from None
    except Exception as error:  # the client passes on any error of its transport
        raise DatasetError(
            f"cannot download {repo} from {address(_endpoint())}: {_short(error)}; check the network"
        ) from error


def _short(error: Exception) -> str:
    return plain(" ".join(str(error).split()), 200)
