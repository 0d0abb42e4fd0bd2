"""The training loop of a judge: low-rank updates of a model's matrices, with the loss on the answers alone.

What all prompts begin with, a judge's instructions, is computed once per update, and no gradient goes through
it: the tokens after it learn to read it as it is.

All randomness depends on the seed and the number of updates made, so an interrupted training continues as if
it had not been interrupted.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from magistrate.errors import ModelError, SpecError
from magistrate.training.checkpoint import claimed, load_state, save_state
from magistrate.training.judge.examples import Example, Examples
from magistrate.training.judge.trees import Laid, after, batches, begun, laid

STATE = "state.pt"
BETTER = 1e-4  # nats by which the held-out loss must fall to count as an improvement
SAVE_SECONDS = 60.0
TOGETHER = 16  # most examples of one context in an update
SHORT = 512  # tokens of a row up to which PyTorch's eager attention is faster on CPUs

Tell = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a training.

    `rank` and `alpha` are those of the low-rank updates, whose scale is alpha / rank. `rate` is the highest
    learning rate, reached after the share `warmup` of all updates, and falling to 0. An update uses about
    `batch` examples, with those of one context together, and computes at most `together` tokens at once.
    `test` is the share of contexts held out. Their loss is measured after each share `every` of an epoch, and
    training ends after `patience` measurements without improvement. An example may have `most` tokens.
    `checkpointing` computes activations twice instead of keeping them, to save memory; the instructions are
    then computed with each context, and learnt through. On devices with 16-bit
    units these are used unless `precise` is set; trained weights have 32 bits.
    """

    rank: int = 16
    alpha: int = 32
    epochs: float = 3.0
    rate: float = 2e-4
    warmup: float = 0.05
    batch: int = 16
    together: int = 1024
    test: float = 0.1
    every: float = 0.25
    patience: int = 4
    most: int = 2048
    seed: int = 0
    checkpointing: bool = False
    precise: bool = False

    @property
    def pins(self) -> dict[str, Any]:
        """The settings that must be the same to resume: all but the one that only affects memory."""
        return {name: value for name, value in asdict(self).items() if name != "together"}

    def __post_init__(self) -> None:
        whole = (self.rank, self.alpha, self.batch, self.together, self.patience, self.most)
        if min(whole) < 1 or min(self.epochs, self.rate, self.every) <= 0 or self.seed < 0:
            raise SpecError(f"the numbers of a training must be above 0, got {asdict(self)}")
        if not 0 < self.test <= 0.5 or not 0 <= self.warmup < 1:
            raise SpecError(
                f"test must be in (0, .5] and warmup in [0, 1); got {self.test} and {self.warmup}"
            )


@dataclass(frozen=True, slots=True)
class Measured:
    """The held-out results: mean loss per answer token in nats, and the predicted labels.

    `said` has, for each example whose labels are distinguished by a token: its group, whether hallucinated is
    right, and whether hallucinated was predicted.
    """

    loss: float
    said: tuple[tuple[str, bool, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress: `update` of `updates`, the loss of the last one, and the held-out loss if measured."""

    update: int
    updates: int
    loss: float | None
    held_out: float | None


class Training:
    """A model being trained. Its state in `folder` is complete at any moment.

    `pins` identifies base, data and settings. Training resumes only from a state with the same pins.
    """

    def __init__(
        self,
        model: Any,
        examples: Examples,
        settings: Settings,
        folder: Path,
        pins: str,
        *,
        clock: Callable[[], float],
        device: str = "cpu",
    ) -> None:
        import torch

        from magistrate.training.low_rank import attach, dtype_of

        self._torch, self._settings, self._folder, self._pins = torch, settings, folder, pins
        self._examples, self._clock, self._device = examples, clock, device
        torch.manual_seed(settings.seed)
        if settings.checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
        model.to(device)
        self._dtype = torch.float32 if settings.precise else dtype_of(device)
        self.layers = attach(model, settings.rank, settings.alpha, self._dtype)
        self.model = model
        self._learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimizer = torch.optim.AdamW(self._learnt.values(), lr=settings.rate, weight_decay=0.0)
        self._groups = _groups(examples.train)
        self._epoch, self._steps = -1, list[list[Example]]()
        self._an_epoch = len(self._updates(0))
        self.updates = max(1, math.ceil(settings.epochs * self._an_epoch))
        self._every = max(1, round(settings.every * self._an_epoch))
        self.update, self._stale = 0, 0
        self.history: list[list[float]] = []
        self._best: dict[str, Any] = {}
        self._resume()

    @property
    def best_update(self) -> int:
        """The number of updates after which the held-out loss was lowest."""
        return int(self._best["update"])

    @property
    def best_loss(self) -> float:
        """The lowest held-out loss, in nats."""
        return float(self._best["loss"])

    @property
    def stopped(self) -> bool:
        """Whether training ended early because the held-out loss no longer fell."""
        return self._stale >= self._settings.patience

    def run(self, seconds: float | None = None, tell: Tell | None = None) -> bool:
        """Train to the end and return True, or stop after `seconds` and return False, to continue later.

        Raises `InputError` if another process trains in the same folder.
        """
        with claimed(self._folder):
            return self._run(seconds, tell)

    def _run(self, seconds: float | None, tell: Tell | None) -> bool:
        began = saved = self._clock()
        if not self._best:
            self._measure(None, tell)
        while self.update < self.updates and not self.stopped:
            loss = self._step()
            self.update += 1
            measured = self.update % self._every == 0 or self.update == self.updates
            if measured:
                self._measure(loss, tell)
            elif tell is not None:
                tell(Progress(self.update, self.updates, loss, None))
            now = self._clock()
            over = seconds is not None and now - began >= seconds
            if measured or over or now - saved >= SAVE_SECONDS:
                self.save()
                saved = now
            if over and self.update < self.updates and not self.stopped:
                return False
        self._put(self._best["learnt"])
        return True

    def measure(self, *, base: bool = False) -> Measured:
        """Measure the held-out examples, with the model as it is, or with its `base`."""
        torch, total, tokens = self._torch, 0.0, 0
        said: list[tuple[str, bool, bool]] = []
        self._merge(0.0 if base else 1.0)
        self.model.eval()
        with torch.no_grad():
            for found, logits in self._passes(self._examples.test):
                total += float(self._loss(logits, found))
                tokens += len(found.answers)
                at = 0
                for each in found.examples:
                    if each.rival is not None and each.wrong is not None:
                        place, other = each.rival
                        right = bool(logits[at + place, each.answer[place]] >= logits[at + place, other])
                        said.append((each.group, each.wrong, each.wrong == right))
                    at += len(each.answer)
        return Measured(total / tokens, tuple(said))

    def save(self) -> None:
        """Save the state, atomically."""
        save_state(
            self._folder / STATE,
            {
                "pins": self._pins,
                "update": self.update,
                "stale": self._stale,
                "history": self.history,
                "best": self._best,
                "learnt": self._taken(),
                "optimizer": self._optimizer.state_dict(),
            },
        )

    # ------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        path = self._folder / STATE
        state = load_state(path, self._device)
        if state is None:
            return
        if state.get("pins") != self._pins:
            raise SpecError(
                f"{path} is from a training with another base, other data or other settings; choose another "
                "folder, or start over: --force"
            )
        self.update, self._stale = state["update"], state["stale"]
        self.history, self._best = state["history"], state["best"]
        self._put(state["learnt"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _step(self) -> float:
        """Make one update and return its loss."""
        torch = self._torch
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        chosen = self._chosen()
        tokens = sum(len(each.answer) for each in chosen)
        self._merge()
        self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for found, logits in self._passes(chosen):
            loss = self._loss(logits, found) / tokens
            loss.backward()
            total += float(loss.detach())
        if not math.isfinite(total):
            raise ModelError(f"the loss of update {self.update + 1} is {total}; try a lower --rate")
        torch.nn.utils.clip_grad_norm_(self._learnt.values(), 1.0)
        self._optimizer.step()
        return total

    def _rate(self) -> float:
        """Return the learning rate: rising during warm-up, then falling linearly to 0."""
        warm = max(1, round(self._settings.warmup * self.updates))
        if self.update < warm:
            return self._settings.rate * (self.update + 1) / warm
        return self._settings.rate * (self.updates - self.update) / max(1, self.updates - warm)

    def _chosen(self) -> list[Example]:
        """Return the examples of the next update."""
        epoch, at = divmod(self.update, self._an_epoch)
        if epoch != self._epoch:
            self._epoch, self._steps = epoch, self._updates(epoch)
        return self._steps[at % len(self._steps)]

    def _updates(self, epoch: int) -> list[list[Example]]:
        """Shuffle the contexts for this epoch and split them into updates, keeping each context together."""
        order = list(self._groups)
        random.Random(f"{self._settings.seed} {epoch}").shuffle(order)
        found: list[list[Example]] = [[]]
        for group in order:
            if len(found[-1]) >= self._settings.batch:
                found.append([])
            found[-1] += group
        return found

    def _merge(self, share: float = 1.0) -> None:
        for layer in self.layers.values():
            layer.merge(share=share)

    def _passes(self, examples: Sequence[Example]) -> Iterator[tuple[Laid, Any]]:
        """Yield batches with their logits, float32 `[answer tokens, vocabulary]`."""
        shared = () if self._settings.checkpointing else begun(examples)
        known = self._known(shared)
        for some in batches(after(examples, len(shared)), self._settings.together):
            found = laid(some, self._device, self._dtype, len(shared))
            yield found, self._logits(found, known)

    def _known(self, tokens: Sequence[int]) -> list[tuple[Any, Any]]:
        """Return each layer's keys and values `[1, heads, tokens, size]` of what all prompts begin with."""
        if not tokens:
            return []
        self.model.set_attn_implementation("sdpa")
        with self._torch.no_grad():
            ids = self._torch.tensor([tokens], device=self._device)
            cache = self.model.model(input_ids=ids, use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _logits(self, found: Laid, known: Sequence[tuple[Any, Any]]) -> Any:
        from transformers import DynamicCache

        rows, length = found.ids.shape
        short = self._device == "cpu" and length <= SHORT
        self.model.set_attn_implementation("eager" if short else "sdpa")
        told = {}
        if known:
            read = [tuple(each.expand(rows, -1, -1, -1) for each in pair) for pair in known]
            told = {"past_key_values": DynamicCache(read), "use_cache": True}
        hidden = self.model.model(
            input_ids=found.ids, position_ids=found.places, attention_mask=found.mask, **told
        ).last_hidden_state
        return self.model.lm_head(hidden[found.rows, found.columns]).float()

    def _loss(self, logits: Any, found: Laid) -> Any:
        return self._torch.nn.functional.cross_entropy(logits, found.answers, reduction="sum")

    def _measure(self, loss: float | None, tell: Tell | None) -> None:
        found = self.measure().loss
        self.history.append([self.update, found])
        if not self._best or found < self._best["loss"] - BETTER:
            self._best = {"update": self.update, "loss": found, "learnt": self._taken()}
            self._stale = 0
        else:
            self._stale += 1
        if tell is not None:
            tell(Progress(self.update, self.updates, loss, found))

    def _taken(self) -> dict[str, Any]:
        return {name: value.detach().cpu().clone() for name, value in self._learnt.items()}

    def _put(self, values: dict[str, Any]) -> None:
        with self._torch.no_grad():
            for name, value in values.items():
                self._learnt[name].copy_(value)


def pinned(**parts: Any) -> str:
    """Return the parts that a state must match, as one text."""
    return json.dumps(parts, sort_keys=True)


def _groups(examples: Sequence[Example]) -> list[list[Example]]:
    """Return the examples of each context, at most `TOGETHER` per group."""
    found: dict[str, list[Example]] = {}
    for each in examples:
        found.setdefault(each.group, []).append(each)
    return [every[at : at + TOGETHER] for every in found.values() for at in range(0, len(every), TOGETHER)]
