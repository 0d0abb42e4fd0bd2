"""The training loop of a detector: the same bytes for a seed; after a stop it resumes where it was."""

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
from magistrate.training.checkpoint import load_state, save_state
from magistrate.training.detector.examples import Example
from magistrate.training.detector.network import Network, batch_of, loss_of
from magistrate.training.low_rank import dtype_of

STATE = "training.pt"
SAVE_SECONDS = 60.0  # and after the first step of a sitting
SORTED_TOGETHER = 16_000  # examples that are sorted by length before they are cut into batches
NEARLY = 16  # tokens: lengths that differ by less count as one


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast.

    Training ends after `tokens` tokens. A batch has at most `batch` tokens with its padding. The learning
    rate rises to `rate` over `warmup` steps, stays, and falls to nothing over the last share `cooldown` of
    the tokens: so a training can be made longer afterwards. `average` is how much of the running mean of
    the weights stays after each step; the mean is what is judged with. `memory` is how much of the mean of
    squared gradients stays.
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


class Rounds(Protocol):
    """A source of examples: any number of rounds, each the same whenever it is asked for."""

    def round(self, number: int) -> list[Example]: ...


class Training:
    """A network being trained. Its state is kept in `folder`; training resumes from a state found there.

    `data` names what is learnt from: a state of other data is refused. Raises `InputError` for it, and
    `ModelError` where the loss is no number.
    """

    def __init__(
        self,
        network: Network,
        data: Rounds,
        name: str,
        schedule: Schedule,
        folder: Path,
        *,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.network: Network = network.to(device)
        self._dtype = dtype_of(device)
        self.schedule, self.folder, self.clock = schedule, folder, clock
        self._device, self._data, self._name = device, data, name
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
        """Whether all tokens were read."""
        return self.tokens >= self.schedule.tokens

    def run(
        self, seconds: float | None = None, tell: Callable[[Training, float], None] | None = None
    ) -> bool:
        """Train for at most `seconds`; True once it is done."""
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
        return self.done

    def averaged(self) -> Network:
        """The network with the running mean of its weights in place of the last ones."""
        self._put(self.network, self.mean)
        self.network.merge(torch.float32)
        return self.network

    def save(self) -> None:
        """Keep what is needed to go on, all or nothing."""
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
                f"{path} is of another training: it has learnt from other data. Write to another folder; "
                "to begin anew: --force"
            )
        self._put(self.network, state["network"])
        self.mean = state["mean"]
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.curve = state["step"], state["tokens"], state["curve"]
        self.number, self.place = state["number"], state["place"]

    def _learnt(self) -> dict[str, Tensor]:
        """The weights, but for those that stay as they are."""
        return {key: value for key, value in self.network.state_dict().items() if key not in self._frozen}

    def _put(self, network: Network, weights: dict[str, Tensor]) -> None:
        missing, unknown = network.load_state_dict(weights, strict=False)
        if unknown or not self._frozen.issuperset(missing):
            raise InputError(f"{self.folder / STATE} is of another network; to begin anew: --force")

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
            logits = self.network(batch.ids, batch.types, batch.mask)
        loss = loss_of(logits, batch)
        if not torch.isfinite(loss):
            told = f"the loss of step {self.step + 1} is {float(loss.detach())}"
            raise ModelError(f"{told}: lower --rate; to begin anew: --force")
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
    """All examples in an order that `seed` says, in batches of at most `tokens` tokens with their padding."""
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
    """By length, those of one context beside each other: what differs between them is learnt in a step."""
    return example.length // NEARLY, example.ids[: example.second].tobytes()
