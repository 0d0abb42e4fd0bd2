"""The training loop of a detector: it is deterministic, and an interrupted training resumes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from magistrate.errors import InputError, ModelError
from magistrate.training.checkpoint import claimed, load_state, save_state
from magistrate.training.detector.examples import Example
from magistrate.training.detector.network import Batch, Network, batch_of, loss_of
from magistrate.training.low_rank import dtype_of

STATE = "training.pt"
SAVE_SECONDS = 60.0  # also saved after the first step of every call of `run`
SORTED_TOGETHER = 16_000  # examples that are sorted by length before they are split into batches
NEARLY = 16  # tokens: lengths in the same multiple of this count as equal


@dataclass(frozen=True, slots=True)
class Schedule:
    """The length and the learning rates of a training.

    Training ends after `tokens` tokens. A batch has at most `batch` tokens including padding. The learning
    rate rises to `rate` over `warmup` steps, stays there, and falls to 0 over the last share `cooldown` of
    the tokens, so that a training can be extended later. `average` is the decay of the running mean of the
    weights per step; the detector uses this mean. `memory` is the decay of the mean of squared gradients.
    """

    tokens: int
    batch: int = 8192
    rate: float = 1.5e-4
    warmup: int = 200
    cooldown: float = 0.2
    decay: float = 0.01
    average: float = 0.998
    memory: float = 0.999
    seed: int = 0


Loss = Callable[[Network, Batch], Tensor]


def on_labels(network: Network, batch: Batch) -> Tensor:
    """Return the loss of a network's logits by the labels of a batch."""
    return loss_of(network(batch.ids, batch.types, batch.mask), batch)


class Rounds(Protocol):
    """A source of examples in rounds. The same number always gives the same round."""

    def round(self, number: int) -> list[Example]: ...


class Training:
    """A network being trained. Its state is kept in `folder`, from which training resumes.

    `data` is the source of the examples and `name` identifies it. `loss` is what is made smaller. Raises
    `InputError` for a state of other data, and `ModelError` if the loss is not finite.
    """

    def __init__(
        self,
        network: Network,
        data: Rounds,
        name: str,
        schedule: Schedule,
        folder: Path,
        *,
        loss: Loss = on_labels,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.network: Network = network.to(device)
        self._dtype = dtype_of(device)
        self.schedule, self.folder, self.clock = schedule, folder, clock
        self._device, self._data, self._name, self._loss = device, data, name, loss
        self._optimizer = torch.optim.AdamW(
            network.groups(schedule.decay), lr=schedule.rate, betas=(0.9, schedule.memory), fused=True
        )
        self._frozen = {key for key, value in network.named_parameters() if not value.requires_grad}
        self.mean = {key: value.detach().clone() for key, value in self._learnt().items()}
        self.step = self.tokens = self.number = self.place = 0
        self.curve: list[tuple[int, int, float]] = []
        self._batches: list[list[Example]] | None = None
        self._resume()
        network.merge(self._dtype)

    @property
    def done(self) -> bool:
        """Whether all tokens have been read."""
        return self.tokens >= self.schedule.tokens

    def run(
        self, seconds: float | None = None, tell: Callable[[Training, float], None] | None = None
    ) -> bool:
        """Train for at most `seconds`. Returns True once training is done.

        Raises `InputError` if another process trains in the same folder.
        """
        with claimed(self.folder):
            self._run(seconds, tell)
        return self.done

    def _run(self, seconds: float | None, tell: Callable[[Training, float], None] | None) -> None:
        began = self.clock()
        saved = -math.inf
        recent: list[float] = []
        while not self.done:
            self.network.train()
            recent = [*recent[-199:], self._one(self._next())]
            loss = sum(recent) / len(recent)
            if self.step % 100 == 0:
                self.curve.append((self.step, self.tokens, round(loss, 5)))
            if tell is not None:
                tell(self, loss)
            now = self.clock()
            if now - saved > SAVE_SECONDS:
                self.save()
                saved = now
            if seconds is not None and now - began > seconds:
                break
        self.save()

    def averaged(self) -> Network:
        """Return the network with the running mean of its weights instead of the last ones."""
        self._put(self.network, self.mean)
        self.network.merge(torch.float32)
        return self.network

    def save(self) -> None:
        """Save everything needed to resume, atomically."""
        save_state(
            self.folder / STATE,
            {
                "data": self._name,
                "step": self.step,
                "tokens": self.tokens,
                "number": self.number,
                "place": self.place,
                "network": self._learnt(),
                "mean": self.mean,
                "optimizer": self._optimizer.state_dict(),
                "curve": self.curve,
            },
        )

    def _resume(self) -> None:
        path = self.folder / STATE
        state = load_state(path, self._device)
        if state is None:
            return
        if state.get("data") != self._name:
            raise InputError(
                f"{path} is from a training on other data. Write to another folder; to start over: --force"
            )
        self._put(self.network, state["network"])
        self.mean = state["mean"]
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.curve = state["step"], state["tokens"], state["curve"]
        self.number, self.place = state["number"], state["place"]

    def _learnt(self) -> dict[str, Tensor]:
        """The weights that are trained."""
        return {key: value for key, value in self.network.state_dict().items() if key not in self._frozen}

    def _put(self, network: Network, weights: dict[str, Tensor]) -> None:
        missing, unknown = network.load_state_dict(weights, strict=False)
        if unknown or not self._frozen.issuperset(missing):
            raise InputError(f"{self.folder / STATE} is from another network; to start over: --force")

    def _next(self) -> list[Example]:
        if self._batches is None:
            self._batches = batches(
                self._data.round(self.number), self.schedule.batch, f"{self.schedule.seed}/{self.number}"
            )
        found = self._batches[self.place]
        self.place += 1
        if self.place == len(self._batches):
            self.number, self.place, self._batches = self.number + 1, 0, None
        return found

    def _rate(self) -> float:
        warm = min(1.0, (self.step + 1) / self.schedule.warmup)
        left = 1 - self.tokens / self.schedule.tokens
        return self.schedule.rate * warm * min(1.0, left / self.schedule.cooldown)

    def _one(self, rows: Sequence[Example]) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate() * group["times"]
        batch = batch_of(rows, self._device)
        with torch.autocast(self._device, torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            loss = self._loss(self.network, batch)
        if not torch.isfinite(loss):
            told = f"the loss of step {self.step + 1} is {float(loss.detach())}"
            raise ModelError(f"{told}: lower --rate; to start over: --force")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.network.merge()
        self.step += 1
        self.tokens += int(batch.mask.sum())
        kept = min(self.schedule.average, self.step / (self.step + 10))
        learnt = self._learnt()
        torch._foreach_lerp_([self.mean[key] for key in learnt], list(learnt.values()), 1 - kept)
        return float(loss.detach())


def batches(every: Sequence[Example], tokens: int, seed: str) -> list[list[Example]]:
    """Return all examples, shuffled by `seed`, in batches of at most `tokens` tokens including padding."""
    order = list(every)
    random.Random(seed).shuffle(order)
    found: list[list[Example]] = []
    for at in range(0, len(order), SORTED_TOGETHER):
        batch: list[Example] = []
        longest = 0
        for example in sorted(order[at : at + SORTED_TOGETHER], key=_place):
            longest = max(longest, example.length)
            if batch and (len(batch) + 1) * longest > tokens:
                found.append(batch)
                batch, longest = [], example.length
            batch.append(example)
        found.append(batch)
    random.Random(seed + "/batches").shuffle(found)
    return found


def _place(example: Example) -> tuple[int, bytes]:
    """Sort key: by length, examples of one context together, so that one step learns their difference."""
    return example.length // NEARLY, example.ids[: example.second].tobytes()
