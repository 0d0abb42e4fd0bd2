"""Loads a model and makes sure that it is the one that its folder and the catalogue say it is."""

from __future__ import annotations

from pathlib import Path

from magistrate.engines.catalog import ModelCard
from magistrate.engines.catalog.selftest import problem
from magistrate.engines.local.backend import Backend, Row
from magistrate.engines.local.blocks import Sequence
from magistrate.engines.local.openvino_backend import OpenVINOBackend
from magistrate.errors import ModelError


def load(
    folder: Path, card: ModelCard, *, device: str, threads: int, cache_bytes: int, hidden_states: bool
) -> Backend:
    """A backend that has passed the self-test of its model, where the catalogue has one.

    Raises `ModelError` for a model that answers otherwise than it must: a wrong build or a damaged file
    is an error, and never a wrong verdict.
    """
    backend = OpenVINOBackend(
        folder, device=device, threads=threads, cache_bytes=cache_bytes, hidden_states=hidden_states
    )
    if card.vocab_size not in (None, backend.vocabulary):
        raise ModelError(
            f"{folder} says that its vocabulary has {card.vocab_size} tokens, but the model answers with "
            f"{backend.vocabulary} logits; pull or download it again"
        )
    if found := _wrong(backend, card):
        raise ModelError(
            f"{card.name} does not answer its self-test as it must on {device}: {found}. Its files are "
            "damaged or this OpenVINO computes it wrongly: pull it again, or install the versions that the "
            "'local' extra pins"
        )
    return backend


def _wrong(backend: Backend, card: ModelCard) -> str | None:
    """What is wrong with what the model answers to its self-test; None where nothing is or there is none."""
    test = card.selftest
    if test is None:
        return None
    sequence = Sequence()
    (answer,) = backend.forward([Row(sequence, list(test.tokens), range(len(test.tokens)))])
    found = problem(test, answer.logits[list(test.positions)])
    backend.pool.drop(sequence)
    return found
