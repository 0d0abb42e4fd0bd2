"""Logs of Inspect (`.eval`, and `.json` in its form) as rows; its package `inspect-ai` reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from magistrate.datasets.fields import plain
from magistrate.datasets.source import Problem, Row
from magistrate.datasets.values import json_value
from magistrate.errors import DatasetError, MissingPackage

HEAD = re.compile(rb'\s*\{\s*"(?:version|status|eval)"\s*:')
EVALUATION = re.compile(rb'"eval"\s*:\s*\{')
LOOKED_AT = 1 << 16  # bytes of a JSON file, at its beginning: what is said of the evaluation comes first


def is_log(head: bytes) -> bool:
    """Whether a JSON file that begins so is a log of Inspect."""
    return HEAD.match(head) is not None and EVALUATION.search(head) is not None


def rows(path: Path, shown: str) -> Iterator[Row | Problem]:
    """The samples of a log, one an epoch, as `values_of` gives them.

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

        def read(what: Callable[..., Any], *words: Any, **options: Any) -> Any:
            return reader.submit(what, str(path), *words, **options).result()

        packed = path.suffix.lower() == ".eval"
        try:
            log = read(read_eval_log, header_only=packed, resolve_attachments=not packed and "core")
        except Exception as error:  # a package's own code, on a foreign file
            reason = plain(" ".join(f"{type(error).__name__}: {error}".split()), 200)
            raise DatasetError(f"{shown} is no log that inspect-ai can read ({reason})") from None
        if not packed:
            yield from of_samples(log.samples or (), shown)
            return
        for id, epoch in _expected(log):
            where = f"{shown} sample {plain(str(id))}, epoch {epoch}"
            try:
                sample = read(
                    read_eval_log_sample, id, epoch, resolve_attachments="core", exclude_fields={"events"}
                )
            except IndexError:
                yield Problem(where, None, f"it is not in the log, whose status is {log.status}")
            except Exception as error:  # as above
                yield Problem(where, None, plain(" ".join(f"{type(error).__name__}: {error}".split()), 200))
            else:
                yield from of_samples((sample,), shown)


def _expected(log: Any) -> Iterator[tuple[Any, int]]:
    for id in log.eval.dataset.sample_ids or ():
        for epoch in range(1, (log.eval.config.epochs or 1) + 1):
            yield id, epoch


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
