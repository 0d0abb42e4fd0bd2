"""A tiny random model learns from labels, goes on after a kill as if nothing had happened, and judges."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks.detector import make_judge
from magistrate.datasets import load
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.models import locate
from magistrate.engines.models.catalogue import UPDATE
from magistrate.engines.models.disk import quiet
from magistrate.engines.models.gguf.rewrite import opened, rewrite
from magistrate.engines.models.updates import Update, read_updates, write_updates
from magistrate.errors import InputError, ModelError, SpecError
from magistrate.judges import registry
from magistrate.training.detector.recipe import Recipe
from magistrate.training.judge.bases import base_of
from magistrate.training.judge.examples import from_samples, parted
from magistrate.training.judge.gguf import tensors, updates_of, write_gguf
from magistrate.training.judge.loop import Settings, Training
from magistrate.training.judge.training import train_judge
from magistrate.training.judge.trees import Laid, batches, begun, laid, trees
from magistrate.training.synthetic import Lexicon
from magistrate.types import Sample
from terminal import Call

# A prompt of one line, so that a tiny model sees what matters.
JUDGE = """
inputs: [context, output]
labels:
  faithful: {score: 0, answers: "Yes"}
  hallucinated: {score: 1, answers: "No"}
prompt: "{{ context }} {{ output }} {{ reply }}"
"""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL = {"rate": 0.01, "batch": 8, "epochs": 4.0, "test": 0.25, "rank": 4, "alpha": 8}


def rows(n: int = 48) -> list[dict[str, str]]:
    """What a tiny model can learn: wrong is what is blue."""
    return [
        {
            "id": f"s{at}",
            "context": f"Bridge {at // 2}.",
            "output": "It is blue." if at % 2 else "It is old.",
            "label": "hallucinated" if at % 2 else "faithful",
        }
        for at in range(n)
    ]


def tokenizer_files(path: Path) -> int:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    made.train_from_iterator(
        [json.dumps(rows()), "Reply with one word, Yes or No. user assistant"],
        trainers.BpeTrainer(
            vocab_size=384,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    made.save(str(path / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return made.get_vocab_size()


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a model of two layers."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    path.mkdir()
    size = tokenizer_files(path)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.15,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    path = tmp_path / "short.yaml"
    path.write_text(JUDGE)
    return path


def train(target: Path, base: Path, judge: Path, **given: Any) -> Any:
    settings = Settings(**{**SMALL, **given.pop("settings", {})})
    words = {"judge": registry.judge(str(judge)), "data": [load(rows())], "base": str(base), "device": "cpu"}
    return train_judge(target, settings=settings, **{**words, **given})


def weights(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "adapter" / "adapter_model.safetensors")


# --- learning ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained without a break."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "short.yaml").write_text(JUDGE)
    outcome = train(folder / "mine", base, folder / "short.yaml")
    assert outcome.recipe is not None
    return folder / "mine"


def test_the_loss_on_held_out_contexts_falls_and_the_recipe_says_so(trained: Path) -> None:
    told = json.loads((trained / "recipe.json").read_text())
    assert told["after"]["loss"] < 0.5 * told["before"]["loss"]
    assert told["after"]["balanced_accuracy"]["value"] == 1
    assert told["examples"] == {"train": 36, "test": 12, "train_contexts": 18, "test_contexts": 6}
    assert told["base"]["source"] == "folder:tiny" and told["judge"]["words"] == "short@1"
    assert set(told["sha256"]) == {"model.gguf", "model.safetensors"}
    card = (trained / "README.md").read_text()
    assert "balanced accuracy" in card and "36 examples of 18 contexts" in card
    assert str(trained.parent) not in card + json.dumps(told)
    assert str(trained.parent.parent) not in (trained / "adapter" / "adapter_config.json").read_text()
    assert not (trained / ".training").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # that library and transformers warn each other
def test_the_merged_folder_is_the_base_with_its_adapter(trained: Path, base: Path) -> None:
    from peft import PeftModel

    merged = transformers.AutoModelForCausalLM.from_pretrained(trained)
    adapted = PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(base), trained / "adapter"
    )
    ids = torch.tensor([[5, 9, 100, 7, 20]])
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, adapted(ids).logits, atol=1e-4)


def test_the_gguf_is_the_same_model(trained: Path, tmp_path: Path) -> None:
    merged = transformers.AutoModelForCausalLM.from_pretrained(trained)
    read = transformers.AutoModelForCausalLM.from_pretrained(
        trained, gguf_file="model.gguf", dtype=torch.float32
    )
    ids = torch.tensor([[5, 9, 100, 7, 20]])
    with torch.no_grad():
        wanted, found = (each(ids).logits.log_softmax(-1) for each in (merged, read))
    assert (wanted - found).abs().max() < 0.3  # 8 bits a weight; heads in each other's places are 2 off
    # Again, from the GGUF: its numbers are those of 8 bits already, and nothing is lost.
    write_gguf(read, tmp_path / "again.gguf", trained, name="again", like=trained / "model.gguf")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="again.gguf", dtype=torch.float32
    )
    with torch.no_grad():
        assert (again(ids).logits - read(ids).logits).abs().max() < 1e-3
    assert {name for name, _ in tensors(merged)} == {name for name, _ in tensors(again)}


def test_the_embedded_engine_judges_with_it(home: Path, trained: Path, judge: Path) -> None:
    import asyncio

    engine, asked = LocalEngine(trained / "model.gguf"), registry.judge(str(judge))
    try:
        samples = list(load(rows(8)))
        outcomes = [asyncio.run(asked.judge(each, engine)) for each in samples]
        assert [each.label for each in outcomes] == [each.label for each in samples]
        # What was learnt is what the engine sends: the same tokens, from the same tokenizer.
        base = base_of(str(trained), home)
        chat = ChatTokenizer(base.tokenizer, base.card())
        lessons, _ = from_samples(samples, asked, chat, 2048)
        assert list(lessons[0].prompt) == engine.tokenizer.tokens(asked.plan(samples[0])[0].prompt)
    finally:
        engine.close()


# --- going on ---------------------------------------------------------------------------------------


def test_a_training_that_was_stopped_ends_with_the_same_weights(
    trained: Path, base: Path, judge: Path, tmp_path: Path
) -> None:
    ticks = iter(range(10_000))
    given = {"seconds": 3, "clock": lambda: float(next(ticks))}
    outcome = train(tmp_path / "mine", base, judge, **given)
    assert outcome.recipe is None and 0 < outcome.update < outcome.updates
    with pytest.raises(SpecError, match="another base, other data or other settings"):
        train(tmp_path / "mine", base, judge, settings={"rate": 0.02})
    while outcome.recipe is None:
        outcome = train(tmp_path / "mine", base, judge, **given)
    whole, parts = weights(trained), weights(tmp_path / "mine")
    assert whole.keys() == parts.keys()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_a_killed_training_goes_on(
    trained: Path, base: Path, judge: Path, tmp_path: Path, home: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    words = [
        "train",
        "judge",
        "--data",
        "rows.jsonl",
        "--to",
        "mine",
        "--base",
        str(base),
        "--judge",
        str(judge),
    ]
    words += ["--rate", "0.01", "--batch", "8", "--epochs", "4", "--test", "0.25", "--rank", "4"]
    child = subprocess.Popen(
        [sys.executable, "-m", "magistrate", *words], cwd=tmp_path, stderr=subprocess.PIPE, env={**os.environ}
    )
    state = tmp_path / "mine" / ".training" / "state.pt"
    until = time.monotonic() + 120
    while not state.exists() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert state.exists()
    done = subprocess.run(
        [sys.executable, "-m", "magistrate", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "use it with: magistrate run DATA --judge short --model mine/model.gguf" in done.stdout


def test_what_is_done_is_not_overwritten_unasked(
    trained: Path, base: Path, judge: Path, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="already exists; to replace it: --force"):
        train(trained, base, judge)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for recipe in (None, '{"kind": "soup"}'):
        if recipe is not None:
            (tmp_path / "full" / "recipe.json").write_text(recipe)
        with pytest.raises(SpecError, match="contains no judge; choose another folder"):
            train(tmp_path / "full", base, judge, force=True)
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    (tmp_path / "begun" / ".training").mkdir(parents=True)
    (tmp_path / "begun" / ".training" / "training.pt").write_text("of a detector")
    with pytest.raises(SpecError, match="an unfinished training of something other than a judge"):
        train(tmp_path / "begun", base, judge, force=True)


def test_a_model_is_there_until_the_new_one_is_written(
    trained: Path, base: Path, judge: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(trained, mine)
    with pytest.raises(SpecError, match="there is no base 'nothing'"):
        train(mine, Path("nothing"), judge, force=True)
    ticks = iter(range(10_000))
    given = {"seconds": 3, "clock": lambda: float(next(ticks)), "settings": {"rate": 0.02}}
    begun = train(mine, base, judge, force=True, **given)
    assert begun.recipe is None
    again = train(mine, base, judge, force=True, **given)
    assert again.update == begun.update, "it began anew"
    assert np.array_equal(next(iter(weights(mine).values())), next(iter(weights(trained).values())))
    assert train(mine, base, judge, **given).update > again.update
    done = train(mine, base, judge, settings={"rate": 0.02})
    told = json.loads((mine / "recipe.json").read_text())
    assert done.recipe is not None and told["settings"]["rate"] == 0.02 and not (mine / ".training").exists()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_small_steps_with_less_memory_are_the_same_update(
    base: Path, judge: Path, tmp_path: Path, checkpointing: bool
) -> None:
    given = {"epochs": 1.0, "precise": True, "checkpointing": checkpointing}
    train(tmp_path / "a", base, judge, settings=given)
    train(tmp_path / "b", base, judge, settings={**given, "together": 64})
    first, second = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert max(np.abs(first[name] - second[name]).max() for name in first) < 1e-3


# --- what cannot be learnt --------------------------------------------------------------------------


def test_data_that_teach_nothing_are_an_error(base: Path, judge: Path, tmp_path: Path) -> None:
    right = [row for row in rows() if row["label"] == "faithful"]
    with pytest.raises(InputError, match="every example is faithful"):
        train(tmp_path / "a", base, judge, data=[load(right)])
    unlabelled = [{key: row[key] for key in ("context", "output")} for row in rows()]
    with pytest.raises(InputError, match=r"only 0 examples.*no label: 48"):
        train(tmp_path / "b", base, judge, data=[load(unlabelled)])
    with pytest.raises(InputError, match=r"longer than 20 tokens: 48"):
        train(tmp_path / "c", base, judge, settings={"most": 20})
    with pytest.raises(InputError, match="so no model was written"):
        train(tmp_path / "d", base, judge, settings={"rate": 1e-9, "epochs": 1.0})
    assert not (tmp_path / "d" / "recipe.json").exists()


def test_what_is_no_base_is_an_error(tmp_path: Path, judge: Path, base: Path) -> None:
    with pytest.raises(SpecError, match="there is no base 'nothing'"):
        train(tmp_path / "a", Path("nothing"), judge)
    (tmp_path / "half").mkdir()
    with pytest.raises(ModelError, match=r"lacks config\.json, tokenizer\.json"):
        train(tmp_path / "b", tmp_path / "half", judge)


def test_a_base_of_a_hub_is_downloaded_without_its_code(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def download(repo: str, **given: Any) -> str:
        asked.append((repo, given))
        return str(base)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = base_of("someone/tiny@abc", tmp_path)
    ((repo, given),) = asked
    assert (repo, given["revision"], found.source, found.folder) == (
        "someone/tiny",
        "abc",
        "hub:someone/tiny@abc",
        base,
    )
    assert not any(pattern.endswith((".py", ".bin", ".pt")) for pattern in given["allow_patterns"])

    def offline(repo: str, **given: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match="cannot download someone/tiny: no network"):
        base_of("someone/tiny", tmp_path)


# --- chats ------------------------------------------------------------------------------------------


def test_chats_are_learnt_and_a_gguf_is_a_base(home: Path, call: Call, trained: Path) -> None:
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"{row['context']} {row['output']}"},
                {"role": "assistant", "content": "No" if row["label"] == "hallucinated" else "Yes"},
            ],
            "metadata": {"context": row["context"], "label": row["label"]},
        }
        for row in rows()
    ]
    Path("chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in chats))
    words = ("--sft", "chats.jsonl", "--to", "mine", "--base", trained / "model.gguf", "--rate", "0.01")
    done = call(
        "train", "judge", *words, "--batch", "8", "--test", "0.25", "--epochs", "2", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert "held-out examples" in done.out and done.width <= 80
    assert (Path("mine") / "model.gguf").is_file() and locate(Path("mine") / "model.gguf").is_dir()
    both = call("train", "judge", "--sft", "chats.jsonl", "--data", "x.csv", "--to", "other")
    assert both.code == 2 and "give either" in both.err


def test_time_that_is_up_is_told(home: Path, call: Call, base: Path, judge: Path) -> None:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    words = ("train", "judge", "--data", "rows.jsonl", "--to", "mine", "--base", base, "--judge", judge)
    done = call(*words, "--minutes", "0.000001")
    assert (done.code, done.out) == (0, "update 1 of 9; the same command continues from there\n")
    assert "held out" in done.err


# --- what begins alike is read once -----------------------------------------------------------------


def each_of(one: Laid, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """The logits of each example of a batch."""
    parts = logits.split([len(each.answer) for each in one.examples])
    return {each.name: part for each, part in zip(one.examples, parts, strict=True)}


def test_lessons_in_a_tree_are_answered_as_each_alone(base: Path, judge: Path) -> None:
    found = base_of(str(base), Path(base))
    chat = ChatTokenizer(found.tokenizer, found.card())
    samples = [Sample(id=str(n), context=("One.", "Two.")[n % 2 :][:1], output=f"Bridge {n} is old.",
                      label="faithful") for n in range(10)]  # fmt: skip
    lessons, _ = from_samples(samples, registry.judge(str(judge)), chat, 512)
    model = found.load().eval()

    def scores(most: int) -> dict[str, torch.Tensor]:
        told = {}
        for some in batches(lessons, most):
            one = laid(some, "cpu", torch.float32)
            hidden = model.model(input_ids=one.ids, position_ids=one.places, attention_mask=one.mask)
            told.update(each_of(one, model.lm_head(hidden.last_hidden_state[one.rows, one.columns])))
        return told

    with torch.no_grad():
        alone, together = scores(1), scores(400)
    assert max(map(len, trees(lessons, 400))) > 2 * max(map(len, lessons))  # a tree holds several
    assert sum(map(len, trees(lessons, 400))) < 0.75 * sum(map(len, lessons))
    assert alone.keys() == together.keys() == {each.id for each in samples}
    for name, wanted in alone.items():
        assert torch.allclose(wanted, together[name], atol=1e-4), name


def test_instructions_are_read_once_and_no_answer_changes(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "told.yaml"
    path.write_text(JUDGE.replace('prompt: "', 'prompt: "You compare bridges with what is said of them. '))
    found = base_of(str(base), tmp_path)
    chat = ChatTokenizer(found.tokenizer, found.card())
    samples = [Sample(id=f"s{n}", context=(f"Bridge {n // 2}.",), output=("It is old.", "It is blue.")[n % 2],
                      label=("faithful", "hallucinated")[n % 2]) for n in range(12)]  # fmt: skip
    lessons, _ = from_samples(samples, registry.judge(str(path)), chat, 512)
    shared = begun(lessons)
    assert len(shared) > 10 and all(len(each) > len(shared) + 2 for each in lessons)
    assert {each.prompt[: len(shared)] for each in lessons} == {shared}

    def trained(**given: Any) -> Training:
        told = Settings(**{**SMALL, "precise": True, **given})
        examples = parted(lessons, {}, 0.25, 0)
        folder = tmp_path / str(sorted(given))
        folder.mkdir()
        return Training(found.load(), examples, told, folder, "", clock=time.monotonic)

    def logits(training: Training) -> dict[str, torch.Tensor]:
        told = {}
        with torch.no_grad():
            for one, values in training._passes(lessons):
                told.update(each_of(one, values))
        return told

    once, whole = trained(), trained(checkpointing=True)  # which keeps nothing, so reads all of each prompt
    assert max(one.ids.shape[1] for one, _ in once._passes(lessons)) < len(lessons[0]) - 10
    for _ in range(3):
        once._step()
    whole._put(once._taken())
    for each in (once, whole):
        each._merge()
        each.model.eval()
    told, wanted = logits(once), logits(whole)
    assert told.keys() == {each.id for each in samples}
    for name, each in told.items():
        assert torch.allclose(each, wanted[name], atol=1e-4), name


def test_an_update_of_a_gguf_is_the_merged_model(trained: Path, base: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    write_gguf(model, tmp_path / "base.gguf", base, name="base", numbers="f16")
    write_updates(updates_of(trained / "adapter", model.config), tmp_path / UPDATE)
    rewrite(
        opened(tmp_path / "base.gguf"), tmp_path / "new.gguf", "f16", quiet, read_updates(tmp_path / UPDATE)
    )
    merged = transformers.AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    wanted = dict(tensors(merged))
    found = {each.name: each for each in opened(tmp_path / "new.gguf").tensors}
    assert found.keys() == wanted.keys()
    before = dict(tensors(model))
    changed = 0
    for name, each in found.items():
        values = np.asarray(each.data, np.float32).reshape(wanted[name].shape)
        off = np.abs(values - wanted[name]).max()
        learnt = np.abs(before[name] - wanted[name]).max()
        changed += bool(learnt > 0)
        assert off <= max(0.05 * learnt, 2e-3 * np.abs(wanted[name]).max() + 0.01 * learnt), name
    assert changed == 14  # seven matrices of two layers


def test_the_update_of_a_judge_ships_with_its_recipe_and_card(trained: Path, tmp_path: Path) -> None:
    sources = [{"name": "made", "share": 1}]
    make_judge.ship(
        trained, tmp_path / "judge", {"mixture": {"sources": sources}, "examples": {"made, faithful": 7}}
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(trained)
    wanted = updates_of(trained / "adapter", model.config)
    found = read_updates(tmp_path / "judge" / UPDATE)
    assert found.keys() == wanted.keys()
    for name, each in found.items():
        assert np.allclose(each.up @ each.down, wanted[name].up @ wanted[name].down, atol=0.02), name
    recipe = json.loads((tmp_path / "judge" / "recipe.json").read_text())
    assert make_judge.learnt(recipe) == ["made"] and recipe["updates"] > 0
    card = (tmp_path / "judge" / "README.md").read_text()
    assert "| made | 7 | 0 |" in card and "Nothing was measured yet" in card
    (figure,) = (
        {"set": "s", "n": 9, "left_out": True, "auroc": v, "balanced_accuracy": v} for v in [(0.7, 0.6, 0.8)]
    )
    make_judge.write_card({**recipe, "figures": [figure]}, tmp_path / "judge")
    assert "| s | 9 | 0.700 [0.600, 0.800] |" in (tmp_path / "judge" / "README.md").read_text()


def test_a_judge_learns_from_whole_contexts_and_as_much_of_either_label(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = [
        {
            "id": f"{at}",
            "input": None,
            "context": [f"Bridge {at // 8}."],
            "output": f"It is {at}." if at % 4 else f"It is {at}, and that is too long to be read.",
            "label": "hallucinated" if at % 8 == 7 else "faithful",
            "spans": [],
            "metadata": {"ship": True},
        }
        for at in range(800)
    ]
    with gzip.open(tmp_path / "data" / "made.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    recipe = Recipe.model_validate({"examples": 1, "sources": [{"name": "made", "share": 2}]})
    every = list(make_judge.drawn(recipe, tmp_path / "data", Lexicon.read(None), 60, longest=40))
    ((_, groups),) = every
    assert make_judge.write(iter(every), tmp_path / "drawn.jsonl.gz", 1) == {
        "made, faithful": 32,
        "made, hallucinated": 29,
    }
    drawn = list(load(str(tmp_path / "drawn.jsonl.gz")))
    assert len(drawn) == len({each.id for each in drawn}) == 61
    assert all("too long" not in str(each.output) for each in drawn)
    changes = sum(one.context != two.context for one, two in itertools.pairwise(drawn))
    assert changes == len(groups) - 1, "what is said of one context stands together"


def test_an_update_of_another_model_is_refused(base: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    write_gguf(model, tmp_path / "base.gguf", base, name="base")
    update = {"blk.7.attn_q.weight": Update(np.ones((4, 2), np.float32), np.ones((2, 4), np.float32))}
    with pytest.raises(ModelError, match="has no blk"):
        rewrite(opened(tmp_path / "base.gguf"), tmp_path / "new.gguf", "q8", quiet, update)
    (tmp_path / "no.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read"):
        read_updates(tmp_path / "no.safetensors")
