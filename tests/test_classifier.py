"""A folder with anybody's classifier is a judge: its labels, its windows, its tokens, its errors.

The network here is a tiny OpenVINO graph that knows which words of the second text the first lacks.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magistrate.detectors.hf_classifier import ClassifierModel, meaning
from magistrate.detectors.hf_network import graph_of
from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.none import NONE
from magistrate.errors import InputError, MissingExtra, ModelError, SpecError
from magistrate.judges import registry
from magistrate.judges.hf_classifier import HFClassifier
from magistrate.types import Sample, Verdict
from terminal import Call

VOCABULARY = ("bern", "is", "old", "and", "large", "the", "bridge", "new", "blue", "wide", "a")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *VOCABULARY]
TWO = {"0": "faithful", "1": "hallucinated"}


def tokenizer() -> dict[str, Any]:
    ids = {word: number for number, word in enumerate(WORDS)}

    def special(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    added = [
        {"id": ids[name], "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for name in WORDS[:4]
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("[CLS]", 0), text("A", 0), special("[SEP]", 0)],
            "pair": [
                special("[CLS]", 0),
                text("A", 0),
                special("[SEP]", 0),
                text("B", 1),
                special("[SEP]", 1),
            ],
            "special_tokens": {
                name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")
            },
        },
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": "[UNK]"},
    }


def network(target: Path, *, per_token: bool, classes: int = 2, wrong: float = 5.0) -> None:
    """Logits `wrong` for hallucinated (the last class) where a word is new, -`wrong` where it is not."""
    openvino = import_openvino()
    op = openvino.opset13
    names = ("input_ids", "attention_mask", "token_type_ids")
    ids, mask, types = (op.parameter([-1, -1], np.int64, name=name) for name in names)
    for given, name in zip((ids, mask, types), names, strict=True):
        given.output(0).set_names({name})
    last, first = op.constant(np.array(2)), op.constant(np.array(1))
    same = op.equal(op.unsqueeze(ids, last), op.unsqueeze(ids, first))
    in_first = op.logical_and(
        op.equal(types, op.constant(np.int64(0))), op.equal(mask, op.constant(np.int64(1)))
    )
    known = op.reduce_logical_or(op.logical_and(same, op.unsqueeze(in_first, first)), last, False)
    text = op.logical_and(
        op.equal(types, op.constant(np.int64(1))), op.greater(ids, op.constant(np.int64(3)))
    )
    new = op.convert(op.logical_and(text, op.logical_not(known)), "f32")
    if not per_token:
        new = op.reduce_max(new, first, False)
    logit = (new * op.constant(np.float32(2)) - op.constant(np.float32(1))) * op.constant(np.float32(wrong))
    logit = op.unsqueeze(logit, op.constant(np.array(-1)))
    others = [logit * op.constant(np.float32(-1 / max(classes - 1, 1)))] * (classes - 1)
    answer = op.concat([*others, logit], -1)
    answer.output(0).set_names({"logits"})
    openvino.save_model(openvino.Model([answer], [ids, mask, types]), target)


def folder(
    path: Path,
    labels: dict[str, str] | None = None,
    *,
    per_token: bool = False,
    window: int = 64,
    **config: Any,
) -> Path:
    labels = TWO if labels is None else labels
    path.mkdir(parents=True)
    kind = "BertForTokenClassification" if per_token else "BertForSequenceClassification"
    values = {
        "architectures": [kind],
        "id2label": labels,
        "max_position_embeddings": window,
        "model_type": "bert",
    }
    (path / "config.json").write_text(json.dumps({**values, **config}))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    network(path / "openvino_model.xml", per_token=per_token, classes=len(labels))
    return path


def sample(output: str, *context: str) -> Sample:
    return Sample("s", output, context or ("Bern is old and large",))


def judged(judge: Any, given: Sample) -> Verdict:
    outcome = asyncio.run(judge.judge(given, NONE))
    assert isinstance(outcome, Verdict), outcome
    return outcome


# --- what it says -------------------------------------------------------------------------------------


def test_a_classifier_of_pairs_is_a_judge(tmp_path: Path) -> None:
    judge = registry.judge(f"hf_classifier:{folder(tmp_path / 'mine')}")
    assert judge.info.kind == "code" and judge.info.name == "hf_classifier:mine"
    right, wrong = judged(judge, sample("Bern is old")), judged(judge, sample("Bern is new"))
    assert (right.label, wrong.label) == ("faithful", "hallucinated")
    assert right.score == pytest.approx(1 / (1 + np.exp(10))) and wrong.score == pytest.approx(
        1 - right.score
    )
    assert wrong.probability == wrong.score and wrong.claims == () and "heat" not in wrong.details


def test_the_order_of_the_texts_matters(tmp_path: Path) -> None:
    place = folder(tmp_path / "mine")
    part = sample("Bern is old")
    assert judged(HFClassifier(place), part).label == "faithful"
    assert judged(HFClassifier(place, pair="output_context"), part).label == "hallucinated"


def test_a_classifier_of_tokens_says_where(tmp_path: Path) -> None:
    place = folder(tmp_path / "mine", {"0": "O", "1": "B-hallucination"}, per_token=True)
    verdict = judged(HFClassifier(place), sample("Bern  is new blue, and wide"))
    assert [claim.output_text for claim in verdict.claims] == ["new blue", "wide"]
    for claim in verdict.claims:
        quote = claim.output_quote
        assert "Bern  is new blue, and wide"[quote.start : quote.end] == claim.output_text
    heat = verdict.details["heat"]
    assert heat["text"] == "Bern  is new blue, and wide"
    assert [piece[:2] for piece in heat["pieces"]][:2] == [[0, 4], [6, 8]]
    assert all(heat["low"] <= value <= heat["high"] for _, _, value in heat["pieces"])
    assert verdict.score == max(value for *_, value in heat["pieces"])


@pytest.mark.parametrize("per_token", [False, True])
def test_every_part_of_a_long_context_and_of_a_long_output_is_read(tmp_path: Path, per_token: bool) -> None:
    place = folder(tmp_path / "mine", window=23, per_token=per_token)
    long = "the bridge is a bridge " * 12
    supported = sample("Bern is old", long, "Bern is old", long)
    least = judged(HFClassifier(place), supported)
    assert least.label == "faithful" and least.details["windows"] > 3
    assert judged(HFClassifier(place, over="max"), supported).label == "hallucinated"
    output = "Bern is old and large " * 12
    assert judged(HFClassifier(place), sample(output)).label == "faithful"
    verdict = judged(HFClassifier(place), sample(f"{output} Bern is blue {output}"))
    assert verdict.label == "hallucinated"
    assert [claim.output_text for claim in verdict.claims] == (["blue"] if per_token else [])


def test_special_tokens_in_a_text_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a token [SEP] would end the first text, and what is behind it would be the second.
    classifier, read = ClassifierModel.load(folder(tmp_path / "mine")), list[list[int]]()
    logits = classifier.graph.logits

    def watched(rows: Any) -> Any:
        rows = list(rows)
        read.extend(list(row["input_ids"]) for row in rows)
        return logits(rows)

    monkeypatch.setattr(classifier.graph, "logits", watched)
    classifier.scores(sample("Bern [SEP] is", "Bern [CLS] is [SEP] old"))
    assert [read[0].count(WORDS.index(token)) for token in ("[CLS]", "[SEP]")] == [1, 2]


@pytest.mark.parametrize("text", ["🦉", "\ud800", "Bern\u0000", "伯尔尼很老", "the " * 5000])
def test_any_text_has_a_score(tmp_path: Path, text: str) -> None:
    place = folder(tmp_path / "mine")
    for given in (sample(text), sample("Bern", text)):
        assert 0 <= ClassifierModel.load(place).scores(given).score <= 1


def test_a_text_without_tokens_is_no_verdict(tmp_path: Path) -> None:
    place = folder(tmp_path / "mine")
    with pytest.raises(InputError, match="returns no tokens for the output"):
        ClassifierModel.load(place).scores(sample(" \n "))


# --- labels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [
        (["entailment", "neutral", "contradiction"], (1, 2)),
        (["CONTRADICTION", "ENTAILMENT"], (0,)),
        (["Supported", "Not Supported"], (1,)),
        (["PASS", "FAIL"], (1,)),
        (["hallucination"], (0,)),
    ],
)
def test_names_that_say_it_need_no_option(labels: list[str], wrong: tuple[int, ...]) -> None:
    found = meaning(dict(enumerate(labels)))
    assert (found.classes, found.turned) == (wrong, False)


@pytest.mark.parametrize(
    "labels",
    [["LABEL_0", "LABEL_1"], ["LABEL_0"], ["neutral", "positive"], ["hallucinated", "fail"], ["O", "B-x"]],
)
def test_names_that_do_not_are_an_error_that_lists_them(labels: list[str]) -> None:
    with pytest.raises(SpecError, match=f"{labels[0]}.*positive=NAME.*negative=NAME"):
        meaning(dict(enumerate(labels)), tokens=True)


def test_what_is_named_counts() -> None:
    three = {0: "a", 1: "b", 2: "c"}
    logits = np.log(np.array([[0.2, 0.3, 0.5]]))
    assert meaning(three, positive=("a", "c")).probability(logits) == pytest.approx([0.7])
    assert meaning(three, negative=("a",)).probability(logits) == pytest.approx([0.8])
    one = {0: "LABEL_0"}
    assert meaning(one, negative=("LABEL_0",)).probability(np.array([2.0])) == pytest.approx(
        1 / (1 + np.exp(2))
    )
    assert meaning({0: "consistent"}).probability(np.array([50.0])) == pytest.approx(0)
    for wrong in (
        {"positive": ("d",)},
        {"positive": ("a",), "negative": ("b",)},
        {"positive": ("a", "b", "c")},
    ):
        with pytest.raises(SpecError, match="a, b, c"):
            meaning(three, **wrong)


def test_options_are_written_as_for_any_judge(tmp_path: Path) -> None:
    place = folder(tmp_path / "mine", {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"})
    with pytest.raises(SpecError, match="LABEL_0, LABEL_1, LABEL_2"):
        registry.judge(f"hf_classifier:{place}")
    judge = registry.judge(f"hf_classifier:{place},positive=LABEL_1+LABEL_2,threshold=.9")
    assert judged(judge, sample("Bern is new")).label == "hallucinated"


# --- folders that do not work -------------------------------------------------------------------------


def test_what_a_folder_lacks_is_said(tmp_path: Path) -> None:
    judge = registry.judge("hf_classifier")
    assert "hf_classifier:FOLDER" in judge.info.lacks
    with pytest.raises(SpecError, match=r"nothing does not exist; use hf_classifier:FOLDER"):
        registry.judge(f"hf_classifier:{tmp_path / 'nothing'}")
    place = folder(tmp_path / "mine")
    (place / "openvino_model.xml").unlink()
    (place / "openvino_model.bin").unlink()
    (place / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"has no network.*pytorch_model\.bin may contain code"):
        graph_of(place)
    (place / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"lacks tokenizer\.json"):
        ClassifierModel.load(place)


@pytest.mark.parametrize("config", [{"id2label": ["a", "b"]}, {"id2label": None, "num_labels": "x"}])
def test_classes_that_are_told_wrongly_name_the_file(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"config\.json does not define its classes"):
        ClassifierModel.load(folder(tmp_path / "mine", **config))


def test_torch_weights_without_torch_name_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    place = folder(home / "mine")
    (place / "openvino_model.xml").rename(place / "model.safetensors")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else True)
    with pytest.raises(MissingExtra, match=r"torch.*magistrate\[train\]"):
        graph_of(place)


def test_a_network_of_other_classes_and_one_of_no_numbers_are_errors(tmp_path: Path) -> None:
    place = folder(tmp_path / "mine")
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "id2label": {**TWO, "2": "fail"}}))
    with pytest.raises(ModelError, match="2 classes"):
        ClassifierModel.load(place).scores(sample("Bern"))
    other = folder(tmp_path / "other")
    network(other / "openvino_model.xml", per_token=False, wrong=float("inf"))
    with pytest.raises(ModelError, match="not numbers"):
        ClassifierModel.load(other).scores(sample("Bern"))


def test_another_network_is_another_judge(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(first, second)
    assert HFClassifier(first).info.prompt == HFClassifier(second).info.prompt
    network(second / "openvino_model.xml", per_token=False, wrong=4.0)
    assert HFClassifier(first).info.prompt != HFClassifier(second).info.prompt


def test_the_command_asks_it_and_no_model(home: Path, call: Call) -> None:
    folder(Path("mine"))
    words = ("judge", "--judge", "hf_classifier:mine", "--context", "Bern is old")
    done = call(*words, "--output", "Bern is blue", "--json")
    assert (done.code, done.data["label"]) == (0, "hallucinated")
    assert call(*words, "--output", "Bern is old").code == 0


def test_the_judge_is_not_in_the_way_of_the_function_of_its_name(tmp_path: Path) -> None:
    import magistrate

    registry.judge(f"hf_classifier:{folder(tmp_path / 'mine')}")
    assert callable(magistrate.classifier)
