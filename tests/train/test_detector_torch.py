"""Training a detector: what is learnt, that a stop loses nothing, what the folder says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from magistrate.detectors.encoding import OUTPUT, Encoder
from magistrate.detectors.folder import CARD, MANIFEST
from magistrate.detectors.model import detector
from magistrate.engines.none import NONE
from magistrate.errors import InputError, ModelError, SpecError
from magistrate.judges.detector import Detector
from magistrate.train.detector.bases import base
from magistrate.train.detector.examples import UNKNOWN, Example, examples
from magistrate.train.detector.loop import Schedule, Training
from magistrate.train.detector.mixture import Mixture
from magistrate.train.detector.network import Network, from_base, write_base
from magistrate.train.detector.tensors import tensors
from magistrate.train.detector.training import Wish, of_samples, train
from magistrate.train.detector.writer import Writer
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Span, Verdict
from terminal import Call
from tiny_detector import write_byte_tokenizer, write_tokenizer

COLOURS = ("red", "blue", "green", "white", "black", "grey")
THINGS = ("bridge", "house", "tower", "boat", "horse", "coat")


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


@pytest.fixture(scope="module", params=["bert", "llama"])
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a tiny BERT, or a tiny Llama, with random weights."""
    return write_start(tmp_path_factory.mktemp(request.param), request.param)


def write_start(folder: Path, kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    texts = [sample.output or "" for sample in rows()] + [" ".join(sample.context) for sample in rows()]
    {"bert": write_tokenizer, "llama": write_byte_tokenizer}[kind](folder / "tokenizer.json", texts)
    size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    torch.manual_seed(0)
    if kind == "llama":
        llama = LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.1,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(llama).save_pretrained(folder)
        return folder
    config = BertConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    config.save_pretrained(folder)
    weights = BertModel(config, add_pooling_layer=False).state_dict()
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    return folder


def read(start: Path, samples: list[Sample]) -> list[Example]:
    return list(examples(samples, Encoder(Tokenizer.from_file(str(start / "tokenizer.json")), 64)))


def wish(start: Path, **schedule: object) -> Wish:
    how = Schedule(**{"epochs": 6, "tokens": 600, "rate": 5e-3, **schedule})  # type: ignore[arg-type]
    return Wish(
        name="tiny", base=base(str(start)), schedule=how, window=64, reading=64, trained_on=("colours",)
    )


def mixture(samples: list[Sample]) -> Mixture:
    return Mixture(tuple(samples[:200]), tuple(samples[200:]), {"colours": 200})


def bytes_of(network: Network) -> bytes:
    return b"".join(value.detach().numpy().tobytes() for value in network.state_dict().values())


# --- what is learnt from --------------------------------------------------------------------------


def test_tokens_are_wrong_where_spans_say_and_unknown_where_nothing_does(start: Path) -> None:
    right, marked = rows(2)
    unmarked = Sample("u", marked.output, marked.context, label=HALLUCINATED)
    truths = [answer.truth for each in read(start, [right, marked, unmarked]) for answer in each.answers]
    assert truths == [(0, 0, 0, 0), (0, 0, 0, 1), (UNKNOWN,) * 4]


def test_outputs_that_share_a_context_are_read_as_if_each_were_alone(start: Path) -> None:
    first, *_ = rows(1)
    others = [
        Sample(f"o{n}", text, first.context, label=FAITHFUL) for n, text in enumerate(("a boat", "blue is"))
    ]
    (shared,) = read(start, [first, *others])
    assert len(shared.answers) == 3
    network = from_base(start).eval()
    with torch.no_grad():
        whole = tensors([shared])
        _, together = network(whole.ids, whole.types, whole.segments, whole.positions, 3)
        for number, answer in enumerate(shared.answers):
            text = shared.before.then(answer.text)
            _, alone = network(torch.tensor([text.ids]), torch.tensor([text.types]))
            assert together[0, number].item() == pytest.approx(alone[0, 0].item(), abs=1e-5)


def test_padding_changes_nothing(start: Path) -> None:
    short, other = rows(2)
    long = Sample("long", f"{other.output}. " * 4, other.context)
    network, tokenizer = from_base(start).eval(), start / "tokenizer.json"
    alone = [of_samples(network, [each], tokenizer, 64)[0] for each in (short, long)]
    assert of_samples(network, [short, long], tokenizer, 64) == pytest.approx(alone, abs=1e-5)


def test_a_llama_reads_a_token_with_what_is_before_it_alone(tmp_path: Path) -> None:
    start = write_start(tmp_path, "llama")
    text = read(start, rows(2))[1].answers[0].text
    network = from_base(start).eval()
    ids, types = torch.tensor([text.ids]), torch.tensor([text.types])
    for number in (0, 7):  # the first is what others call padding
        other = ids.clone()
        other[0, 2] = number
        with torch.no_grad():
            (first, _), (second, whole) = network(ids, types), network(other, types)
            _, told = network(other, types, (types >= OUTPUT).long())
        same = [torch.equal(*pair) for pair in zip(first[0], second[0], strict=True)]
        assert same == [True, True] + [False] * (len(text.ids) - 2)
        assert torch.equal(whole, told), "a token of the output whatever its number"


# --- the loop -------------------------------------------------------------------------------------


def test_it_learns_which_word_is_wrong(start: Path, tmp_path: Path) -> None:
    samples = rows()
    found = train(
        wish(start, epochs=12), mixture(samples), tmp_path / "d", left_out={"others": samples[200:]}
    )
    assert found.manifest is not None
    assert found.auroc["others"] > 0.9
    outcome = asyncio.run(Detector(tmp_path / "d").judge(samples[201], NONE))
    assert isinstance(outcome, Verdict)
    assert outcome.label == HALLUCINATED
    output = samples[201].output or ""
    assert [claim.output_text for claim in outcome.claims] == [output.split()[-1]]


def test_a_stop_after_every_step_gives_the_same_weights(start: Path, tmp_path: Path) -> None:
    every, schedule = read(start, rows(60)), Schedule(epochs=2, tokens=300, rate=1e-3)
    torch.manual_seed(0)
    at_once = Training(from_base(start), every, schedule, tmp_path / "a")
    assert at_once.run()
    sittings = 0
    while True:
        torch.manual_seed(0)
        stopped = Training(from_base(start), every, schedule, tmp_path / "b")
        sittings += 1
        if stopped.run(seconds=-1):
            break
    assert sittings >= at_once.steps > 3
    assert bytes_of(stopped.network) == bytes_of(at_once.network)
    assert stopped.losses == at_once.losses


def test_the_best_weights_are_kept_and_training_ends_when_nothing_gets_better(
    start: Path, tmp_path: Path
) -> None:
    every, schedule = read(start, rows(60)), Schedule(epochs=12, tokens=300, rate=1e-3, looks=6, patience=2)
    worth, weights = [0.5, 0.9, 0.7, 0.6, 0.8, 0.99], []

    def look(network: Network) -> float:
        weights.append(bytes_of(network))
        return worth[len(weights) - 1]

    training = Training(from_base(start), every, schedule, tmp_path / "a", look=look)
    while not training.run(seconds=-1):
        training = Training(from_base(start), every, schedule, tmp_path / "a", look=look)
    assert training.seen == worth[:4], "two looks saw nothing better than the second"
    assert training.step < training.steps
    assert bytes_of(training.network) == weights[1]


def test_computing_activations_twice_changes_nothing_but_the_memory(start: Path, tmp_path: Path) -> None:
    every, schedule = read(start, rows(60)), Schedule(epochs=1, tokens=300, rate=1e-3)
    found = []
    for checkpoints in (False, True):
        torch.manual_seed(0)
        network = from_base(start, checkpoints=checkpoints)
        Training(network, every, schedule, tmp_path / str(checkpoints)).run()
        found.append(bytes_of(network))
    assert found[0] == found[1]


def test_a_training_is_not_gone_on_with_on_other_data(start: Path, tmp_path: Path) -> None:
    every, schedule = read(start, rows(60)), Schedule(epochs=2, tokens=300)
    Training(from_base(start), every, schedule, tmp_path / "a").run(seconds=-1)
    with pytest.raises(InputError, match="another training"):
        Training(from_base(start), every[:-2], schedule, tmp_path / "a")
    with pytest.raises(InputError, match="another training"):
        Training(from_base(start), every, schedule, tmp_path / "a", base="another")


def test_of_a_llama_only_updates_types_and_heads_learn(tmp_path: Path) -> None:
    start = write_start(tmp_path, "llama")
    torch.manual_seed(0)
    network = from_base(start)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    training = Training(network, read(start, rows(60)), Schedule(tokens=300, rate=1e-3), tmp_path / "a")
    training.run()
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    updates = {name for name in before if ".lora_" in name}
    assert len(updates) == 2 * 7 * 2, "two for each of seven matrices of two layers"
    assert changed == updates | {
        *("encoder.types.weight", "mix"),
        *("token.weight", "token.bias", "whole.weight", "whole.bias"),
    }
    kept = torch.load(tmp_path / "a" / "training.pt", weights_only=True)["network"]
    assert kept.keys() == changed, "what never changes is not kept again and again"


def test_what_is_kept_as_a_base_is_the_same_network(start: Path, tmp_path: Path) -> None:
    every = read(start, rows(60))
    training = Training(from_base(start), every, Schedule(tokens=300, rate=1e-3), tmp_path / "a")
    training.run()
    tokenizer = start / "tokenizer.json"
    wanted = of_samples(training.network.eval(), rows(8), tokenizer, 64)
    write_base(training.network, tokenizer, tmp_path / "kept")
    again = from_base(base(str(tmp_path / "kept")).folder)
    assert of_samples(again.eval(), rows(8), tokenizer, 64) == pytest.approx(wanted, abs=1e-4)


def test_a_first_step_is_kept_and_a_minute_later_the_next(start: Path, tmp_path: Path) -> None:
    every, kept = read(start, rows(60)), list[bool]()
    ticks = iter(range(0, 10_000, 25))
    training = Training(
        from_base(start),
        every,
        Schedule(epochs=2, tokens=300),
        tmp_path / "a",
        clock=lambda: float(next(ticks)),
    )
    place = tmp_path / "a" / "training.pt"

    def tell(step: int, steps: int, loss: float) -> None:
        kept.append(place.is_file())
        place.unlink(missing_ok=True)

    training.run(tell=tell)
    assert kept[:6] == [False, True, False, False, True, False]


def test_a_loss_that_is_no_number_ends_it(start: Path, tmp_path: Path) -> None:
    schedule = Schedule(epochs=6, tokens=300, rate=1e30)
    with pytest.raises(
        ModelError, match=r"the loss of step \d+ is nan: lower --rate; to begin anew: --force"
    ):
        Training(from_base(start), read(start, rows(60)), schedule, tmp_path / "a").run()


def test_what_has_no_label_or_nothing_to_read_is_not_measured_on(start: Path, tmp_path: Path) -> None:
    samples = rows()
    blank = [replace(each, id=f"b{each.id}", output=" \n") for each in samples[:3]]
    bare = [replace(each, id=f"u{each.id}", label=None) for each in samples[:2]]
    mixed = Mixture(tuple(samples[:200]), (*samples[200:], *blank[:1]), {"colours": 200})
    others = [*samples[200:220], *blank, *bare]
    found = train(
        wish(start),
        mixed,
        tmp_path / "d",
        left_out={"others": others},
        stop_on={"looks": [*samples[:8], *bare]},
    )
    assert dict(found.measured) == {"held out": 40, "others": 20}
    assert dict(found.left_out) == {"held out": 1, "others": 5, "looks": 2}
    assert "| others | 20 |" in (tmp_path / "d" / CARD).read_text(encoding="utf-8")


def test_what_cannot_be_measured_on_is_known_before_training(start: Path, tmp_path: Path) -> None:
    samples, target = rows(), tmp_path / "d"
    asked, given = wish(start), mixture(samples)
    with pytest.raises(InputError, match="held out: all of 20 samples are faithful"):
        train(asked, Mixture(given.train, given.held_out[::2], {}), target)
    with pytest.raises(InputError, match="held out: none of 0 samples"):
        train(asked, Mixture(given.train, (), {}), target)
    with pytest.raises(InputError, match="one: all of 5 samples are hallucinated"):
        train(asked, given, target, left_out={"one": samples[1:11:2]})
    bare = [replace(each, label=None) for each in samples[:4]]
    with pytest.raises(InputError, match="bare: none of 4 samples has a label"):
        train(asked, given, target, stop_on={"bare": bare})
    with pytest.raises(SpecError, match="a name has 1 to 80 characters"):
        replace(asked, name="n" * 81)
    assert not target.exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    start = write_start(tmp_path / "bert", "bert")
    place = tmp_path / "a" / "training.pt"
    place.parent.mkdir()
    place.write_bytes(b"garbage")
    with pytest.raises(ModelError, match=r"training\.pt cannot be read .*; to begin anew: --force"):
        Training(from_base(start), read(start, rows(60)), Schedule(tokens=300), place.parent)
    weights = (start / "model.safetensors").read_bytes()
    (start / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        from_base(start)
    (start / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        base(str(start))


def test_one_label_is_nothing_to_learn_from(start: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one kind"):
        train(wish(start), mixture(rows()[::2]), tmp_path / "d")


# --- the folder -----------------------------------------------------------------------------------


def test_the_folder_says_what_the_network_said(start: Path, tmp_path: Path) -> None:
    samples = rows()
    asked = wish(start)
    train(asked, mixture(samples), tmp_path / "d")
    torch.manual_seed(0)
    again = Training(from_base(start), read(start, samples[:200]), asked.schedule, tmp_path / "again")
    again.run()
    wanted = of_samples(again.network.eval(), samples[:12], start / "tokenizer.json", 64)
    told = [detector(tmp_path / "d").detect(sample) for sample in samples[:12]]
    # Eight bits are not thirty-two.
    assert [each.logit for each in told if each is not None] == pytest.approx(wanted, abs=0.25)
    assert (tmp_path / "d" / CARD).read_text(encoding="utf-8").startswith("# tiny")


def test_the_command_trains_in_sittings_and_the_folder_judges(
    home: Path, call: Call, start: Path, tmp_path: Path
) -> None:
    data = tmp_path / "colours.jsonl"
    lines = [
        {"id": each.id, "context": each.context[0], "output": each.output, "label": each.label}
        for each in rows()
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    target = tmp_path / "mine"
    asked = ["train", "detector", "--data", str(data), "--to", str(target), "--base", str(start)]
    asked += ["--perturb", "0", "--epochs", "6", "--batch", "600", "--rate", "5e-3", "--window", "64"]
    first = call(*asked, "--minutes", "0.0001")
    assert first.code == 0, first.err
    assert "the same command goes on from there" in first.out
    assert not (target / MANIFEST).exists()
    second = call(*asked, "--json")
    assert second.code == 0, second.err
    assert 0 <= second.data["auroc"]["held out"] <= 1, "nothing but the answer is printed"
    assert second.data["measured"]["held out"] > 0
    assert (target / MANIFEST).is_file()
    assert call(*asked).code == 2, "what is done is not trained again unasked"
    anew = [call(*asked, "--force", "--minutes", "0.0001") for _ in range(2)]
    assert [each.out.split(" of ")[0] for each in anew] == ["step 1"] * 2, anew[0].err
    assert "the same command without --force goes on from there" in anew[0].out
    third = call(*asked)
    assert third.code == 0, third.err
    assert f"(n={second.data['measured']['held out']})" in third.out
    ran = call("run", str(data), "--judge", f"detector:{target}", "--limit", "6")
    assert ran.code == 0, ran.err


def test_a_base_is_a_known_name_or_a_folder_of_a_known_type(tmp_path: Path, start: Path) -> None:
    assert base(str(start)).folder == start
    with pytest.raises(SpecError, match="minilm-l6, smollm2-135m, and folders"):
        base("minilm")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"lacks tokenizer\.json"):
        base(str(tmp_path))
    for name in ("tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(ModelError, match="'gpt2'; known are bert, llama"):
        base(str(tmp_path))


# --- a language model that writes -----------------------------------------------------------------


def test_a_writer_goes_on_with_texts_and_says_the_same_for_a_seed(tmp_path: Path) -> None:
    start = base(str(write_start(tmp_path, "llama")))
    told = [
        Sample(f"w{n}", f"number {n} says the bridge is red and the house is blue", (f"note {n}",))
        for n in range(5)
    ]
    first, second = (list(Writer(start).continued(told, seed=3)) for _ in range(2))
    assert first == second and list(Writer(start).continued(told, seed=4)) != first
    assert first and len(first) % 2 == 0
    for faithful, made in zip(first[::2], first[1::2], strict=True):
        assert (faithful.label, made.label) == (FAITHFUL, HALLUCINATED)
        (span,) = made.spans
        assert (faithful.output or "").startswith((made.output or "")[: span.start].rstrip())


def test_a_writer_guesses_whole_words_at_the_places_of_words(tmp_path: Path) -> None:
    output = "the bridge is red and the house is blue"
    found = Writer(base(str(write_start(tmp_path, "llama")))).guesses([Sample("g", output, ("c",))])
    assert set(found) == {"g"} and found["g"]
    for guess in found["g"]:
        assert output[guess.start - 1] == " " and output[guess.start] != " "
        assert guess.words and all(word.isalpha() and word.islower() for word in guess.words)


def test_what_was_written_is_asked_for_once_and_a_torn_line_is_written_anew(tmp_path: Path) -> None:
    folder, keep = write_start(tmp_path / "llama", "llama"), tmp_path / "work"
    start = base(str(folder))
    told = [Sample("w", "number 3 says the bridge is red and the house is blue", ("note",))]
    first = list(Writer(start, keep).continued(told, seed=3)), Writer(start, keep).guesses(told)
    (kept,) = keep.iterdir()
    whole = kept.read_text()
    (folder / "model.safetensors").rename(tmp_path / "elsewhere")
    assert (list(Writer(start, keep).continued(told, 3)), Writer(start, keep).guesses(told)) == first
    kept.write_text(whole[:-30])
    with pytest.raises(OSError, match="safetensors"):
        Writer(start, keep).guesses(told)
    (tmp_path / "elsewhere").rename(folder / "model.safetensors")
    assert Writer(start, keep).guesses(told) == first[1]
    assert Writer(start, keep).guesses(told) == first[1] and "[[" in kept.read_text().splitlines()[-1]


def test_what_only_reads_is_no_writer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="reads and cannot write"):
        Writer(base(str(write_start(tmp_path, "bert"))))
