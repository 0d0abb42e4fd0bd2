"""Logs of Inspect (`.eval`, and `.json` in its form) as rows; its package `inspect-ai` reads them."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from magistrate.datasets.fields import plain
from magistrate.datasets.rows import Problem, Row, json_value
from magistrate.errors import DatasetError, MissingPackage

HEAD = re.compile(rb'\s*\{\s*"(?:version|status|eval)"\s*:')
EVALUATION = re.compile(rb'"eval"\s*:\s*\{')
LOOKED_AT = 1 << 16  # bytes of a JSON file, at its beginning: what is said of the evaluation comes first
MEMBER = re.compile(r"samples/(?P<id>.+)_epoch_(?P<epoch>[0-9]{1,9})\.json", re.DOTALL)  # of a `.eval`, a zip
LARGEST = 512 << 20  # bytes of a member when it is unpacked
PIECE = 1 << 12  # bytes; what is read at once can unpack to ten thousand times as much
ENCRYPTED = 1  # the bit of a member's flags

Place = tuple[str, int]  # a sample's id and its epoch


def is_log(head: bytes) -> bool:
    """Whether a JSON file that begins so is a log of Inspect."""
    return HEAD.match(head) is not None and EVALUATION.search(head) is not None


def rows(path: Path, shown: str) -> Iterator[Row | Problem]:
    """The samples of a log, one an epoch, as `values_of` gives them; those of a `.eval` one at a time.

    A sample that is not in the log or cannot be read is a problem, and the others go on. `shown` is the
    file's name in messages. Raises `MissingPackage` without inspect-ai, `DatasetError` where the log as a
    whole cannot be read.
    """
    try:
        from inspect_ai.log import read_eval_log, read_eval_log_sample
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise MissingPackage("inspect-ai") from None
    # In a thread of its own: under a running event loop Inspect would make that loop re-entrant.
    with ThreadPoolExecutor(1, "magistrate-inspect") as reader:

        def log_of(**options: Any) -> Any:
            return reader.submit(read_eval_log, str(path), **options).result()

        def sample_of(id: str, epoch: int) -> Any:
            options: dict[str, Any] = {"resolve_attachments": "core", "exclude_fields": {"events"}}
            return reader.submit(read_eval_log_sample, str(path), id, epoch, **options).result()

        if path.suffix.lower() == ".eval":
            yield from _packed(path, shown, log_of, sample_of)
        else:
            with _whole(shown):
                log = log_of(resolve_attachments="core")
            held = {(str(sample.id), sample.epoch): sample for sample in log.samples or ()}
            yield from _listed(log, shown, held, lambda *place: held[place])


def _packed(
    path: Path, shown: str, log_of: Callable[..., Any], sample_of: Callable[[str, int], Any]
) -> Iterator[Row | Problem]:
    with ExitStack() as closed:
        with _whole(shown):
            archive = closed.enter_context(zipfile.ZipFile(path))
            _check_archive(archive, path.stat().st_size)
            log = log_of(header_only=True)
        found = [each for each in map(MEMBER.fullmatch, archive.namelist()) if each]
        held = {(each["id"], int(each["epoch"])): each[0] for each in found}

        def checked(*place: Any) -> Any:
            _check_member(archive, held[place])
            return sample_of(*place)

        yield from _listed(log, shown, held, checked)


def _listed(
    log: Any, shown: str, held: Collection[Place], sample_of: Callable[[str, int], Any]
) -> Iterator[Row | Problem]:
    """The rows of all samples that a log names, and of those that it holds beside them."""
    for id, epoch in dict.fromkeys([*_named(log), *held]):
        where = f"{shown} sample {plain(id)}, epoch {epoch}"
        if (id, epoch) not in held:
            yield Problem(where, None, f"it is not in the log, whose status is {log.status}")
            continue
        try:
            sample = sample_of(id, epoch)
        except Exception as error:  # a package's own code, on a foreign file
            yield Problem(where, None, _reason(error))
        else:
            yield from of_samples((sample,), shown)


def _named(log: Any) -> Iterator[Place]:
    for id in log.eval.dataset.sample_ids or ():
        for epoch in range(1, (log.eval.config.epochs or 1) + 1):
            yield str(id), epoch


@contextmanager
def _whole(shown: str) -> Iterator[None]:
    """Turn any error about the log as a whole into a `DatasetError`."""
    try:
        yield
    except Exception as error:  # a package's own code, on a foreign file
        raise DatasetError(f"{shown} is no log that inspect-ai can read ({_reason(error)})") from None


def _check_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Raise for an archive that is not safe to unpack, its samples apart."""
    if sum(member.compress_size for member in archive.infolist()) > size:
        raise DatasetError("its members lie on top of each other")
    for name in dict.fromkeys(archive.namelist()):
        if not MEMBER.fullmatch(name):
            _check_member(archive, name)


def _check_member(archive: zipfile.ZipFile, name: str) -> None:
    """Raise for a member that is encrypted, damaged or too large.

    It is unpacked once and thrown away, and little more than `LARGEST` bytes of it: inspect-ai unpacks all
    that there is, whatever the archive says of its size.
    """
    member = copy(archive.getinfo(name))
    if member.flag_bits & ENCRYPTED:
        raise DatasetError(f"{plain(name)} is encrypted; pack the log again without a password")
    member.file_size = sys.maxsize  # or zipfile would stop where the archive says that it ends
    seen = 0
    with archive.open(member) as stream:
        while seen <= LARGEST and (piece := stream.read(PIECE)):
            seen += len(piece)
    if seen > LARGEST:
        raise DatasetError(
            f"{plain(name)} unpacks to more than {LARGEST >> 20} MiB; leave out of the log what it need not "
            "hold, such as images"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, DatasetError):
        return str(error)
    if isinstance(error, NotImplementedError):  # zipfile's, of a way of packing that is newer than inspect-ai
        return f"{error}; pip install --upgrade inspect-ai"
    return plain(" ".join(f"{type(error).__name__}: {error}".split()), 200)


def of_samples(samples: Any, shown: str) -> Iterator[Row | Problem]:
    """The rows of samples of a log that has been read; one that has no output is a problem."""
    for sample in samples:
        id = str(sample.id) if sample.epoch == 1 else f"{sample.id}~{sample.epoch}"
        where = f"{shown} sample {plain(id)}"
        error = getattr(sample.error, "message", None)
        values = values_of(sample, targets(sample.target))
        if values["output"] is None:
            because = "" if error is None else f": the sample ended in an error: {plain(str(error), 200)}"
            yield Problem(where, None, f"no output{because}")
            continue
        values |= {"epoch": sample.epoch, "id": id}
        values["scores"] = {name: score.value for name, score in (sample.scores or {}).items()}
        try:
            yield Row(
                where, None, id, json_value({k: v for k, v in values.items() if v not in (None, {}, [])})
            )
        except ValueError as reason:
            yield Problem(where, None, str(reason))


def targets(target: Any) -> list[str]:
    """The texts that a sample names as right."""
    return [target] if isinstance(target, str) else [str(each) for each in target]


def values_of(sample: Any, right: list[str]) -> dict[str, Any]:
    """The columns of a sample of a log, or of the state of a task that runs.

    `input`, `output`, `expected` (the first of `right`; all are kept as `targets` where there are several),
    `messages` (what was said before the output, unless that was no more than the input), `tools` (what tools
    answered), and the sample's `metadata` and `store`, to be named by a mapping such as
    `{"context": "metadata.documents"}`. Without one, metadata under a known name of the context is it.
    """
    from magistrate.datasets.fields import field_of

    spoken = [(message.role, message.text) for message in sample.messages]
    output = sample.output.completion or None
    while spoken and spoken[-1][0] == "assistant" and spoken[-1][1] in (output, ""):
        spoken.pop()
    asked = sample.input if isinstance(sample.input, str) else _last_user(sample.input)
    if [text for _, text in spoken] == [asked]:
        spoken = []
    metadata = dict(sample.metadata or {})
    known = next((name for name in metadata if field_of(name) == "context"), None)
    context = {} if known is None else {"context": metadata.pop(known)}
    return {
        "input": asked,
        "output": output,
        "expected": right[0] if right and right[0] else None,
        **({"targets": right} if len(right) > 1 else {}),
        "messages": [{"role": role, "content": text} for role, text in spoken],
        "tools": [message.text for message in sample.messages if message.role == "tool" and message.text],
        "metadata": metadata,
        "store": _plain_store(sample.store),
        **context,
    }


def _last_user(messages: Any) -> str | None:
    return next((message.text for message in reversed(messages) if message.role == "user"), None)


def _plain_store(store: Any) -> Mapping[str, Any]:
    return dict(store.items())
