"""Probes on hidden states: fitted to labels, measured on folds, kept in a folder, asked of one model only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import magistrate
from magistrate.api.judge import judge_sample
from magistrate.api.train import train_probe
from magistrate.engines.base import Capability, Captured, EngineSettings
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.errors import CapabilityError, DatasetError, InputError, OverLength, SpecError
from magistrate.features.hidden_states import pooled
from magistrate.judges import registry
from magistrate.judges.likelihood import prompts
from magistrate.judges.probe import Probe, read_probe, write_probe
from magistrate.training.probe import activations, card_of, digest_of
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Failure, Prompt, Sample, Verdict
from terminal import Call

WIDTH, LAYERS = 6, 3
CAN: frozenset[Capability] = EVERYTHING.union({"capture", "hidden_states"})


def state(prompt: Prompt, text: str) -> Captured:
    """States with noise of the text's own; in the last layer but one, "harbour" moves the first number."""
    noise = np.random.default_rng(abs(hash_of(text))).normal(size=(len(text.split()) + 1, 1 + LAYERS, WIDTH))
    noise[1:, 2, 0] += 20.0 if "harbour" in text else 0.0
    n = len(noise)
    return Captured(np.empty((n, 0)), np.empty((n, 0)), np.zeros(n), noise.astype(np.float32))


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[-6:], "big")


def states_engine(name: str = "open") -> ScriptedEngine:
    """An engine that reads outputs of four words and shows its states."""
    return ScriptedEngine(lambda prompt: [-1.0] * 4, name=name, can=CAN, state=state)


def labelled(n: int, contexts: int | None = None) -> list[Sample]:
    """`n` samples, every other one hallucinated; all outputs have four words."""
    return [
        Sample(
            f"s{at}",
            f"It has {'harbours' if at % 2 else 'streets'} n{at}",
            (f"Town {at % (contexts or n)}.",),
            label=HALLUCINATED if at % 2 else FAITHFUL,
        )
        for at in range(n)
    ]


def rows(samples: Sequence[Sample], path: Path) -> Path:
    """The samples as a file."""
    lines = [
        json.dumps({"id": s.id, "output": s.output, "context": list(s.context), "label": s.label})
        for s in samples
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def data(home: Path, tmp_path: Path) -> Path:
    return rows(labelled(80), tmp_path / "towns.jsonl")


# --- what is read ---------------------------------------------------------------------------------


def test_states_are_those_of_the_output_and_not_of_what_stands_before_it() -> None:
    captured = state(Prompt.of("x"), "It has a harbour")
    assert captured.hidden is not None
    assert pooled(captured, "last") == pytest.approx(captured.hidden[-1])
    assert pooled(captured, "mean") == pytest.approx(captured.hidden[1:].mean(axis=0), abs=1e-6)
    assert pooled(captured, "mean").shape == (1 + LAYERS, WIDTH)
    with pytest.raises(SpecError):
        pooled(captured, "max")  # type: ignore[arg-type]
    bare = Captured(captured.top_tokens, captured.top_logprobs, captured.entropies, None)
    with pytest.raises(InputError, match="hidden=True"):
        pooled(bare, "mean")


def test_states_are_asked_for_once_and_again_where_what_was_kept_is_damaged(tmp_path: Path) -> None:
    engine, samples = states_engine(), labelled(6)
    first, _ = asyncio.run(activations(samples, engine, folder=tmp_path))
    again, _ = asyncio.run(activations(samples, engine, folder=tmp_path))
    assert len(engine.prompts) == 6
    for one, other in zip(first, again, strict=True):
        assert one.sample == other.sample
        assert (one.states["mean"] == other.states["mean"]).all()
    files = sorted(tmp_path.rglob("*.npz"))
    assert len(files) == 6
    files[0].write_bytes(b"no archive")
    files[1].write_bytes(b"")
    asyncio.run(activations(samples, engine, folder=tmp_path))
    assert len(engine.prompts) == 8
    asyncio.run(activations(samples, states_engine("other"), folder=tmp_path))
    assert len(list(tmp_path.rglob("*.npz"))) == 12  # another model's are others


def test_another_context_is_another_key() -> None:
    one, other = (prompts(Sample("a", "x", (text,)))[0] for text in ("Here.", "There."))
    assert digest_of(one, "x") != digest_of(other, "x") != digest_of(other, "y")


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    def script(prompt: Prompt) -> object:
        return OverLength("too long") if "Town 3" in prompt.messages[-1].text else [-1.0] * 4

    engine = ScriptedEngine(script, name="short", can=CAN, state=state)
    found, too_long = asyncio.run(activations(labelled(6), engine, folder=tmp_path))
    assert (len(found), too_long) == (5, 1)


# --- what is fitted -------------------------------------------------------------------------------


def test_the_figures_are_those_of_scikit_learn_on_the_same_folds(data: Path) -> None:
    engine = states_engine()
    found, left_out = train_probe([str(data)], engine, layer=2, pooling="last", folds=4, seed=3)
    samples = labelled(80)
    x = np.stack([state(Prompt.of(""), s.output or "").hidden[-1, 2] for s in samples])  # type: ignore[index]
    truth = np.array([s.label == HALLUCINATED for s in samples])
    scaler = StandardScaler().fit(x.astype(np.float64))
    model = LogisticRegression(C=0.01, class_weight="balanced", max_iter=5000)
    model.fit(scaler.transform(x.astype(np.float64)), truth)
    assert found.file.weights == pytest.approx(model.coef_[0], abs=1e-5)
    wanted = model.decision_function(scaler.transform(x[:1].astype(np.float64)))[0]
    assert found.file.log_odds(x[0]) == pytest.approx(wanted, abs=1e-4)
    assert found.file.figures["auroc"].value == 1.0 and left_out == {}
    assert found.file.contexts == 80


def test_a_layer_that_knows_nothing_is_at_chance_where_it_is_held_out(home: Path, tmp_path: Path) -> None:
    path = rows(labelled(200), tmp_path / "many.jsonl")
    found, _ = train_probe([str(path)], states_engine(), layer=1, strength=10.0)
    auroc = found.file.figures["auroc"]
    assert auroc.low is not None and auroc.high is not None
    assert auroc.low < 0.5 < auroc.high


def test_the_same_labels_and_seed_give_the_same_bytes(data: Path) -> None:
    first, _ = train_probe([str(data)], states_engine(), seed=1)
    second, _ = train_probe([str(data)], states_engine(), seed=1)
    assert first.file.text() == second.file.text()
    assert first.file.layer == 2  # two thirds of the way up


def test_data_that_teach_nothing_are_refused_with_what_is_there(home: Path, tmp_path: Path) -> None:
    few = rows(labelled(20), tmp_path / "few.jsonl")
    with pytest.raises(InputError, match="there are 20: 10 hallucinated in 10 contexts"):
        train_probe([str(few)], states_engine())
    shared = rows(labelled(80, contexts=2), tmp_path / "shared.jsonl")
    with pytest.raises(InputError, match="in 1 context,"):
        train_probe([str(shared)], states_engine())
    bare = rows([Sample("a", "x y z w")], tmp_path / "bare.jsonl")
    with pytest.raises(DatasetError, match="has the label"):
        train_probe([str(bare)], states_engine())


def test_options_that_are_none_and_engines_that_show_nothing_are_refused(data: Path) -> None:
    for options in ({"layer": 9}, {"folds": 1}, {"strength": 0.0}, {"pooling": "max"}):
        with pytest.raises(SpecError):
            train_probe([str(data)], states_engine(), **options)
    closed = ScriptedEngine([], name="closed")
    with pytest.raises(CapabilityError, match="capture, hidden_states"):
        train_probe([str(data)], closed)


def test_what_is_left_out_is_said_by_reason(home: Path, tmp_path: Path) -> None:
    samples = [*labelled(80), Sample("u", "x y z w")]
    path = rows(samples, tmp_path / "some.jsonl")
    with path.open("a", encoding="utf-8") as file:
        file.write('\n{"output": 7\n{"id": "b", "output": " ", "label": "faithful"}')
    _, left_out = train_probe([str(path)], states_engine())
    assert left_out == {"no label": 1, "no output": 1, "cannot be read": 1}


# --- the folder and its judge ---------------------------------------------------------------------


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    found, _ = train_probe([str(data)], states_engine())
    write_probe(found.file, card_of(found.file), tmp_path / "probe", replace=False)
    return tmp_path / "probe"


def test_the_judge_says_what_the_probe_says(folder: Path) -> None:
    judge = registry.judge(f"probe:{folder}")
    known = read_probe(folder)
    for word, label in (("harbours", HALLUCINATED), ("streets", FAITHFUL)):
        sample = Sample("a", f"It has {word} n9", ("Town.",))
        found = judge_sample(sample, judge=judge, model=states_engine())
        assert isinstance(found, Verdict), found
        states = pooled(state(Prompt.of(""), sample.output or ""), "mean")[known.layer]
        assert found.score == pytest.approx(expit(known.log_odds(states)))
        assert found.label == label
    assert judge.info.trained_on == {"towns"}
    assert known.digest in judge.info.prompt


def test_another_model_is_refused_before_anything_is_asked(folder: Path) -> None:
    other = states_engine("other")
    with pytest.raises(SpecError, match=r"fitted to answers of open .*this model is other"):
        judge_sample(labelled(1)[0], judge=Probe(folder), model=other)
    found = asyncio.run(judged_without_check(Probe(folder), other))
    assert isinstance(found, SpecError) and "train a probe for this model" in str(found)
    assert other.prompts == []


async def judged_without_check(judge: Probe, engine: ScriptedEngine) -> object:
    try:
        return await judge.judge(labelled(1)[0], engine)
    except SpecError as error:
        return error


def test_without_a_folder_it_says_how_to_get_one() -> None:
    with pytest.raises(SpecError, match="magistrate train probe"):
        magistrate.judge(output="It has harbours n1", judge="probe", model=states_engine())


def test_an_empty_output_is_no_case_for_it_and_broken_states_are_a_failure(folder: Path) -> None:
    found = judge_sample(Sample("a", " "), judge=Probe(folder), model=states_engine())
    assert isinstance(found, Abstention) and found.reason == "no_output"

    def narrow(prompt: Prompt, text: str) -> Captured:
        whole = state(prompt, text)
        assert whole.hidden is not None
        return Captured(whole.top_tokens, whole.top_logprobs, whole.entropies, whole.hidden[..., :2])

    engine = ScriptedEngine([[-1.0] * 4], name="open", can=CAN, state=narrow)
    broken = judge_sample(labelled(1)[0], judge=Probe(folder), model=engine)
    assert isinstance(broken, Failure) and "states of 6 numbers" in broken.message


def test_the_card_says_what_it_was_fitted_to_and_how_good_it_is(folder: Path) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "towns: 80 samples, 40 hallucinated" in card
    assert "| auroc | 1.000" in card and "open" in card


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: text[:50], "not a complete JSON"),
        (lambda text: "{}", "is not a probe"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "has format 9"),
        (lambda text: text.replace('"spreads": [', '"spreads": [1.0, '), "must have the same length"),
        (lambda text: text.replace('"layer": 2', '"layer": 7'), "layer 7 of 3"),
        (lambda text: text.replace('"intercept":', '"inter": 1, "intercept":'), "inter"),
        (lambda text: text.replace('"intercept":', '"intercept": NaN, "x":'), "NaN"),
    ],
)
def test_a_folder_that_was_spoilt_is_refused(folder: Path, spoil: object, told: str) -> None:
    file = folder / "probe.json"
    file.write_text(spoil(file.read_text()), encoding="utf-8")  # type: ignore[operator]
    with pytest.raises(SpecError, match=told):
        Probe(folder)


def test_nothing_but_a_probe_is_ever_replaced(folder: Path, tmp_path: Path) -> None:
    made = read_probe(folder)
    with pytest.raises(SpecError, match="--force"):
        write_probe(made, "", folder)
    write_probe(made, "", folder, replace=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(SpecError, match="contains no probe"):
        write_probe(made, "", mine, replace=True)
    assert (mine / "thesis.txt").is_file()
    assert read_probe(folder).text() == made.text()


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def on_scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's model is the scripted one."""
    asked: list[bool] = []

    def opened(model: str, settings: EngineSettings) -> ScriptedEngine:
        asked.append(settings.hidden_states)
        assert settings.hidden_states
        return states_engine()

    monkeypatch.setattr("magistrate.engines.registry._opened", opened)


@pytest.mark.usefixtures("on_scripted")
def test_the_command_writes_a_folder_that_judges(data: Path, call: Call) -> None:
    done = call("train", "probe", "--data", data, "--to", "my-probe")
    assert done.code == 0, done.err
    assert "layer 2 of 3 of open, mean, fitted to 80 samples of towns" in done.out
    assert "--judge probe:my-probe" in done.out.replace("\n", "")
    assert max(map(len, done.out.splitlines()[:-1])) <= 80
    judged = call("judge", "--output", "It has harbours n1", "--judge", "probe:my-probe")
    assert judged.code == 0 and "hallucinated" in judged.out
    again = call("train", "probe", "--data", data, "--to", "my-probe")
    assert again.code == 2 and "--force" in again.err


@pytest.mark.usefixtures("on_scripted")
def test_the_command_speaks_json_and_refuses_what_it_cannot_use(data: Path, call: Call) -> None:
    done = call("train", "probe", "--data", data, "--json")
    said = json.loads(done.out)
    assert said["figures"]["auroc"]["value"] == 1.0 and said["folder"] is None and "weights" not in said
    assert call("train", "probe").code == 2
    assert call("train", "probe", "--data", "nowhere.csv").code == 2
    assert call("train", "probe", "--data", data, "--layer", 12).code == 2
