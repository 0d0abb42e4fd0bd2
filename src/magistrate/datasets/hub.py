"""Sets of the Hugging Face hub, by `hf://` addresses; needs the extra `hub`.

`hf://datasets/OWNER/NAME[@REVISION]/path/file.parquet` is one file of a set, in any format that is read.
`hf://OWNER/NAME[@REVISION][:CONFIG][/SPLIT]` are the rows of a set in the Parquet files that the hub makes
of every public one. A branch or tag is resolved to its commit first, and the name of what was opened
holds that commit, so that it reads the same bytes later, too. Files are kept under `datasets/hub` in
`MAGISTRATE_HOME`; `HF_ENDPOINT` names a mirror.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from magistrate._paths import datasets_dir
from magistrate._text import address
from magistrate._version import __version__
from magistrate.datasets.fields import near, plain
from magistrate.datasets.files import FileSource, format_of, open_file
from magistrate.datasets.source import Problem, Row, Source
from magistrate.errors import DatasetError, MissingExtra, SpecError

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
    """Several files that are one set, one after the other."""

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
    """The rows at an `hf://` address, downloaded where they are not kept yet, and its pinned name.

    SpecError for an address that is not understood, DatasetError where the hub does not give it.
    """
    if found := FILE_FORM.fullmatch(address):
        return _file(found["repo"], unquote(found["revision"] or "main"), found["path"])
    if found := SET_FORM.fullmatch(address):
        revision = unquote(found["revision"] or CONVERTED)
        return _split(found["repo"], revision, found["config"], found["split"])
    raise SpecError(f"cannot read the address {plain(repr(address), 200)}; known: {FORMS}")


def _file(repo: str, revision: str, path: str) -> tuple[str, Source]:
    if format_of(Path(path)) is None:
        raise SpecError(f"cannot tell what {plain(repr(path), 200)} of {repo} holds by its name")
    if COMMIT.fullmatch(revision):
        commit = revision  # nothing to ask: a file that is kept needs no network
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
            f"{repo} has no Parquet files of its splits at {plain(revision)}; name a file: {FORMS}"
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
        raise SpecError(f"say which of {listed}: {how}")
    if asked not in known:
        raise SpecError(f"{missing} {plain(repr(asked))}{near(asked, known)}; known: {listed}")
    return asked


# --- the hub's own client ---------------------------------------------------------------------------


def _listing(repo: str, revision: str) -> tuple[str, list[str]]:
    """The commit that a revision means now, and the files that it has."""
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
    # The hub calls a large file by its sha256, and the client checks its size only.
    promised = kept.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", promised):
        with kept.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != promised:
                kept.resolve().unlink()
                raise DatasetError(
                    f"{path} of {repo} is not what the hub announced; it was not kept; try again"
                )
    return kept


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _client() -> Any:
    """The package `huggingface_hub`, imported so that it neither reports home nor draws bars.

    Its settings are read when its `constants` are imported; a program that has done so keeps its own.
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
            f"the hub at {address(_endpoint())} has no public data set {repo!r}; "
            "check its name, or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        made = " (the hub has made no Parquet files of it)" if revision == CONVERTED else ""
        raise DatasetError(f"{repo} has no revision {at!r}{made}; name a file: {FORMS}") from None
    except errors.EntryNotFoundError as error:
        raise DatasetError(f"{repo} at {at} does not give the file: {_short(error)}") from None
    except errors.HFValidationError as error:
        raise SpecError(f"{plain(repr(repo))} cannot be a data set of the hub: {_short(error)}") from None
    except Exception as error:  # the client hands on whatever its transport raises
        raise DatasetError(
            f"cannot fetch {repo} from {address(_endpoint())}: {_short(error)}; is there a network?"
        ) from error


def _short(error: Exception) -> str:
    return plain(" ".join(str(error).split()), 200)
