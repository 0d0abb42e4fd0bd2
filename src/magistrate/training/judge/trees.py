"""Batches of examples that share beginnings of their prompts, each of which is computed once.

All prompts of a judge share its instructions, and those of a context also the context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from magistrate.training.judge.examples import Example

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    """Examples whose prompts share their first `stem` tokens. Each has at least one more prompt token."""

    stem: int
    examples: tuple[Example, ...]

    def __len__(self) -> int:
        """The number of tokens to compute."""
        return self.stem + sum(len(each) - self.stem for each in self.examples)


@dataclass(frozen=True, slots=True)
class Laid:
    """Trees as the rows of a batch.

    `ids` and `places` (positions) are `[rows, length]`. `mask` is `[rows, 1, length, begun + length]`, where
    `begun` tokens were computed before. It is added to the attention scores: 0 for visible tokens, the lowest
    number of its type for others. `rows`, `columns` and `answers` list the answers' tokens, example by
    example: where each is predicted, and its id.
    `examples` are in the same order.
    """

    ids: Tensor
    places: Tensor
    mask: Tensor
    rows: Tensor
    columns: Tensor
    answers: Tensor
    examples: tuple[Example, ...]


def begun(examples: Sequence[Example]) -> tuple[int, ...]:
    """Return the tokens that all prompts begin with; at least two tokens of each prompt come after them."""
    prompts = [each.prompt for each in examples]
    shared = _alike(min(prompts), max(prompts))  # what the first and the last in order share, all share
    return prompts[0][: min(shared, min(map(len, prompts)) - 2)]


def after(examples: Iterable[Example], begun: int) -> list[Example]:
    """Return the examples without the first `begun` tokens of their prompts."""
    return [replace(each, prompt=each.prompt[begun:]) for each in examples]


def trees(examples: Iterable[Example], most: int) -> Iterator[Tree]:
    """Yield examples of one context as trees of at most `most` tokens; a longer one is a tree of its own."""
    tree: Tree | None = None
    for each in sorted(examples, key=lambda example: (example.group, example.prompt, example.answer)):
        if tree is not None and (grown := _grown(tree, each)) is not None and len(grown) <= most:
            tree = grown
            continue
        if tree is not None:
            yield tree
        tree = Tree(len(each.prompt) - 1, (each,))
    if tree is not None:
        yield tree


def _grown(tree: Tree, example: Example) -> Tree | None:
    """Return the tree with one more example; None if they share no prefix."""
    last = tree.examples[-1]
    if last.group != example.group:
        return None
    stem = min(tree.stem, _alike(last.prompt, example.prompt), len(example.prompt) - 1)
    return Tree(stem, (*tree.examples, example)) if stem else None


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def batches(examples: Sequence[Example], most: int) -> Iterator[list[Tree]]:
    """Yield trees of similar length in batches of at most `most` tokens with padding, or of one tree."""
    some: list[Tree] = []
    for each in sorted(trees(examples, most), key=len):
        if some and (len(some) + 1) * len(each) > most:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def laid(some: Sequence[Tree], device: str, dtype: torch.dtype, begun: int = 0) -> Laid:
    """Return a batch of trees, each after the same `begun` tokens.

    A token sees these, the stem of its tree, and earlier tokens of its own branch.
    """
    import torch

    length = max(map(len, some))
    ids = torch.zeros(len(some), length, dtype=torch.long)
    places = torch.zeros_like(ids)
    mask = torch.zeros(len(some), 1, length, length, dtype=torch.bool)
    mask[:, :, :, 0] = True  # padding must see a token too: attention over nothing gives NaN
    before = torch.ones(length, length, dtype=torch.bool).tril()
    rows, columns, answers = list[int](), list[int](), list[int]()
    for row, tree in enumerate(some):
        stem = tree.stem
        ids[row, :stem] = torch.tensor(tree.examples[0].prompt[:stem])
        places[row, :stem] = torch.arange(begun, begun + stem)
        mask[row, 0, :stem, :stem] = before[:stem, :stem]
        at = stem
        for example in tree.examples:
            own = (*example.prompt[stem:], *example.answer)
            end = at + len(own)
            ids[row, at:end] = torch.tensor(own)
            places[row, at:end] = torch.arange(begun + stem, begun + stem + len(own))
            mask[row, 0, at:end, :stem] = True
            mask[row, 0, at:end, at:end] = before[: len(own), : len(own)]
            first = at + len(example.prompt) - stem - 1
            rows += [row] * len(example.answer)
            columns += range(first, first + len(example.answer))
            answers += example.answer
            at = end
    added = torch.zeros(len(some), 1, length, begun + length, dtype=dtype)
    added[..., begun:].masked_fill_(~mask, torch.finfo(dtype).min)
    return Laid(
        ids.to(device),
        places.to(device),
        added.to(device),
        torch.tensor(rows, device=device),
        torch.tensor(columns, device=device),
        torch.tensor(answers, device=device),
        tuple(each for tree in some for each in tree.examples),
    )
