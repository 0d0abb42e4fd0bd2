"""Training a detector: what is learnt, that a stop loses nothing, what the folder says."""

from __future__ import annotations

import gzip
import importlib
import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from onnxruntime import SessionOptions
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel

import magistrate
from benchmarks.detector import ablate, make_small
from benchmarks.detector.make_small import Taught
from benchmarks.quality.protocol import SETS
from magistrate.detectors import encoders
from magistrate.detectors import weights as weights_module
from magistrate.detectors.detector import _readings, detector, session_of
from magistrate.detectors.encoders import Encoder
from magistrate.detectors.folder import (
    BOTH,
    CARD,
    GRAPH,
    MANIFEST,
    TOKENIZER,
    UPDATE,
    WEIGHTS,
    digest_of,
    read_manifest,
)
from magistrate.detectors.large import write_merged
from magistrate.detectors.weights import (
    SMOOTH,
    float_weights,
    packed,
    read_weights,
    replaced,
    unpacked,
    write_weights,
)
from magistrate.detectors.windows import Reader
from magistrate.engines.models.updates import read_updates
from magistrate.errors import InputError, ModelError, SpecError
from magistrate.judges.folders import WORK
from magistrate.training.checkpoint import claimed
from magistrate.training.detector import encoder as training_encoder
from magistrate.training.detector import graph, training
from magistrate.training.detector.bases import base
from magistrate.training.detector.encoder import Encoder as NetworkEncoder
from magistrate.training.detector.encoder import rounded
from magistrate.training.detector.examples import (
    ABSENT,
    CONTRADICTED,
    SUPPORTED,
    UNKNOWN,
    WRONG,
    Example,
    examples,
)
from magistrate.training.detector.graph import write_graph
from magistrate.training.detector.loop import Schedule, Training
from magistrate.training.detector.network import (
    Batch,
    Network,
    batch_of,
    from_base,
    loss_of,
    sentence_logits,
    smoothing,
)
from magistrate.training.detector.recipe import Recipe, Source, pool
from magistrate.training.detector.training import (
    recipe_of,
    stages_of,
    train_on_labels,
    train_on_recipe,
    write,
)
from magistrate.training.synthetic import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Span
from terminal import Call
from tiny_detector import write_detector, write_tokenizer

COLOURS = ("red", "blue", "green", "white", "black", "grey")
THINGS = ("bridge", "house", "tower", "boat", "horse", "coat")
RECIPE = "window: 128\nexamples: 1000\nsources:\n  - {name: colours, share: 1}\n"
SCHEDULE = Schedule(tokens=60_000, batch=600, rate=5e-3, warmup=10, average=0.9)


def output_scores(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Log odds that each output is hallucinated: those of its worst sentence."""
    shares = torch.log_softmax(sentence_logits(logits.float(), batch), dim=-1)
    odds = torch.logsumexp(shares[:, 1:], dim=1) - shares[:, SUPPORTED]
    worst = torch.full((len(batch.ids),), -torch.inf)
    return worst.scatter_reduce(0, batch.owner, odds, "amax")


def rows(n: int = 240) -> list[Sample]:
    """Things of a colour, told rightly and wrongly; the wrong word is marked."""
    made = []
    for number in range(n):
        thing, colour = THINGS[number % 6], COLOURS[(number // 6) % 6]
        wrong = number % 2 == 1
        told = COLOURS[(number // 6 + 1) % 6] if wrong else colour
        output = f"the {thing} is {told}"
        spans = (Span(len(output) - len(told), len(output)),) if wrong else ()
        context = (f"number {number} says the {thing} is {colour}",)
        label = HALLUCINATED if wrong else FAITHFUL
        made.append(Sample(f"s{number}", output, context, label=label, spans=spans))
    return made


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a tiny BERT with random weights."""
    folder = tmp_path_factory.mktemp("bert")
    texts = [sample.output or "" for sample in rows()] + [" ".join(sample.context) for sample in rows()]
    size = len(write_tokenizer(folder / "tokenizer.json", texts))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    config.save_pretrained(folder)
    weights = BertModel(config, add_pooling_layer=False).state_dict()
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a tiny MPNet with random weights."""
    folder = tmp_path_factory.mktemp("mpnet")
    texts = [sample.output or "" for sample in rows()] + [" ".join(sample.context) for sample in rows()]
    size = len(write_tokenizer(folder / "tokenizer.json", texts, ("<s>", "<pad>", "</s>", "<unk>")))
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=514, layer_norm_eps=1e-5,
    )  # fmt: skip
    config.save_pretrained(folder)
    weights = MPNetModel(config, add_pooling_layer=False).state_dict()
    save_file(
        {f"mpnet.{name}": value.contiguous() for name, value in weights.items()}, folder / "model.safetensors"
    )
    return folder


def known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an encoder known, and fetched already; answers its place."""
    weights = folder / "model.safetensors"
    about = {"packages": ("tiny",), "version": "1", "folder": "tiny", "licence": "MIT", "publisher": "nobody"}
    one = Encoder(name="tiny", sha256=digest_of(weights), size=weights.stat().st_size, **about)  # type: ignore[arg-type]
    monkeypatch.setattr(encoders, "ENCODERS", (one,))
    one.place.parent.mkdir(parents=True)
    one.place.symlink_to(folder)
    return one.place


def trained_here(call: Call, *words: object) -> None:
    """A training in this process."""
    done = call("train", "detector", *map(str, words))
    assert done.code == 0, done.err


def rounded_to_eight_bits(network: Network, folder: Path) -> Network:
    """The network with the weights that a detector's folder has."""
    weights = {
        key: torch.from_numpy(each) for key, each in float_weights(read_weights(folder / WEIGHTS)).items()
    }
    with torch.no_grad():
        for name, layer in network.low_rank.items():
            layer.weight.copy_(weights[f"encoder.{name}.weight"])
            layer.bias.copy_(weights[f"encoder.{name}.bias"])
            layer.up.zero_()
        for name, value in network.named_parameters():
            if not name.endswith((".up", ".down")):
                value.copy_(weights[name])
    network.merge()
    return network.eval()


def source(folder: Path) -> Path:
    """A folder with the rows as a recipe reads them."""
    folder.mkdir()
    with gzip.open(folder / "colours.jsonl.gz", "wt", encoding="utf-8") as file:
        for each in rows():
            spans = [[span.start, span.end] for span in each.spans]
            told = {"id": each.id, "input": None, "context": each.context, "output": each.output}
            told |= {"label": each.label, "spans": spans, "metadata": {"ship": True}}
            file.write(json.dumps(told) + "\n")
    return folder


def read(start: Path, *samples: Sample) -> list[Example]:
    return list(examples(samples, Reader(Tokenizer.from_file(str(start / "tokenizer.json")), 128)))


class Same:
    """The same examples in every round."""

    def __init__(self, every: list[Example]) -> None:
        self.every = every

    def round(self, number: int) -> list[Example]:
        return self.every


def weights_of(network: Network) -> bytes:
    return b"".join(value.detach().numpy().tobytes() for value in network.state_dict().values())


# --- what is learnt from --------------------------------------------------------------------------


def test_sentences_and_tokens_are_wrong_where_spans_say_and_unknown_where_nothing_does(start: Path) -> None:
    two = "the boat is red. the coat is blue."
    context = ("the boat is red and the coat is grey",)
    spans = (Span(two.index("blue"), two.index("blue") + 4),)
    given = {
        "right": Sample("1", two, context, label=FAITHFUL),
        "marked": Sample("2", two, context, label=HALLUCINATED, spans=spans),
        "unmarked": Sample("3", two, context, label=HALLUCINATED),
        "alone": Sample("4", "the coat is blue", context, label=HALLUCINATED),
    }
    for kind in ("contradiction", "neutral"):
        given[kind] = replace(given["alone"], id=kind, metadata={"kind": kind})
    found = dict(zip(given, read(start, *given.values()), strict=True))
    assert {name: each.truths for name, each in found.items()} == {
        "right": (SUPPORTED, SUPPORTED),
        "marked": (SUPPORTED, WRONG),
        "unmarked": (UNKNOWN, UNKNOWN),
        "alone": (WRONG,),
        "contradiction": (CONTRADICTED,),
        "neutral": (ABSENT,),
    }
    assert found["marked"].tokens.tolist() == [0] * 8 + [1, 0]
    assert set(found["unmarked"].tokens.tolist()) == {-1}
    assert not found["right"].tokens.any()


def test_an_output_is_as_wrong_as_its_worst_sentence_and_padding_changes_nothing(start: Path) -> None:
    network = from_base(start).eval()
    short, long = (
        rows(2)[0],
        Sample("l", "the boat is red. the coat is blue. " * 3, ("the boat is red",), label=FAITHFUL),
    )
    every = read(start, short, long)
    with torch.no_grad():
        whole = batch_of(every)
        together = output_scores(network(whole.ids, whole.types, whole.mask), whole)
        for number, each in enumerate(every):
            one = batch_of([each])
            alone = output_scores(network(one.ids, one.types, one.mask), one)
            assert together[number].item() == pytest.approx(alone.item(), abs=1e-4)


def test_the_loss_of_an_output_of_which_only_the_label_is_known_is_that_of_its_likelihood(
    start: Path,
) -> None:
    (example,) = read(
        start, Sample("1", "the boat is red. the coat is blue.", ("the boat",), label=HALLUCINATED)
    )
    batch = batch_of([example])
    logits = torch.randn(1, example.length, 4)
    shares = [
        torch.softmax(logits[0, begin:end, 1:].mean(0), 0)
        for begin, end in zip(example.bounds, example.bounds[1:], strict=False)
    ]
    expected = -torch.log(1 - shares[0][SUPPORTED] * shares[1][SUPPORTED])
    assert loss_of(logits, batch).item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(("kind", "model"), [("start", BertModel), ("large", MPNetModel)])
def test_an_encoder_computes_what_the_model_of_its_publisher_does(
    kind: str, model: type, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    network, theirs = from_base(folder).eval(), model.from_pretrained(folder, add_pooling_layer=False).eval()
    ids = torch.randint(5, 100, (3, 300), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(300) < torch.tensor([300, 180, 7])[:, None]).long()
    with torch.no_grad():
        ours = network.encoder(ids, torch.zeros_like(ids), mask)
        wanted = theirs(ids, attention_mask=mask).last_hidden_state
    assert torch.allclose(ours[mask.bool()], wanted[mask.bool()], atol=1e-5)


# --- the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["start", "large"])
def test_what_is_new_in_a_network_is_the_same_for_the_same_seed(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    torch.manual_seed(5)
    one = weights_of(from_base(folder, seed=1))
    torch.manual_seed(6)
    assert one == weights_of(from_base(folder, seed=1))
    assert one != weights_of(from_base(folder, seed=2))


def test_a_training_that_was_stopped_ends_with_the_same_bytes(start: Path, tmp_path: Path) -> None:
    every = Same(read(start, *rows()))

    def made(folder: str) -> Training:
        return Training(
            from_base(start, seed=1), every, "rows", replace(SCHEDULE, tokens=9000), tmp_path / folder
        )

    whole = made("whole")
    assert whole.run()
    sittings = 0
    while not (part := made("parts")).run(seconds=0):
        sittings += 1
    assert sittings > 3 and part.step == whole.step
    assert weights_of(part.averaged()) == weights_of(whole.averaged())
    with pytest.raises(InputError, match="other data"):
        Training(from_base(start), every, "others", SCHEDULE, tmp_path / "parts")
    kept = (tmp_path / "parts" / "training.pt").read_bytes()
    with claimed(tmp_path / "parts"), pytest.raises(InputError, match="another process is training"):
        made("parts").run()
    assert (tmp_path / "parts" / "training.pt").read_bytes() == kept
    (tmp_path / "parts" / "training.pt").write_bytes(b"half")
    with pytest.raises(ModelError, match="--force"):
        made("parts")


def test_a_loss_that_is_no_number_ends_the_training(start: Path, tmp_path: Path) -> None:
    training = Training(
        from_base(start), Same(read(start, *rows(20))), "rows", replace(SCHEDULE, rate=1e30), tmp_path
    )
    with pytest.raises(ModelError, match="lower --rate"):
        training.run()


# --- the folder -----------------------------------------------------------------------------------


def test_what_was_learnt_is_what_judges_and_it_says_whether_labels_have_helped(
    start: Path, tmp_path: Path
) -> None:
    schedule = replace(SCHEDULE, tokens=0)
    found = train_on_labels(
        rows(), base(str(start), tmp_path / "s"), tmp_path / "one", schedule=schedule, epochs=25, window=128
    )
    assert found.manifest is not None and found.gain is None, (
        "a base without a head has nothing to compare with"
    )
    assert found.auroc["after"] > 0.9, "a colour that is not the context's is wrong"
    made = detector(tmp_path / "one")
    (told,) = made.read(rows(2)[1]).sentences
    assert max(told.words, key=lambda word: word.probability).start >= 11, "the colour is what is wrong"
    again = train_on_labels(
        rows(),
        base(str(tmp_path / "one"), tmp_path / "t"),
        tmp_path / "two",
        schedule=schedule,
        epochs=1,
        window=128,
    )
    assert again.gain is not None and again.contexts == again.n == 60
    assert again.auroc["before"] == pytest.approx(found.auroc["after"], abs=0.01)
    card = (tmp_path / "two" / CARD).read_text(encoding="utf-8")
    assert (
        "stored as integers" in card
        and json.loads((tmp_path / "two" / MANIFEST).read_text(encoding="utf-8"))["heads"] == 2
    )


def test_a_detector_that_goes_on_learning_begins_with_its_own_weights(tmp_path: Path) -> None:
    folder = write_detector(tmp_path / "tiny", ("the bridge is blue", "red", "anna"))
    begun = from_base(base(str(folder), tmp_path / "scratch").folder).eval()
    made = detector(folder)
    (window,) = made.reader.windows(Sample("s", "anna is red", ("the bridge is blue",)))
    ids = torch.tensor([window.ids])
    types = (torch.arange(ids.shape[1]) >= window.second).long().unsqueeze(0)
    with torch.no_grad():
        logits = begun(ids, types, torch.ones_like(ids))[0].numpy()
    assert np.abs(logits - made._logits([window])[0]).max() < 0.05


def test_improve_keeps_a_detector_that_was_shown_to_be_better_and_says_where_time_ran_out(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = replace(SCHEDULE, tokens=0)
    train_on_labels(
        rows(), base(str(start), tmp_path / "s"), tmp_path / "one", schedule=schedule, epochs=25, window=128
    )
    judges = ["novelty:base_rate=0.01", f"detector:{tmp_path / 'one'}"]
    labelled = [
        replace(each, label=HALLUCINATED if number % 14 == 0 else each.label)  # people err now and then
        for number, each in enumerate(rows(140))
    ]
    run = magistrate.evaluate(labelled, judges, store=tmp_path / "runs.db", progress=False)
    asked = {"ways": ["detector"], "folds": 2, "minutes": 5}
    found = magistrate.improve(run, to=tmp_path / "better", **asked)
    (attempt,) = found.attempts
    assert attempt.shown and attempt.n == 140 and attempt.reason is None
    assert detector(found.kept["detector"]).manifest.name == "improved"
    assert not (found.kept["detector"] / WORK).exists() and found.commands

    clock = iter([0.0, 0.0, 0.0, 1e9])  # the beginning, two folds, and all labels
    monkeypatch.setattr("magistrate.api.improve.monotonic", lambda: next(clock))
    found = magistrate.improve(run, to=tmp_path / "late", **asked)
    assert found.attempts[0].reason == "its training took longer than --minutes allows"
    assert found.kept == {} and found.best is None


def test_of_a_large_encoder_a_small_update_is_learnt_and_the_graph_computes_what_was_trained(
    large: Path, tmp_path: Path
) -> None:
    schedule = replace(SCHEDULE, rate=4e-3)
    trained = train_on_labels(
        rows(), base(str(large), tmp_path / "b"), tmp_path / "own", schedule=schedule, epochs=20
    )
    assert trained.manifest is not None and trained.auroc["after"] > 0.9, trained.auroc
    assert trained.manifest.update_of == base(str(large), tmp_path / "b").sha256
    network = rounded_to_eight_bits(from_base(large, tmp_path / "own" / UPDATE), tmp_path / "own")
    whole = {name for name in replaced(tmp_path / "own" / UPDATE) if name.startswith("encoder.")}
    assert all("LayerNorm" in name or "token_type" in name for name in whole), "matrices have updates only"
    model = detector(tmp_path / "own")
    long = replace(rows()[1], context=(" ".join(" ".join(each.context) for each in rows()[:40]),))
    some = [*rows()[:6], long]
    windows = [window for each in some for window in model.reader.windows(each)]
    assert max(len(each.ids) for each in windows) > 2 * 128, "far enough for every bucket of relative places"
    batch = batch_of([example for each in some for example in examples([each], model.reader)])
    with torch.no_grad():
        wanted = output_scores(network(batch.ids, batch.types, batch.mask), batch)
    read = zip(some, windows, model._logits(windows), strict=True)
    worst = [max(each.logit for each in _readings(sample.output or "", *both)) for sample, *both in read]
    assert worst == pytest.approx(wanted.tolist(), abs=1e-3)
    with pytest.raises(ModelError, match="unknown encoder"):
        base(str(tmp_path / "own"), tmp_path / "b")


def test_the_integers_of_a_small_encoder_compute_nearly_what_was_trained(start: Path, tmp_path: Path) -> None:
    made = tmp_path / "own"
    train_on_labels(rows(), base(str(start), tmp_path / "b"), made, schedule=SCHEDULE, epochs=20)
    network = from_base(base(str(made), tmp_path / "c").folder).eval()
    model, some = detector(made), rows()[:60]
    windows = [window for each in some for window in model.reader.pairs(each)]
    batch = batch_of(list(examples(some, model.reader, ("pairs",))))
    with torch.no_grad():
        wanted = output_scores(network(batch.ids, batch.types, batch.mask), batch).numpy()
    read = zip(some, windows, model._logits(windows), strict=True)
    found = np.array(
        [reading.logit for sample, *both in read for reading in _readings(sample.output or "", *both)]
    )
    assert np.corrcoef(found, wanted)[0, 1] > 0.99
    assert np.abs(found - wanted).mean() < 0.1 * wanted.std()


def test_the_graph_of_layers_that_lost_heads_and_neurons_computes_them_with_four_bits(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    parts: dict[str, tuple[int, ...]] = {
        "encoder.embeddings.word_embeddings.weight": (40, 128),
        "encoder.embeddings.position_embeddings.weight": (512, 128),
        "encoder.embeddings.token_type_embeddings.weight": (2, 128),
        **{f"encoder.embeddings.LayerNorm.{each}": (128,) for each in ("weight", "bias")},
    }
    for head, count in (("token", 1), ("kind", 3), ("whole", 3)):
        parts |= {f"{head}.weight": (count, 128), f"{head}.bias": (count,)}
    for at, (heads, neurons) in enumerate(((4, 192), (1, 64))):
        layer, size = f"encoder.encoder.layer.{at}", 32 * heads
        sizes = {
            **{f"attention.self.{each}": (size, 128) for each in ("query", "key", "value")},
            "attention.output.dense": (128, size),
            "intermediate.dense": (neurons, 128),
            "output.dense": (128, neurons),
        }
        for name, shape in sizes.items():
            parts |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for name in ("attention.output", "output"):
            parts |= {f"{layer}.{name}.LayerNorm.{each}": (128,) for each in ("weight", "bias")}
        parts[f"{layer}.attention.self.relative_attention_bias.weight"] = (32, heads)
    weights = {
        name: (draw.normal(0, 0.1, shape) + name.endswith("LayerNorm.weight")).astype(np.float32)
        for name, shape in parts.items()
    }
    large = "encoder.encoder.layer.0.attention.output.LayerNorm"
    for each in ("weight", "bias"):
        weights[f"{large}.{each}"][5] *= 40  # a column that would need most of the eight bits
    write_weights(weights, tmp_path / WEIGHTS, bits=4)
    write_graph(tmp_path / WEIGHTS, 4, tmp_path / GRAPH)
    stored = read_weights(tmp_path / WEIGHTS)
    assert stored["encoder.encoder.layer.0.intermediate.dense.weight"].dtype == np.uint8
    floats = {name: torch.from_numpy(value) for name, value in float_weights(stored).items()}
    encoder = {
        name.removeprefix("encoder."): each for name, each in floats.items() if name.startswith("encoder.")
    }
    network = Network(NetworkEncoder(encoder, 4, bits=4), by_updates=False)
    network.load_state_dict(floats)
    ids = draw.integers(0, 40, (3, 200))
    types = (np.arange(200) > 90) * np.ones_like(ids)
    mask = (np.arange(200) < [[200], [150], [5]]).astype(np.int64)
    with torch.no_grad():
        wanted = network.eval()(*map(torch.from_numpy, (ids, types, mask))).numpy()

    def off(weights: dict[str, np.ndarray]) -> float:
        write_weights(weights, tmp_path / WEIGHTS, bits=4)
        write_graph(tmp_path / WEIGHTS, 4, tmp_path / GRAPH)
        assert weights.keys() - floats.keys() <= read_weights(tmp_path / WEIGHTS).keys()
        session = session_of(tmp_path, SessionOptions())
        (found,) = session.run(None, {"ids": ids, "types": types, "mask": mask})
        return float(np.abs(found - wanted)[mask.astype(bool)].mean() / wanted.std())

    some = [Example(row.astype(np.uint16), 91, (91, 200), (0,), np.zeros(109, np.int8), False) for row in ids]
    vectors = smoothing(network, some)
    inputs = ("attention.self", "intermediate.dense", "output.dense")
    assert vectors.keys() == {
        f"encoder.encoder.layer.{at}.{name}{SMOOTH}" for at in (0, 1) for name in inputs
    }
    assert off({**weights, **vectors}) < 0.02 < 1.5 * off({**weights, **vectors}) < off(weights)


def test_a_recipe_of_pairs_makes_a_detector_that_reads_pairs(start: Path, tmp_path: Path) -> None:
    long = Sample("s", "the boat is red", ("the boat is blue. the coat is grey.",), label=HALLUCINATED)
    reader = Reader(Tokenizer.from_file(str(start / "tokenizer.json")), 128)
    (whole,), (near,) = (list(examples([long], reader, (how,))) for how in ("windows", "pairs"))
    assert near.length < whole.length and near.truths == whole.truths
    recipe = Recipe(window=128, reading="pairs", examples=1000, sources=(Source(name="colours", share=1),))
    made = train_on_recipe(
        recipe, source(tmp_path / "data"), base(str(start), tmp_path / "b"), tmp_path / "own",
        schedule=SCHEDULE, lexicon=Lexicon.read(), calibrate_on=rows(),
    )  # fmt: skip
    assert made.manifest is not None and made.manifest.readings == ("pairs",)
    again = train_on_labels(
        rows(), base(str(tmp_path / "own"), tmp_path / "c"), tmp_path / "mine", schedule=SCHEDULE
    )
    assert again.manifest is not None and again.manifest.readings == ("pairs",), "as its base"


def test_a_recipe_of_both_readings_has_the_examples_of_either(start: Path, tmp_path: Path) -> None:
    folder, tokenizer = source(tmp_path / "data"), start / "tokenizer.json"
    of = {}
    for reading in ("windows", "pairs", "both"):
        recipe = Recipe(window=128, reading=reading, examples=9, sources=(Source(name="colours", share=1),))
        kept = pool(recipe, folder, tokenizer, Lexicon.read(), tmp_path / "cache").of
        of[reading] = sorted(bytes(each.ids) for some in kept.values() for each in some)
    assert of["both"] == sorted(of["windows"] + of["pairs"])


def test_too_few_labels_or_one_kind_only_are_refused_before_anything_is_trained(
    start: Path, tmp_path: Path
) -> None:
    begun = base(str(start), tmp_path / "s")
    for samples, message in (
        (rows(20), "training needs at least 40"),
        (rows()[::2], "all faithful"),
        ([replace(each, context=()) for each in rows()], "0 labelled samples"),
    ):
        with pytest.raises(InputError, match=message):
            train_on_labels(samples, begun, tmp_path / "never")
    assert not (tmp_path / "never").exists()
    with pytest.raises(SpecError, match="shipped, detector-large, minilm-l6"):
        base("no-such", tmp_path / "s")


def test_the_command_trains_in_sittings_and_on_a_recipe(
    start: Path, tmp_path: Path, call: Call, home: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    told = [{"output": each.output, "context": each.context, "label": each.label} for each in rows()]
    data.write_text("".join(json.dumps(each) + "\n" for each in told), encoding="utf-8")
    line = ["train", "detector", "--data", str(data), "--to", str(tmp_path / "made"), "--base", str(start)]
    line += ["--rate", "0.005", "--batch", "600", "--epochs", "25"]
    first = call(*line, "--minutes", "0.0001")
    assert first.code == 0 and "the same command continues from there" in first.out, first.err
    done = call(*line, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["held_out"]["contexts"] == 60
    folder = source(tmp_path / "folder")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    made = [
        "train",
        "detector",
        "--recipe",
        str(recipe),
        "--base",
        str(start),
        "--to",
        str(tmp_path / "mixed"),
    ]
    refused = call(*made, "--data", str(folder))
    assert refused.code == 2 and "--calibrate-on" in refused.err
    made += ["--data", str(folder), "--tokens", "0.1", "--rate", "0.005", "--batch", "600"]
    made += ["--calibrate-on", str(data)]
    begun = call(*made, "--minutes", "0.0001")
    assert begun.code == 0 and "the same command continues" in begun.out, begun.err
    done = call(*made)
    assert done.code == 0, done.err
    assert (tmp_path / "mixed" / MANIFEST).is_file()


def test_the_trainings_of_the_large_detector_follow_each_other(
    large: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    home: Path,
    call: Call,
) -> None:
    make = importlib.import_module("benchmarks.detector.make_large")
    for name in ("1-first", "2-last"):
        (tmp_path / "stages").mkdir(exist_ok=True)
        (tmp_path / "stages" / f"{name}.yaml").write_text(RECIPE, encoding="utf-8")
    written = []
    for name in ("written-1", "held"):
        written.append(tmp_path / f"{name}.jsonl")
        documents = (
            {
                "domain": "colours",
                "context": right.context[0],
                "twins": [{"kind": "k", "question": None, "right": right.output, "wrong": wrong.output}],
            }
            for right, wrong in zip(rows()[::2], rows()[13::2], strict=False)
            if right.output != wrong.output
        )
        written[-1].write_text("".join(json.dumps(each) + "\n" for each in documents), encoding="utf-8")
    tokens = 0.15, 0.05
    stages = (("1-first", tokens[0], 0.004, 600), ("2-last", tokens[1], 0.001, 600))
    for name, value in {"HERE": tmp_path, "WRITTEN": written, "STAGES": stages}.items():
        monkeypatch.setattr(make, name, value)
    base_folder = known(large, monkeypatch)  # what is patched here holds in this process only
    monkeypatch.setattr(make, "train", partial(trained_here, call))
    monkeypatch.setattr(training, "LARGE", SCHEDULE)  # a tiny one learns in few steps
    words = [
        "make",
        str(source(tmp_path / "data")),
        "--to",
        str(tmp_path / "made"),
        "--base",
        str(base_folder),
    ]
    words += ["--work", str(tmp_path / "work")]
    monkeypatch.setattr(sys, "argv", words)
    make.main()
    manifest = read_manifest(tmp_path / "made")
    assert manifest.readings == BOTH
    first, last = stages_of(manifest.recipe)
    assert first["base"]["sha256"] == base(str(base_folder), tmp_path / "b").sha256
    assert last["base"]["recipe"] == first
    shipped = {each.name for each in (tmp_path / "made").iterdir()}
    assert shipped == {GRAPH, MANIFEST, CARD, UPDATE}, "what is pulled is not shipped"
    assert first["tokens"] >= 1e6 * tokens[0] and last["tokens"] >= 1e6 * tokens[1]
    assert set(last["data"]["digests"]) == {"colours"}
    told = (tmp_path / "made" / CARD).read_text(encoding="utf-8")
    assert "2 trainings" in told and "0.67 of 2-last" in told
    ours, before, after = (
        {name: each.up @ each.down for name, each in read_updates(folder / UPDATE).items()}
        for folder in (tmp_path / "made", tmp_path / "work" / "1-first", tmp_path / "work" / "2-last")
    )
    for name, value in ours.items():
        mean = (1 - make.LAST) * before[name] + make.LAST * after[name]
        assert np.abs(value - mean).max() < 0.1 * np.abs(mean).max(), name
    write_merged(base_folder, tmp_path / "made" / UPDATE, tmp_path / WEIGHTS)
    assert digest_of(tmp_path / WEIGHTS) == manifest.files[WEIGHTS], "what is pulled has this digest"
    again = [*words, "--start", str(tmp_path / "work" / "1-first"), "--to", str(tmp_path / "later")]
    monkeypatch.setattr(sys, "argv", [*again, "--work", str(tmp_path / "again")])
    make.main()
    assert read_manifest(tmp_path / "later") == manifest, "an earlier detector stands for the first training"
    assert not (tmp_path / "again" / "1-first").exists()


def test_variants_learn_from_the_same_data_and_what_was_measured_is_not_measured_again(
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    home: Path,
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    figures = tmp_path / "figures.jsonl"
    longer = {"variant": "all", "planned": 10**9, "mark": 1.0, "tokens": 10**9, "auroc": {"colours": 1.0}}
    figures.write_text(json.dumps(longer) + "\n", encoding="utf-8")
    names = ("all", "context does not see the output", "labels of outputs alone")
    for name, value in {
        "RECIPE": tmp_path / "recipe.yaml",
        "FIGURES": figures,
        "BASE": "tiny",
        "RATE": 5e-3,
        "VARIANTS": {name: ablate.VARIANTS[name] for name in names},
        "sources": lambda given, folder: given,
        "sets": lambda: {"colours": rows()[:80]},
        "SETS": (),
    }.items():
        monkeypatch.setattr(ablate, name, value)
    known(start, monkeypatch)
    words = ["ablate", str(source(tmp_path / "data")), "--work", str(tmp_path / "work"), "--tokens", "0.1"]
    monkeypatch.setattr(sys, "argv", words)
    ablate.main()
    told = capsys.readouterr().out.splitlines()
    measured = [json.loads(line) for line in figures.read_text(encoding="utf-8").splitlines()][1:]
    assert [each["variant"] for each in measured] == [name for name in names for _ in ablate.MARKS]
    assert all(each["tokens"] >= each["mark"] * 1e5 for each in measured)
    last = {each["variant"]: each["auroc"]["colours"] for each in measured}
    assert last["all"] > 0.9
    shown = f"{last['all']:.2f}".removeprefix("0")
    assert told[-3].startswith(f"| all | {shown} |") and told[-5] == (
        "| trained | colours | mean, after a third | mean |"
    )
    ablate.main()
    assert len(figures.read_text(encoding="utf-8").splitlines()) == 1 + len(measured)
    monkeypatch.setattr(ablate, "SETS", SETS)  # `home` has none of them
    ablate.main()
    assert "Not measured on summedits" in capsys.readouterr().err


def test_a_context_that_does_not_see_the_output_is_read_the_same_beside_any(start: Path) -> None:
    sample = rows()[0]
    one, other = read(start, sample, replace(sample, output="the coat is grey"))
    batch = batch_of([one, other])
    for variant, same in (("all", False), ("context does not see the output", True)):
        network = ablate.VARIANTS[variant].network(from_base(start)).eval()
        with torch.no_grad():
            first, second = network.encoder(batch.ids, batch.types, batch.mask)
        assert torch.equal(first[: one.second], second[: one.second]) is same, variant
        assert not torch.equal(first[one.second :], second[one.second :])


@pytest.mark.parametrize("told", [{"layer_norm_eps": 1e-12}, {"layer_norm_eps": None}])
def test_an_encoder_that_normalises_in_another_way_is_refused(
    large: Path, tmp_path: Path, told: dict[str, float | None]
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(large, folder)
    config = json.loads((folder / "config.json").read_text()) | told
    config = {key: value for key, value in config.items() if value is not None}  # none told means 1e-12
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="a layer_norm_eps of 1e-12; only 1e-05 is supported"):
        from_base(folder)


def test_an_encoder_computes_on_the_device_that_it_was_moved_to(large: Path) -> None:
    network = from_base(large).eval()
    batch = batch_of(read(large, rows()[0]))
    network(batch.ids, batch.types, batch.mask)  # computes its table of relative places here
    moved = network.to("meta")  # stands for a GPU
    found = moved(*(each.to("meta") for each in (batch.ids, batch.types, batch.mask)))
    assert found.device.type == "meta" and moved.encoder._buckets.device.type == "meta"


# --- a small one of a large one -------------------------------------------------------------------


def test_a_pruned_detector_keeps_what_matters_and_answers_like_its_teacher(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (make_small, training_encoder, graph, weights_module):
        monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(make_small, "LATIN", 0)  # the tiny one has words only
    schedule = replace(SCHEDULE, rate=4e-3)
    train_on_labels(rows(), base(str(large), tmp_path / "b"), tmp_path / "own", schedule=schedule, epochs=20)
    every = list(examples(rows(), Reader(Tokenizer.from_file(str(large / TOKENIZER)), 128)))
    counts = np.bincount(np.concatenate([each.ids for each in every]), minlength=300)
    fewer = make_small.fewer_pieces(large / TOKENIZER, counts, 60)
    make_small.write_teacher(large, detector(tmp_path / "own"), fewer, tmp_path / "teacher")
    tokenizer = Tokenizer.from_file(str(tmp_path / "teacher" / TOKENIZER))
    assert tokenizer.get_vocab_size() == 60
    every = list(examples(rows(), Reader(tokenizer, 128)))
    teacher = from_base(tmp_path / "teacher").eval()
    batch = batch_of(every[:40])
    with torch.no_grad():
        wanted = output_scores(teacher(batch.ids, batch.types, batch.mask), batch)
    truth = [each.hallucinated for each in every[:40]]
    assert roc_auc_score(truth, wanted) > 0.9, "frequent words are all it needs"

    found = make_small.importance(teacher, [every[at : at + 8] for at in range(0, 80, 8)])
    assert all((part > 0).any() and (part >= 0).all() for layer in found for part in layer)
    whole = make_small.kept(found, 1e9, 32, 16)
    assert whole == [([0, 1], list(range(64)))] * 2
    some = make_small.kept(found, 8_000, 32, 16)
    assert (
        sum(4 * 32 * 16 * len(heads) + 2 * 32 * len(neurons) for heads, neurons in some) < 8_000 + 4 * 32 * 64
    )
    with torch.no_grad():
        near = make_small.cut(teacher, whole)(batch.ids, batch.types, batch.mask)
        assert (near - teacher(batch.ids, batch.types, batch.mask)).abs().mean() < 0.2
    student = make_small.cut(teacher, some)
    asked, losses = [], []
    monkeypatch.setattr(make_small, "Taught", lambda *given: asked.append(given[1]) or Taught(*given))
    monkeypatch.setattr(make_small, "show", lambda _, loss: losses.append(loss))
    schedule = replace(SCHEDULE, tokens=60_000, rate=3e-3)
    work = tmp_path / "work"
    teacher_base = base(str(tmp_path / "teacher"), tmp_path / "s")
    begun = make_small.Begun(student, teacher_base, tmp_path / "teacher", "rows", {})
    assert make_small.trained(begun, Same(every), schedule, work, 0.0) == (), "it stops"
    first, taught_by = make_small.trained(begun, Same(every), schedule, work)
    assert asked == [1.0, 1.0, 0.0], "at last the hidden states are left free"
    assert first.tokens >= 42_000 and taught_by.tokens >= 18_000
    assert np.mean(losses[first.step - 5 : first.step]) < 0.6 * losses[0]
    taught = taught_by.averaged().eval()
    with torch.no_grad():
        scores = output_scores(taught(batch.ids, batch.types, batch.mask), batch)
    assert np.corrcoef(scores, wanted)[0, 1] > 0.9
    told = {"name": "tiny", "window": 128, "trained_on": (), "recipe": recipe_of(teacher_base, taught_by, {})}
    _, logits = write(taught, teacher_base, tmp_path / "small", told, rows())
    assert roc_auc_score([each.label == HALLUCINATED for each in rows()], logits) > 0.9
    again = from_base(base(str(tmp_path / "small"), tmp_path / "t").folder).eval()
    assert again.encoder.bits == 4 and not again.low_rank, "it is trained on as it is stored"
    with torch.no_grad():
        one, two = (each(batch.ids, batch.types, batch.mask) for each in (again, taught))
    assert (one - two).abs().mean() < 0.005

    monkeypatch.setattr(make_small, "encoder_of", lambda _: large)
    begun = make_small.earlier(tmp_path / "small", detector(tmp_path / "own"), tmp_path / "later")
    own = [(folder / TOKENIZER).read_bytes() for folder in (begun.teacher, tmp_path / "small")]
    assert json.loads(own[0]) == json.loads(own[1]), "the teacher learns the pieces of the student"
    with torch.no_grad():
        again = begun.student.eval()(batch.ids, batch.types, batch.mask)
        teachers = [from_base(folder).eval() for folder in (begun.teacher, tmp_path / "teacher")]
        his, her = (each(batch.ids, batch.types, batch.mask) for each in teachers)
    assert torch.equal(again, one) and torch.equal(his, her)
    assert begun.recipe["teacher"]["name"] == "own", "its manifest will say who taught it"
    alone = make_small.earlier(tmp_path / "small", None, tmp_path / "later")
    schedule = replace(schedule, tokens=20_000)
    (by_labels,) = make_small.trained(alone, Same(every), schedule, tmp_path / "labels")
    assert by_labels.tokens >= 20_000 and asked == [1.0, 1.0, 0.0], "without a teacher"
    with torch.no_grad():
        scores = output_scores(by_labels.averaged()(batch.ids, batch.types, batch.mask), batch)
    assert roc_auc_score(truth, scores) > 0.9
    monkeypatch.setattr(make_small, "NEW", 0.0)
    again = make_small.earlier(tmp_path / "small", None, tmp_path / "later")
    before = {name: each.clone() for name, each in again.student.state_dict().items()}
    (by_labels,) = make_small.trained(again, Same(every), schedule, tmp_path / "labels")
    assert all(torch.equal(each, before[name]) for name, each in by_labels.mean.items()), "a mean with these"


def test_what_is_rounded_in_training_is_what_is_stored() -> None:
    matrix = np.random.default_rng(0).normal(0, 0.1, (16, 128)).astype(np.float32)
    matrix[3, :64] = 0
    stored = unpacked(*packed(matrix))
    assert np.array_equal(stored, rounded(torch.from_numpy(matrix)).numpy())
    assert np.abs(stored - matrix).max() < 1.01 * np.abs(matrix).max() / 8, "a step at most"
