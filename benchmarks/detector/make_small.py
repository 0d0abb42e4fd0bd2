"""Makes the small detector of the large one: what matters least is removed, the rest learns its answers.

Run: .venv-train/bin/python -m benchmarks.detector.make_small DATA [--to FOLDER] [--start FOLDER]

DATA is the folder that `make_large.py` reads. There are four steps; what is done is kept in --work
(build/detector/small), so that the same command resumes after a stop. Training takes ten minutes on one H100
and one and a half days on two cores, where 5 million tokens, in batches of 3,072 at a rate of .0002, take
three hours and give most of it. Afterwards run `measure.py`.

1. The vocabulary is reduced to the pieces of words that the training data use most; other words are spelled
   in more pieces.
2. The importance of every attention head and every neuron is measured: the mean square of the gradient of
   the loss by a factor on its output (the diagonal of the Fisher information, as in Kwon et al. 2022,
   arXiv:2204.09656).
3. Those of the least importance per weight are removed, until `--weights` million weights remain in the
   layers. All layers and the width of the hidden states stay, so the student starts close to its teacher.
4. The student is trained on the data of the large detector, long examples too, with its matrices rounded to
   4 bits in every step: to have the teacher's probabilities and its hidden states after every layer, and on
   the labels. For the last tokens it is left to itself which hidden states give the probabilities.

With --start the student is an earlier small detector, with its pieces of words, heads and neurons: the first
three steps are left out, and it learns from the labels of `stages/small.yaml`, two to three times as fast as
from a teacher too. So it goes on learning when there are more data. With --teacher as well, the folder of a
large detector, it learns as in step 4. The shipped one was made by
`--start FOLDER --tokens 2.5 --batch 3072 --rate 2e-4`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, kl_div

from benchmarks.detector.make_large import HERE, sources
from benchmarks.detector.twins import HELD
from benchmarks.detector.twins import samples as twins
from magistrate.detectors.detector import Detector, detector
from magistrate.detectors.encoders import encoder, fetched
from magistrate.detectors.folder import BOTH, SHIPPED, TOKENIZER, UPDATE, WEIGHTS, digest_of
from magistrate.detectors.large import LARGE, folder_of_large, pull
from magistrate.detectors.weights import (
    BLOCK,
    MPNET_EPSILON,
    RELATIVE,
    mpnet_weights,
    read_weights,
    updated,
)
from magistrate.training.detector.bases import Base
from magistrate.training.detector.bases import base as base_of
from magistrate.training.detector.encoder import Encoder, rounded
from magistrate.training.detector.examples import Example
from magistrate.training.detector.loop import Rounds, Schedule, Training, batches
from magistrate.training.detector.network import (
    Batch,
    Network,
    batch_of,
    from_base,
    loss_of,
    sentence_logits,
)
from magistrate.training.detector.recipe import Pool, digest, pool, read_recipe
from magistrate.training.detector.training import recipe_of, write
from magistrate.training.low_rank import dtype_of
from magistrate.training.synthetic import Lexicon

TAUGHT, ON_LABELS = (HERE / "stages" / f"{name}.yaml" for name in ("large-elsewhere", "small"))
WORDS = "encoder.embeddings.word_embeddings.weight"
LAYER = "encoder.encoder.layer"
NAME = "small-5"
PIECES = 17_800  # of the vocabulary
LATIN = 0x250  # letters and signs below are kept whether the data have them or not
LAST = 0.3  # the share of the tokens that are read without the hidden states
HARD = 0.3  # the weight in the loss of the labels, and of the teacher's probabilities of words
NEW = 0.8  # the share of the weights after a training on labels alone, in their mean with those before
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXAMINED = 512  # tokens of a batch that the importance is measured on
Kept = list[tuple[list[int], list[int]]]  # numbers of the heads and neurons of each layer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--to", type=Path, default=SHIPPED)
    parser.add_argument("--work", type=Path, default=Path("build/detector/small"))
    parser.add_argument("--start", type=Path, help="a small detector to go on with, instead of pruning")
    parser.add_argument("--teacher", type=Path, help="the folder of a large detector")
    parser.add_argument("--tokens", type=float, default=85, help="millions, in all")
    parser.add_argument("--weights", type=float, default=31.7, help="millions, of the layers")
    parser.add_argument("--examined", type=int, default=400, help="batches to measure the importance on")
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--batch", type=int, default=32_768)
    parser.add_argument("--seconds", type=float, help="stop after this time; the same command goes on")
    parser.add_argument("--wordnet", type=Path)
    told = parser.parse_args()
    data = sources(told.data, told.work / "data")
    large = detector(told.teacher) if told.teacher else None
    recipe = read_recipe(ON_LABELS if told.start and large is None else TAUGHT)
    recipe = recipe.model_copy(update={"longest": recipe.window})  # long examples too
    read = partial(pool, recipe, data, lexicon=Lexicon.read(told.wordnet))
    if told.start is not None:
        begun = earlier(told.start, large, told.work)
    else:
        if large is None:
            pull()
        begun = pruned(told, large or detector(folder_of_large()), read)
    rounds = read(tokenizer=begun.base.folder / TOKENIZER, cache=told.work / "examples")
    schedule = Schedule(
        tokens=int(told.tokens * 1e6), batch=told.batch, rate=told.rate, warmup=200, cooldown=0.01,
        decay=0.0, average=0.997, memory=0.98,
    )  # fmt: skip
    trainings = trained(begun, rounds, schedule, told.work, told.seconds)
    if not trainings:
        print("not done yet; the same command goes on")
        return
    read_of = {
        "mixture": recipe.model_dump(mode="json"),
        "examples": {f"{name}, {label}": len(each) for (name, label), each in sorted(rounds.of.items())},
        "digests": {source.name: digest(data, source, recipe) for source in recipe.sources},
    }
    names = [source.name for source in recipe.sources]
    how = {**recipe_of(begun.base, trainings[0], read_of), **begun.recipe}
    for each in trainings[1:]:
        base = {"name": "the network of its training before", "recipe": how}
        how = {**recipe_of(begun.base, each, read_of), "base": base}
    about = {
        "name": NAME,
        "window": recipe.window,
        "readings": BOTH,
        "trained_on": tuple(dict.fromkeys((*begun.base.trained_on, *names))),
        "recipe": how,
    }
    student = trainings[-1].averaged().cpu()
    positions = student.encoder.embeddings["position_embeddings"]
    positions.weight = nn.Parameter(
        positions.weight[: recipe.window], requires_grad=False
    )  # no window is longer
    write(student, begun.base, told.to, about, twins(HELD))
    print("written:", told.to)


@dataclass(frozen=True)
class Begun:
    """A student before its training, what it was made from, and the folder of its teacher, if it has one.

    `name` identifies both, `recipe` is what the student's own recipe says besides.
    """

    student: Network
    base: Base
    teacher: Path | None
    name: str
    recipe: Mapping[str, object]


def pruned(told: argparse.Namespace, large: Detector, read: Callable[..., Pool]) -> Begun:
    """Return the large detector without what matters least: pieces of words, heads and neurons."""
    base = encoder_of(large)
    whole = told.work / f"teacher-{PIECES}"
    if not (whole / TOKENIZER).is_file():
        counts = counted(read(tokenizer=base / TOKENIZER, cache=told.work / "counted"))
        write_teacher(base, large, fewer_pieces(base / TOKENIZER, counts, PIECES), whole)
    teacher = from_base(whole).eval()
    chosen = told.work / f"kept-{PIECES}-{told.weights:g}.json"
    if not chosen.is_file():
        rounds = read(tokenizer=whole / TOKENIZER, cache=told.work / "examples")
        examined = batches(rounds.round(0), EXAMINED, "importance")[: told.examined]
        size = teacher.encoder.width // teacher.encoder.heads
        found = kept(importance(teacher, examined), told.weights * 1e6, teacher.encoder.width, size)
        chosen.write_text(json.dumps(found), encoding="utf-8")
    places = json.loads(chosen.read_text(encoding="utf-8"))
    remains = [[len(heads), len(neurons)] for heads, neurons in places]
    of_large = Base(whole, LARGE, large.manifest.files[WEIGHTS], large.manifest.trained_on, large)
    recipe = {"pruned": {"pieces": PIECES, "kept": remains}}
    name = f"{of_large.sha256} {digest_of(whole / TOKENIZER)} {digest_of(chosen)}"
    return Begun(cut(teacher, places), of_large, whole, name, recipe)


def earlier(folder: Path, large: Detector | None, work: Path) -> Begun:
    """Return the small detector in a folder, to go on with; a large one gets its pieces of words."""
    begun = base_of(str(folder), work / "start")
    if large is None:
        mean = {"of": ["before this training", "after it"], "weights": [round(1 - NEW, 3), NEW]}
        return Begun(from_base(begun.folder), begun, None, begun.sha256, {"mean": mean})
    whole = work / f"teacher-of-{begun.sha256[:12]}"
    write_teacher(encoder_of(large), large, json.loads((begun.folder / TOKENIZER).read_text("utf-8")), whole)
    manifest = large.manifest
    teacher = {"name": manifest.name, "sha256": manifest.files[WEIGHTS], "recipe": manifest.recipe}
    known = replace(begun, trained_on=(*begun.trained_on, *manifest.trained_on))
    name = f"{manifest.files[WEIGHTS]} {digest_of(whole / TOKENIZER)} {begun.sha256}"
    return Begun(from_base(begun.folder), known, whole, name, {"teacher": teacher})


def encoder_of(large: Detector) -> Path:
    """Return the folder of the encoder that the large detector is an update of."""
    known = encoder(large.manifest.update_of)
    assert known, "the large detector has an encoder of ours"
    return fetched(known)


def show(training: Training, loss: float) -> None:
    """Print the progress now and then."""
    if training.step % 50 == 0:
        print(f"step {training.step:,}, {training.tokens:,} tokens, loss {loss:.4f}", flush=True)


# --- the vocabulary -----------------------------------------------------------------------------------


def counted(rounds: Pool) -> np.ndarray:
    """Return how often each piece occurs in all examples."""
    found = np.zeros(1 << 16, np.int64)
    for some in rounds.of.values():
        for example in some:
            found += np.bincount(example.ids, minlength=len(found))
    return found


def fewer_pieces(tokenizer: Path, counts: np.ndarray, pieces: int) -> dict[str, Any]:
    """Return a tokenizer with the `pieces` that occur most.

    All pieces of one Latin letter or sign remain, so every English word can be spelled.
    """
    told: dict[str, Any] = json.loads(tokenizer.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = told["model"]["vocab"]
    added = {each["content"] for each in told["added_tokens"]}
    lead = told["model"].get("continuing_subword_prefix") or ""
    letters = {
        word for word in vocabulary if len(letter := word.removeprefix(lead)) == 1 and ord(letter) < LATIN
    }
    order = sorted(vocabulary, key=lambda word: (-counts[vocabulary[word]], vocabulary[word]))
    most = [word for word in order if word not in added | letters][: max(0, pieces - len(added | letters))]
    rows = sorted(vocabulary[word] for word in {*added, *letters, *most})
    place = {row: number for number, row in enumerate(rows)}
    told["model"]["vocab"] = {word: place[row] for word, row in vocabulary.items() if row in place}
    for each in told["added_tokens"]:
        each["id"] = place[each["id"]]
    told["post_processor"] = replaced_numbers(told["post_processor"], place)
    return told


def write_teacher(base: Path, large: Detector, tokenizer: Mapping[str, Any], folder: Path) -> None:
    """Write the large detector as a base for training, with the pieces of words of a smaller tokenizer."""
    told = json.loads((base / TOKENIZER).read_text(encoding="utf-8"))
    pieces = tokenizer["model"]["vocab"]
    rows = [told["model"]["vocab"][word] for word in sorted(pieces, key=pieces.__getitem__)]
    weights = updated(mpnet_weights(read_weights(base / WEIGHTS)), large.folder / UPDATE)
    weights[WORDS] = weights[WORDS][rows]
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(each) for name, each in weights.items()}, folder / WEIGHTS)
    heads = large.manifest.heads
    config = {"model_type": "mpnet", "layer_norm_eps": MPNET_EPSILON, "num_attention_heads": heads}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / TOKENIZER).write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def replaced_numbers(processor: Any, place: Mapping[int, int]) -> Any:
    """Return a tokenizer's post-processor with the new numbers of its marks: pairs of a mark and a number."""
    if isinstance(processor, dict):
        return {key: replaced_numbers(value, place) for key, value in processor.items()}
    if isinstance(processor, list) and len(processor) == 2 and isinstance(processor[1], int):
        return [processor[0], place[processor[1]]]
    return processor


# --- what is removed ----------------------------------------------------------------------------------


def importance(network: Network, examined: Sequence[list[Example]]) -> list[tuple[Tensor, Tensor]]:
    """Return the mean squared gradient of the loss by each head and neuron of every layer."""
    size = network.encoder.width // network.encoder.heads
    masks, hooks = [], []
    for layer in network.encoder.encoder["layer"]:
        heads = torch.ones(layer["attention"]["output"]["dense"].in_features // size, requires_grad=True)
        neurons = torch.ones(layer["output"]["dense"].in_features, requires_grad=True)
        masks.append((heads, neurons))
        hooks.append(layer["attention"]["output"]["dense"].register_forward_pre_hook(times(heads, size)))
        hooks.append(layer["output"]["dense"].register_forward_pre_hook(times(neurons, 1)))
    network.requires_grad_(False)
    found = [(torch.zeros_like(heads), torch.zeros_like(neurons)) for heads, neurons in masks]
    for rows in examined:
        batch = batch_of(rows)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype_of("cpu") == torch.bfloat16):
            logits = network(batch.ids, batch.types, batch.mask)
        loss_of(logits, batch).backward()
        for mine, theirs in zip(found, masks, strict=True):
            for total, mask in zip(mine, theirs, strict=True):
                total += mask.grad**2 / len(examined)
                mask.grad = None
    for hook in hooks:
        hook.remove()
    return found


def times(mask: Tensor, size: int) -> Any:
    """Return a hook that multiplies what a layer is given, `size` numbers by each of `mask`."""
    return lambda _, given: (given[0] * mask.repeat_interleave(size),)


def kept(importance: Sequence[tuple[Tensor, Tensor]], weights: float, width: int, size: int) -> Kept:
    """Return which heads and neurons remain, the most important per weight first, up to `weights` weights.

    `width` is that of the hidden states, `size` that of a head. Every layer keeps at least a head, and whole
    blocks of neurons.
    """
    costs = 4 * width * size, 2 * width
    every = sorted(
        (
            (float(value) / costs[kind], layer, kind)
            for layer, parts in enumerate(importance)
            for kind, values in enumerate(parts)
            for value in values
        ),
        reverse=True,
    )
    counts = [[0, 0] for _ in importance]
    left = weights
    for _, layer, kind in every:
        if costs[kind] <= left:
            counts[layer][kind] += 1
            left -= costs[kind]
    found = []
    for (heads, neurons), (n_heads, n_neurons) in zip(importance, counts, strict=True):
        blocks = max(1, round(n_neurons / BLOCK))
        found.append((most(heads, max(1, n_heads)), most(neurons, blocks * BLOCK)))
    return found


def most(values: Tensor, count: int) -> list[int]:
    """Return the places of the largest values, in order."""
    return sorted(torch.argsort(values, descending=True)[:count].tolist())


@torch.no_grad()
def cut(network: Network, kept: Kept) -> Network:
    """Return a network with the heads and neurons that remain, and a table of near positions per layer.

    Its layers compute with 4 bits; its tables of pieces and positions have them for good.
    """
    weights = dict(network.state_dict())
    near = weights.pop(f"encoder.encoder.{RELATIVE}.weight")
    size = network.encoder.width // network.encoder.heads
    for at, (heads, neurons) in enumerate(kept):
        rows = torch.cat([torch.arange(head * size, (head + 1) * size) for head in heads])
        own = f"{LAYER}.{at}.attention.self"
        for part in ("query", "key", "value"):
            for name in (f"{own}.{part}.weight", f"{own}.{part}.bias"):
                weights[name] = weights[name][rows]
        weights[f"{own}.{RELATIVE}.weight"] = near[:, heads]
        for name, places, axis in (
            ("attention.output.dense.weight", rows, 1),
            ("intermediate.dense.weight", torch.tensor(neurons), 0),
            ("intermediate.dense.bias", torch.tensor(neurons), 0),
            ("output.dense.weight", torch.tensor(neurons), 1),
        ):
            weights[f"{LAYER}.{at}.{name}"] = weights[f"{LAYER}.{at}.{name}"].index_select(axis, places)
    parts = {
        name.removeprefix("encoder."): each for name, each in weights.items() if name.startswith("encoder.")
    }
    student = Network(Encoder(parts, network.encoder.heads, bits=4), by_updates=False)
    student.load_state_dict(weights)
    for table in ("word_embeddings", "position_embeddings"):
        held = student.encoder.embeddings[table].weight
        held.copy_(rounded(held))
    return student


# --- the training -------------------------------------------------------------------------------------


def trained(
    begun: Begun, rounds: Rounds, schedule: Schedule, work: Path, seconds: float | None = None
) -> tuple[Training, ...]:
    """Train the student: by its teacher in two parts, else on the labels in one.

    Labels alone cost something elsewhere, so its weights are then a mean with those before.
    `schedule.tokens` are those of all parts. Returns the parts, or nothing if `seconds` were over before the
    end of one.
    """
    student = begun.student
    if begun.teacher is None:
        before = {name: each.clone() for name, each in student.state_dict().items()}
        gently = replace(schedule, warmup=40, cooldown=0.5, average=0.99)
        only = Training(student, rounds, begun.name, gently, work / "labels", device=DEVICE)
        if not only.run(seconds, show):
            return ()
        only.mean = {name: torch.lerp(before[name].to(DEVICE), each, NEW) for name, each in only.mean.items()}
        return (only,)
    teacher = from_base(begun.teacher).eval()
    like = replace(schedule, tokens=int((1 - LAST) * schedule.tokens))
    answers = replace(schedule, tokens=int(LAST * schedule.tokens), cooldown=1.0, seed=1)
    loss = Taught(teacher, 1.0, DEVICE)
    first = Training(student, rounds, begun.name, like, work / "like", loss=loss, device=DEVICE)
    if not first.run(seconds, show):
        return ()
    student.load_state_dict(first.mean, strict=False)
    name, loss = f"{begun.name} {first.tokens}", Taught(teacher, 0.0, DEVICE)
    last = Training(student, rounds, name, answers, work / "answers", loss=loss, device=DEVICE)
    return (first, last) if last.run(seconds, show) else ()


@dataclass(frozen=True)
class Taught:
    """The loss of a student: how far it is from its teacher, and from the labels.

    The sum of the divergence of each sentence's probabilities from the teacher's, `like` times the mean
    squared distance of hidden states as a share of their variance, and `HARD` times the losses by the
    teacher's probabilities of words and by the labels.
    """

    teacher: Network
    like: float
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.teacher.to(self.device)
        for module in self.teacher.modules():
            if isinstance(module, nn.Linear):  # so that they are not converted in every step
                module.to(dtype_of(self.device))

    def __call__(self, student: Network, batch: Batch) -> Tensor:
        given = batch.ids, batch.types, batch.mask
        with torch.no_grad():
            wanted = self.teacher.encoder.hidden(*given)
            taught = self.teacher.answers(wanted[-1]).float()
        hidden = student.encoder.hidden(*given)
        logits = student.answers(hidden[-1]).float()
        read = batch.mask.bool()
        distance = torch.stack(
            [
                ((mine.float() - theirs.float())[read] ** 2).mean() / theirs.float()[read].var()
                for mine, theirs in zip(hidden, wanted, strict=True)
            ]
        ).mean()
        shares, right = (torch.log_softmax(sentence_logits(each, batch), dim=-1) for each in (logits, taught))
        apart = kl_div(shares, right, log_target=True, reduction="none").sum(-1)
        of_output = torch.bincount(batch.owner, minlength=len(batch.ids)).float()
        divergence = (apart / of_output[batch.owner]).sum() / len(batch.ids)
        inside = batch.sentence >= 0
        words = binary_cross_entropy_with_logits(logits[..., 0][inside], taught[..., 0][inside].sigmoid())
        return divergence + self.like * distance + HARD * (words + loss_of(logits, batch))


if __name__ == "__main__":
    main()
