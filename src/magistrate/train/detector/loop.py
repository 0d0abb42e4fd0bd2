"""The training loop: the same bytes for a seed, and after a stop it goes on where it was."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from magistrate.errors import InputError, ModelError
from magistrate.train.detector.examples import UNKNOWN, Example, batches
from magistrate.train.detector.network import Network
from magistrate.train.detector.tensors import tensors

STATE = "training.pt"
SAVE_SECONDS = 60.0  # and after the first step of a sitting
Look = Callable[[Network], float]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast.

    A batch has `tokens` tokens with their padding; `rate` is the highest learning rate, reached after the
    share `warmup` of all steps, and falls to nothing. A wrong token counts `wrong_tokens` times, and all
    tokens of an example together `token_share` of the example itself. `looks` and `patience` are those of
    `Training`.
    """

    epochs: float = 1.0
    tokens: int = 6000
    rate: float = 2e-4
    warmup: float = 0.06
    decay: float = 0.01
    token_share: float = 0.5
    wrong_tokens: float = 2.0
    looks: int = 8
    patience: int = 3
    seed: int = 0


class Training:
    """A network on its way; its state is kept in `folder`, and one that is found there is gone on with.

    It computes on `device`, in 16-bit floats where that loses nothing. What does not learn is not kept: it is
    of the `base`, which is told by its hash. `look` says how good the network is by now, on data that it does
    not learn from: it is asked `looks` times, the best weights are kept, and after `patience` looks without a
    better one the training ends.
    """

    def __init__(
        self,
        network: Network,
        every: Sequence[Example],
        schedule: Schedule,
        folder: Path,
        *,
        device: str = "cpu",
        base: str = "",
        look: Look | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.network, self.schedule, self.folder, self.clock = network.to(device), schedule, folder, clock
        self._device, self._base, self._look = device, base, look
        self._every, self._digest = every, _digest(every)
        self._frozen = {name for name, value in network.named_parameters() if not value.requires_grad}
        self._batches: list[list[Example]] = []
        self._epoch = -1
        whole = math.ceil(schedule.epochs)
        counts = [len(batches(every, schedule.tokens, self._seed(epoch))) for epoch in range(whole)]
        self._starts = [sum(counts[:epoch]) for epoch in range(whole)]
        self.steps = max(1, int(sum(counts) * schedule.epochs / whole))
        decayed = [value for value in network.parameters() if value.requires_grad and value.dim() > 1]
        others = [value for value in network.parameters() if value.requires_grad and value.dim() < 2]
        groups = [
            {"params": decayed, "weight_decay": schedule.decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=schedule.rate)
        self.step = 0
        self.losses: list[float] = []
        self.seen: list[float] = []
        self._best: dict[str, Tensor] | None = None
        self._resume()

    @property
    def done(self) -> bool:
        """Whether there is no more to learn: all steps are made, or the last looks saw nothing better."""
        since = len(self.seen) - 1 - self.seen.index(max(self.seen)) if self.seen else 0
        return self.step >= self.steps or since >= self.schedule.patience

    def run(
        self, seconds: float | None = None, tell: Callable[[int, int, float], None] | None = None
    ) -> bool:
        """Train; True once it is done, and the network has its best weights then."""
        began = self.clock()
        saved = -math.inf
        while not self.done:
            self.network.train()
            self.losses.append(self._one(self._batch(self.step)))
            self.step += 1
            self._keep_the_best()
            now = self.clock()
            if tell is not None:
                tell(self.step, self.steps, sum(self.losses[-50:]) / len(self.losses[-50:]))
            if now - saved > SAVE_SECONDS:
                self.save()
                saved = now
            if seconds is not None and now - began > seconds:
                break
        self.save()
        if self.done and self._best is not None:
            self._put(self._best)
        return self.done

    def _keep_the_best(self) -> None:
        if self._look is None or self.step * self.schedule.looks // self.steps <= len(self.seen):
            return
        self.network.eval()
        self.seen.append(self._look(self.network))
        if self.seen[-1] == max(self.seen):
            self._best = {name: value.detach().clone() for name, value in self._learnt().items()}

    def save(self) -> None:
        """Keep what is needed to go on, all or nothing."""
        state = {
            "schedule": asdict(self.schedule),
            "examples": self._digest,
            "step": self.step,
            "base": self._base,
            "network": self._learnt(),
            "optimizer": self._optimizer.state_dict(),
            "losses": self.losses,
            "seen": self.seen,
            "best": self._best,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / (STATE + ".part")
        torch.save(state, part)
        part.replace(self.folder / STATE)

    def _resume(self) -> None:
        path = self.folder / STATE
        if not path.is_file():
            return
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location=self._device)
            kept = [state["schedule"], state["examples"], state.get("base", self._base)]
        except Exception as error:  # whatever the library stumbles over
            told = " ".join(str(error).split())[:200]
            raise ModelError(f"{path} cannot be read ({told}); to begin anew: --force") from error
        if kept != [asdict(self.schedule), self._digest, self._base]:
            raise InputError(
                f"{path} is of another training: other data, another base or another schedule "
                f"({state['schedule']}). Write to another folder; to begin anew: --force"
            )
        self._put(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses, self.seen = state["step"], state["losses"], state["seen"]
        self._best = state["best"]

    def _learnt(self) -> dict[str, Tensor]:
        """The weights, but for those that stay as they are."""
        return {name: value for name, value in self.network.state_dict().items() if name not in self._frozen}

    def _put(self, weights: dict[str, Tensor]) -> None:
        missing, unknown = self.network.load_state_dict(weights, strict=False)
        if unknown or not self._frozen.issuperset(missing):
            raise InputError(f"{self.folder / STATE} is of another network; to begin anew: --force")

    def _seed(self, epoch: int) -> str:
        return f"{self.schedule.seed}/{epoch}"

    def _batch(self, step: int) -> list[Example]:
        epoch = max(at for at, start in enumerate(self._starts) if start <= step)
        if epoch != self._epoch:
            self._epoch = epoch
            self._batches = batches(self._every, self.schedule.tokens, self._seed(epoch))
        return self._batches[step - self._starts[epoch]]

    def _rate(self) -> float:
        done, warm = self.step / self.steps, self.schedule.warmup
        return self.schedule.rate * (done / warm if done < warm else (1 - done) / (1 - warm))

    def _one(self, batch: Sequence[Example]) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        loss = self._loss(batch)
        if not torch.isfinite(loss):
            told = f"the loss of step {self.step + 1} is {float(loss.detach())}"
            raise ModelError(f"{told}: lower --rate; to begin anew: --force")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _loss(self, batch: Sequence[Example]) -> Tensor:
        read = tensors(batch, self._device)
        with torch.autocast(self._device, torch.bfloat16):
            tokens, whole = self.network(
                read.ids, read.types, read.segments, read.positions, read.labels.shape[1]
            )
        of_outputs = binary_cross_entropy_with_logits(whole, read.labels, reduction="none") * read.weights
        loss = of_outputs.sum() / read.weights.sum()
        known = read.truth != UNKNOWN
        if not known.any():
            return loss
        wanted = read.truth.clamp(min=0).float()
        each = binary_cross_entropy_with_logits(tokens, wanted, reduction="none")
        each = each * (1 + (self.schedule.wrong_tokens - 1) * wanted) * read.shares
        return loss + self.schedule.token_share * each.sum() / read.shares.sum()


def _digest(every: Sequence[Example]) -> str:
    """Of all that is learnt from, in its order."""
    found = hashlib.sha256()
    for each in every:
        found.update(repr(each).encode())
    return found.hexdigest()
