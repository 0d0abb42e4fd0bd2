"""The network of a detector: an encoder of context and output with a head on each token, and the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from magistrate.detectors.folder import json_of
from magistrate.detectors.weights import EPSILON, MPNET_EPSILON, mpnet_weights, replaced, smooth_of, smoothed
from magistrate.detectors.windows import SIDES
from magistrate.engines.models.updates import Update, read_updates
from magistrate.errors import ModelError
from magistrate.training.detector.encoder import Encoder, Rounded
from magistrate.training.detector.examples import KINDS, SUPPORTED, UNKNOWN, UNKNOWN_TOKEN, WRONG, Example
from magistrate.training.low_rank import LowRank

WEIGHTS = "model.safetensors"
EPSILONS = {"bert": EPSILON, "mpnet": MPNET_EPSILON}
RANK, SCALE = 32, 2.0  # rank and scale of the low-rank updates of a large encoder


class Network(nn.Module):
    """Maps int64 ids, types and attention mask `[batch, length]` to logits `[batch, length, 1 + KINDS]`.

    The first logit is for the token being unsupported by the context. The mean of the others over the tokens
    of a sentence gives the sentence's logits of *supported*, *contradicted* and *not in the text*. They are
    the sum of a linear map of the token and one of `[CLS]`, so that the mean can be taken outside the
    network.

    All of an encoder is trained except for its word embeddings. With `by_updates`, for a large one, only
    low-rank updates of the matrices (`low_rank`, by name), the norms and the token type embeddings are.
    """

    def __init__(self, encoder: Encoder, *, by_updates: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.token = nn.Linear(encoder.width, 1)
        self.kind = nn.Linear(encoder.width, KINDS)
        self.whole = nn.Linear(encoder.width, KINDS)
        self.low_rank: dict[str, LowRank] = {}
        if by_updates:
            self._attach(encoder)
        # They are half of a small encoder, and those of rare words would drift.
        encoder.embeddings["word_embeddings"].weight.requires_grad_(False)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        return self.answers(self.encoder(ids, types, mask))

    def answers(self, hidden: Tensor) -> Tensor:
        """Return the logits from the hidden states after the last layer."""
        kinds = self.kind(hidden) + self.whole(hidden[:, :1])
        return torch.cat([self.token(hidden), kinds], dim=-1)

    def _attach(self, encoder: Encoder) -> None:
        encoder.requires_grad_(False)
        encoder.embeddings["token_type_embeddings"].requires_grad_(True)
        for name, module in list(encoder.named_modules()):
            if isinstance(module, nn.Linear):
                self.low_rank[name] = found = LowRank(module, RANK, SCALE, torch.float32)
                parent, _, own = name.rpartition(".")
                encoder.get_submodule(parent)[own] = found
                if own in ("key", "value"):  # they have the same input as the query
                    found.down = self.low_rank[f"{parent}.query"].down
            elif isinstance(module, nn.LayerNorm):
                module.requires_grad_(True)

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Return the trained weights as groups of an optimizer. `times` multiplies the learning rate.

        Weights of a large encoder have no decay, because its updates are small. Its heads start at random and
        learn faster, its norms slower.
        """
        learnt = [(name, value) for name, value in self.named_parameters() if value.requires_grad]
        if not self.low_rank:
            return [
                {
                    "params": [value for _, value in learnt if value.dim() > 1],
                    "weight_decay": decay,
                    "times": 1.0,
                },
                {
                    "params": [value for _, value in learnt if value.dim() < 2],
                    "weight_decay": 0.0,
                    "times": 1.0,
                },
            ]
        kinds: dict[float, list[Tensor]] = {1.0: [], 0.5: [], 2.0: []}
        for name, value in learnt:
            times = 1.0 if name.endswith((".up", ".down")) else 0.5 if "LayerNorm" in name else 2.0
            kinds[times].append(value)
        return [{"params": some, "weight_decay": 0.0, "times": times} for times, some in kinds.items()]

    def merge(self, dtype: torch.dtype | None = None) -> None:
        """Merge the current low-rank updates into the weights used in computation, in `dtype` from now on."""
        for each in self.low_rank.values():
            each.dtype = dtype or each.dtype
            each.merge()

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights of a small network, by their names in a detector's folder."""
        return {
            key: value.detach().float().cpu().numpy()
            for key, value in self.state_dict().items()
            if value.dim()
        }

    def update(self) -> tuple[dict[str, Update], dict[str, np.ndarray]]:
        """Return what a large encoder has learnt: low-rank updates, and weights that replace others."""
        updates = {
            f"encoder.{name}.weight": Update(
                (each.scale * each.up).detach().cpu().numpy(), each.down.detach().cpu().numpy()
            )
            for name, each in self.low_rank.items()
        }
        others = {name: value.detach().cpu().numpy() for name, value in self._replaced()}
        return updates, others

    @torch.no_grad()
    def begin_with(self, update: Path) -> None:
        """Load what the same large encoder learnt in an earlier training."""
        held = read_updates(update)
        for name, each in self.low_rank.items():
            before = held[f"encoder.{name}.weight"]
            each.up.copy_(torch.from_numpy(before.up) / each.scale)
            each.down.copy_(torch.from_numpy(before.down))
        others = replaced(update)
        for name, value in self._replaced():
            value.copy_(torch.from_numpy(others[name]))
        self.merge()

    def _replaced(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the trained weights of a large network that are no updates."""
        for name, value in self.named_parameters():
            if value.requires_grad and not name.endswith((".up", ".down")):
                yield name, value


def from_base(folder: Path, update: Path | None = None, seed: int = 0) -> Network:
    """Create a network from the weights of a Hugging Face BERT or MPNet with new heads, or of a `Network`.

    `update` is the file of an earlier update of an MPNet. New weights are random, the same for the same
    `seed`. Raises `ModelError` if the weights cannot be read or some are missing.
    """
    config = json_of(folder / "config.json")
    kind, heads = config.get("model_type"), config.get("num_attention_heads")
    if kind not in EPSILONS:
        raise ModelError(f"{folder} contains a model of type {kind!r}; known: {' and '.join(EPSILONS)}")
    own = config.get("layer_norm_eps", EPSILON)  # which is what a Hugging Face folder means by none
    if own != (epsilon := EPSILONS[kind]):
        raise ModelError(f"{folder} has a layer_norm_eps of {own}; only {epsilon} is supported")
    if not isinstance(heads, int) or heads < 1:
        raise ModelError(f"{folder} does not say how many attention heads it has")
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    is_network = "kind.weight" in weights
    if is_network:
        of_encoder = {
            name.removeprefix("encoder."): value
            for name, value in weights.items()
            if name.startswith("encoder.")
        }
    elif kind == "mpnet":
        named = mpnet_weights({name: value.numpy() for name, value in weights.items()})
        of_encoder = {name.removeprefix("encoder."): torch.from_numpy(value) for name, value in named.items()}
    else:
        of_encoder = {name.removeprefix("bert."): value for name, value in weights.items()}
    encoder = Encoder(of_encoder, heads, config.get("bits", 8))
    if (sides := len(encoder.embeddings["token_type_embeddings"].weight)) < SIDES:
        raise ModelError(f"{folder} does not support pairs of texts: its type_vocab_size is {sides}")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Network(encoder, by_updates=kind == "mpnet" and not is_network)
    if is_network:
        network.load_state_dict(weights)
    if update is not None:
        network.begin_with(update)
    return network


@torch.no_grad()
def smoothing(network: Network, examples: Iterable[Example]) -> dict[str, np.ndarray]:
    """Return what inputs of matrices of 4 bits are multiplied by before they are rounded to 8 bits.

    It follows from the greatest absolute values that the inputs have in some examples. Those of the products
    after the attention need none.
    """
    most: dict[str, Tensor] = {}

    def looks_at(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def look(_: nn.Module, given: tuple[Tensor]) -> None:
            found = given[0].float().abs().flatten(0, -2).amax(0)
            most[name] = torch.maximum(most.get(name, found), found)

        return look

    hooks = [
        module.register_forward_pre_hook(looks_at(smooth_of(f"encoder.{name}.weight")))
        for name, module in network.encoder.named_modules()
        if isinstance(module, Rounded) and not name.endswith("attention.output.dense")
    ]
    network.eval()
    for example in examples if hooks else ():
        batch = batch_of([example])
        network(batch.ids, batch.types, batch.mask)
    for hook in hooks:
        hook.remove()
    return {name: smoothed(each.numpy()) for name, each in most.items()}


TOKEN_SHARE = 0.3  # weight of the loss on tokens relative to that on sentences
WRONG_TOKENS = 3.0  # weight of a wrong token, because they are few


class Batch(NamedTuple):
    """Examples as tensors on a device.

    `ids`, `types`, `mask` int64 `[batch, length]`. `sentence` int64 `[batch, length]` is the sentence number
    of each output token within the batch, -1 for other tokens. `truths` int64 `[sentences]` are the labels of
    the sentences, `owner` int64 `[sentences]` the examples that they belong to. `hallucinated` float
    `[batch]`. `tokens` float `[batch, length]`, -1 for unknown.
    """

    ids: Tensor
    types: Tensor
    mask: Tensor
    sentence: Tensor
    truths: Tensor
    owner: Tensor
    hallucinated: Tensor
    tokens: Tensor


def batch_of(rows: Sequence[Example], device: str = "cpu") -> Batch:
    """Return the examples as a batch, padded to the longest."""
    shape = len(rows), max(row.length for row in rows)
    ids, types, mask = (np.zeros(shape, np.int64) for _ in range(3))
    sentence, tokens = np.full(shape, -1, np.int64), np.full(shape, UNKNOWN_TOKEN, np.float32)
    truths: list[int] = []
    owner: list[int] = []
    for at, row in enumerate(rows):
        ids[at, : row.length] = row.ids
        types[at, row.second : row.length] = 1
        mask[at, : row.length] = 1
        tokens[at, row.bounds[0] : row.bounds[-1]] = row.tokens
        for begin, end, truth in zip(row.bounds, row.bounds[1:], row.truths, strict=False):
            sentence[at, begin:end] = len(truths)
            truths.append(truth)
            owner.append(at)
    hallucinated = np.array([row.hallucinated for row in rows], np.float32)
    arrays = (ids, types, mask, sentence, np.array(truths), np.array(owner), hallucinated, tokens)
    return Batch(*(torch.from_numpy(each).to(device) for each in arrays))


def sentence_logits(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean logits of each sentence's tokens, `[sentences, KINDS]`."""
    inside = batch.sentence >= 0
    number = batch.sentence[inside]
    sums = logits.new_zeros(len(batch.truths), KINDS).index_add(0, number, logits[..., 1:][inside])
    return sums / torch.bincount(number, minlength=len(batch.truths)).unsqueeze(1).clamp(min=1)


def loss_of(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean loss of a batch, with equal weight for each example.

    A sentence's loss is the cross entropy of its label; if only *wrong* is known, that of not being
    supported. If it is unknown which sentences of an output are wrong, the loss is that of not all being
    supported, with sentences taken as independent.
    """
    logits = logits.float()
    shares = torch.log_softmax(sentence_logits(logits, batch), dim=-1)
    supported = shares[:, SUPPORTED]
    known = torch.where(
        batch.truths < KINDS,
        shares.gather(1, batch.truths.clamp(max=KINDS - 1).unsqueeze(1)).squeeze(1),
        torch.logsumexp(shares[:, 1:], dim=1),
    )
    count = len(batch.ids)
    one = torch.zeros(count, device=logits.device)
    is_known = batch.truths != UNKNOWN
    of_known = one.index_add(0, batch.owner[is_known], -known[is_known])
    all_supported = one.index_add(0, batch.owner, supported).clamp(max=-1e-4)
    has_unknown = one.index_add(0, batch.owner, (~is_known).float()) > 0
    loss = torch.where(has_unknown, -torch.log(-torch.expm1(all_supported)), of_known).mean()
    told = batch.tokens >= 0
    if told.any():
        wanted = batch.tokens[told]
        weights = 1 + (WRONG_TOKENS - 1) * wanted
        loss = loss + TOKEN_SHARE * binary_cross_entropy_with_logits(logits[..., 0][told], wanted, weights)
    return loss


assert WRONG == KINDS
