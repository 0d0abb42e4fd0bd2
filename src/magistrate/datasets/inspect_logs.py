"""Read logs of Inspect (`.eval`, or `.json` in the same structure) as rows, with its package `inspect-ai`."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator
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
LOOKED_AT = 1 << 16  # bytes at the start of a JSON file, where the evaluation is described
MEMBER = re.compile(r"samples/(?P<id>.+)_epoch_(?P<epoch>[0-9]{1,9})\.json", re.DOTALL)  # in a `.eval`, a zip
LARGEST = 512 << 20  # bytes of an unpacked member
PIECE = 1 << 12  # bytes per read, which can unpack to ten thousand times as much
ENCRYPTED = 1  # bit in a member's flags

Place = tuple[str, int]  # a sample's id and its epoch


def is_log(head: bytes) -> bool:
    """Return whether a JSON file with this head is a log of Inspect."""
    return HEAD.match(head) is not None and EVALUATION.search(head) is not None


def rows(path: Path, shown: str) -> Iterator[Row | Problem]:
    """Yield the samples of a log, one row per epoch, with the columns of `values_of`. A `.eval` file is
    read one sample at a time.

    A sample that is missing from the log or cannot be read becomes a problem, and reading goes on. `shown`
    is the file's name in messages. Raises `MissingPackage` if inspect-ai is not installed, and
    `DatasetError` if the log as a whole cannot be read.
    """
    try:
        from inspect_ai.log import read_eval_log, read_eval_log_sample
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise MissingPackage("inspect-ai") from None
    # In a separate thread: under a running event loop, Inspect would make that loop re-entrant.
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
    """Yield the rows of all samples that a log names, and of any others that it contains."""
    for id, epoch in dict.fromkeys([*_named(log), *held]):
        where = f"{shown} sample {plain(id)}, epoch {epoch}"
        if (id, epoch) not in held:
            yield Problem(where, None, f"it is not in the log, whose status is {log.status}")
            continue
        try:
            sample = sample_of(id, epoch)
        except Exception as error:  # a package's code, on an untrusted file
            yield Problem(where, None, _reason(error))
        else:
            yield from of_samples((sample,), shown)


def _named(log: Any) -> Iterator[Place]:
    for id in log.eval.dataset.sample_ids or ():
        for epoch in range(1, (log.eval.config.epochs or 1) + 1):
            yield str(id), epoch


@contextmanager
def _whole(shown: str) -> Iterator[None]:
    """Convert any error about the log as a whole into a `DatasetError`."""
    try:
        yield
    except Exception as error:  # a package's code, on an untrusted file
        raise DatasetError(f"{shown} is not a log that inspect-ai can read ({_reason(error)})") from None


def _check_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Raise if an archive, apart from its samples, is not safe to unpack."""
    if sum(member.compress_size for member in archive.infolist()) > size:
        raise DatasetError("its members overlap")
    for name in dict.fromkeys(archive.namelist()):
        if not MEMBER.fullmatch(name):
            _check_member(archive, name)


def _check_member(archive: zipfile.ZipFile, name: str) -> None:
    """Raise if a member is encrypted, damaged or too large.

    The member is unpacked once and discarded, up to little more than `LARGEST` bytes. The check is needed
    because inspect-ai unpacks everything, whatever size the archive declares.
    """
    member = copy(archive.getinfo(name))
    if member.flag_bits & ENCRYPTED:
        raise DatasetError(f"{plain(name)} is encrypted; pack the log again without a password")
    member.file_size = sys.maxsize  # or zipfile would stop at the declared size
    seen = 0
    with archive.open(member) as stream:
        while seen <= LARGEST and (piece := stream.read(PIECE)):
            seen += len(piece)
    if seen > LARGEST:
        raise DatasetError(
            f"{plain(name)} unpacks to more than {LARGEST >> 20} MiB; remove what is not needed from the "
            "log, such as images"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, DatasetError):
        return str(error)
    if isinstance(error, NotImplementedError):  # from zipfile: compression newer than inspect-ai knows
        return f"{error}; pip install --upgrade inspect-ai"
    return plain(" ".join(f"{type(error).__name__}: {error}".split()), 200)


def of_samples(samples: Any, shown: str) -> Iterator[Row | Problem]:
    """Yield the rows of samples of a log that has been read. A sample without an output becomes a problem."""
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
    """Return the reference answers of a sample."""
    return [target] if isinstance(target, str) else [str(each) for each in target]


def values_of(sample: Any, right: list[str]) -> dict[str, Any]:
    """Return the columns of a sample of a log, or of the state of a running task.

    `input`, `output`, `expected` (the first of `right`; `targets` lists all of them if there are several),
    `messages` (the conversation before the output, unless it is only the input), `tools` (the results of
    tools), and the sample's `metadata` and `store`, to be selected by a mapping such as
    `{"context": "metadata.documents"}`. Without a mapping, metadata under a known name for the context is
    used as the context.
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
        "store": dict(sample.store.items()),
        **context,
    }


def _last_user(messages: Any) -> str | None:
    return next((message.text for message in reversed(messages) if message.role == "user"), None)
