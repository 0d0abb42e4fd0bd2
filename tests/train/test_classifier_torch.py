"""Classifiers as other people's libraries save them say here what they say there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from magistrate.detectors.hf_classifier import ClassifierModel
from magistrate.detectors.hf_network import graph_of
from magistrate.errors import ModelError
from magistrate.types import Sample
from test_classifier import WORDS, tokenizer

TEXTS = ("Bern is old and large", "Bern is blue [SEP] wide")


def saved(path: Path, kind: str, **config: Any) -> Any:
    """A tiny random model, as its library writes it."""
    torch.manual_seed(0)
    family = transformers.RobertaConfig if kind.startswith("Roberta") else transformers.BertConfig
    made = family(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
        initializer_range=0.5,
        pad_token_id=0,
        type_vocab_size=1 if kind.startswith("Roberta") else 2,
        id2label={0: "consistent", 1: "hallucinated"},
        label2id={"consistent": 0, "hallucinated": 1},
        **config,
    )
    model = getattr(transformers, kind)(made).eval()
    model.save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return model


def expected(model: Any, classifier: ClassifierModel) -> tuple[np.ndarray, Any]:
    """What torch says of the texts: probabilities `[…]` of the second class, and what was read."""
    (row,), _ = classifier._rows(Sample("s", TEXTS[1], (TEXTS[0],)))
    given = {name: torch.tensor([list(row.given[name])]) for name in ("input_ids", "attention_mask")}
    if model.config.type_vocab_size > 1:
        given["token_type_ids"] = torch.tensor([list(row.given["token_type_ids"])])
    with torch.no_grad():
        return model(**given).logits[0].softmax(-1)[..., 1].numpy(), row


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "RobertaForSequenceClassification"])
def test_a_model_of_pairs_says_the_same(kind: str, home: Path, tmp_path: Path) -> None:
    model = saved(tmp_path / "mine", kind)
    classifier = ClassifierModel.load(tmp_path / "mine")
    assert classifier.window == (66 if kind.startswith("Bert") else 64)
    wanted, _ = expected(model, classifier)
    found = classifier.scores(Sample("s", TEXTS[1], (TEXTS[0],)))
    assert found.score == pytest.approx(float(wanted), abs=1e-5) and found.tokens == ()


def test_a_model_of_tokens_says_the_same_of_each(home: Path, tmp_path: Path) -> None:
    model = saved(tmp_path / "mine", "BertForTokenClassification")
    classifier = ClassifierModel.load(tmp_path / "mine")
    wanted, row = expected(model, classifier)
    found = classifier.scores(Sample("s", TEXTS[1], (TEXTS[0],)))
    assert [share for *_, share in found.tokens] == pytest.approx(wanted[row.begin : row.end], abs=1e-5)
    assert "".join(TEXTS[1][start:end] for start, end, _ in found.tokens) == TEXTS[1].replace(" ", "")


def test_weights_are_converted_once(home: Path, tmp_path: Path) -> None:
    saved(tmp_path / "mine", "BertForSequenceClassification")
    made = graph_of(tmp_path / "mine")
    assert made.is_relative_to(home / "models")
    time = made.stat().st_mtime_ns
    saved(tmp_path / "twin", "BertForSequenceClassification")
    assert graph_of(tmp_path / "twin") == made and made.stat().st_mtime_ns == time


def test_another_kind_of_model_is_refused(home: Path, tmp_path: Path) -> None:
    saved(tmp_path / "mine", "BertForMaskedLM")
    with pytest.raises(ModelError, match=r"BertForMaskedLM.*ForSequenceClassification"):
        graph_of(tmp_path / "mine")
    assert not list((home / "models").glob("classifier*"))


def test_an_onnx_file_is_read_as_it_is(home: Path, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    saved(tmp_path / "mine", "BertForSequenceClassification")
    (tmp_path / "mine" / "model.safetensors").unlink()
    table = np.random.default_rng(0).normal(size=(len(WORDS), 2)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["each"]),
            helper.make_node("ReduceMean", ["each"], ["logits"], axes=[1], keepdims=0),
        ],
        "counts",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(tmp_path / "mine" / "model.onnx"))
    classifier = ClassifierModel.load(tmp_path / "mine")
    (row,), _ = classifier._rows(Sample("s", TEXTS[1], (TEXTS[0],)))
    logits = table[list(row.given["input_ids"])].mean(0)
    wanted = 1 / (1 + np.exp(logits[0] - logits[1]))
    assert classifier.scores(Sample("s", TEXTS[1], (TEXTS[0],))).score == pytest.approx(wanted, abs=1e-6)
