"""`magistrate judges`: looking at judges, beginning one, trying it, and judges of other packages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import magistrate
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineError
from magistrate.judges import judge_from_file, registry
from magistrate.types import Verdict
from terminal import Call, Done

INSTALLED = sorted(entry.name for entry in entry_points(group=registry.JUDGES))
RATED = '{"reasons":["it says where"],"rating":4}'


@pytest.fixture
def call(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`magistrate judges`, in a folder of its own, with 80 columns and no model."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *words: call("judges", *words)


Script = Callable[[list[Any]], ScriptedEngine]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Lets a list of answers be the model of every command."""

    def answering(answers: list[Any]) -> ScriptedEngine:
        engine = ScriptedEngine(answers)
        monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: engine)
        return engine

    return answering


def samples(*rows: dict[str, Any]) -> str:
    Path("samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return "samples.jsonl"


# --- list and show ------------------------------------------------------------------------------


def test_every_judge_is_listed_with_and_without_the_word(call: Call) -> None:
    done = call()
    assert done.code == 0
    assert done.width <= 80
    for name in INSTALLED:
        assert any(line.startswith(f"{name}@") for line in done.out.splitlines())
    assert "judges trained the same way without the set's family" in " ".join(done.out.split())
    assert call("list") == done
    assert "object at 0x" not in done.out


def test_the_list_for_machines_has_every_fact(call: Call) -> None:
    listed = {each["name"]: each for each in call("--json").data}
    assert sorted(listed) == INSTALLED
    assert listed == {each["name"]: each for each in call("list", "--json").data}
    facts = listed["faithfulness"]
    assert facts["scores"] == {"faithful": 0, "hallucinated": 1}
    assert facts["input_schema"]["required"] == ["context", "output"]
    assert facts["options"] == {"explain": "none", "permute": False, "prior": "none", "threshold": None}
    assert listed["windows"]["options"]["of"].startswith("faithfulness@")
    assert listed["rubric"]["options"]["flag"] == "contradiction+unsupported"


@pytest.mark.parametrize("name", INSTALLED)
def test_a_judge_is_shown(name: str, call: Call) -> None:
    info = registry.judge(name).info
    done = call("show", name)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{name}@{info.version}  ")
    assert done.width <= 80
    for words in ("labels", "inputs", "needs", "long", "options", info.prompt, info.constraint, *info.labels):
        assert words in done.out
    data = call("show", name, "--json").data
    assert data["input_schema"] == info.describe()["input_schema"]
    assert (data["name"], data["version"], data["prompt"]) == (name, info.version, info.prompt)


def test_for_machines_can_be_said_before_the_name(call: Call) -> None:
    assert call("--json", "novelty").data == call("novelty", "--json").data


def test_what_is_shown_has_scores_answers_and_what_is_required(call: Call) -> None:
    lines = [line.split() for line in call("show", "relevance").out.splitlines()]
    assert ["labels", "relevant", "score", "1", "answered", "by", "Yes", "yes", "YES"] in lines
    assert ["direction", "maximize:", "a", "high", "score", "is", "good"] in lines
    assert ["inputs", "input,", "output"] in lines
    assert "inputs      context, messages?, input?, output" in call("show", "faithfulness").out


def test_options_are_shown_as_they_are_set(call: Call) -> None:
    done = call("show", "faithfulness:explain=after,threshold=0.7")
    assert "explain=after  permute=false  prior=none  threshold=0.7" in done.out
    assert "needs       choose, constraints, generate" in done.out
    assert call("show", "faithfulness:explain=after", "--json").data["options"]["explain"] == "after"


def test_a_rule_is_shown(call: Call) -> None:
    call("new", "help", "--kind", "schema")
    done = call("show", "help.yaml")
    assert "helpful if rating is at least 4, on a scale of 1 to 5; else unhelpful" in done.out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("faithfullness", "did you mean 'faithfulness'"),
        ("faithfulness:prior", "NAME:key=value"),
        ("nothere.yaml", "cannot read nothere.yaml: No such file"),
        (".", "unknown judge '.'"),
    ],
)
@pytest.mark.parametrize("word", ["show", "try"])
def test_what_is_not_there_is_explained(word: str, name: str, message: str, call: Call) -> None:
    done = call(word, name)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize("word", ["show", "try"])
def test_a_broken_file_is_told_with_its_line(word: str, call: Call) -> None:
    call("new", "tone")
    path = Path("tone.yaml")
    text = path.read_text().replace("{{ output }}", "{{ outptu }}")
    path.write_text(text)
    line = text[: text.index("outptu")].count("\n") + 1
    done = call(word, "tone.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: tone.yaml, line {line}, prompt: the prompt uses {{{{ outptu }}}}")
    path.write_text("\x1b[2J: [")
    assert "\x1b" not in call(word, "tone.yaml").err


# --- new ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["labels", "schema"])
def test_a_new_judge_works_as_it_is(kind: str, call: Call, script: Script) -> None:
    made = call("new", "my-judge_2", "--kind", kind)
    assert made == Done(0, "wrote my-judge_2.yaml\ntry it: magistrate judges try my-judge_2.yaml\n", "")
    text = Path("my-judge_2.yaml").read_text(encoding="utf-8")
    assert "JUDGE_NAME" not in text
    assert "magistrate judges try my-judge_2.yaml" in text
    assert max(map(len, text.splitlines())) <= 80
    assert judge_from_file(Path("my-judge_2.yaml")).info.name == "my-judge_2"
    script([{"cited": 0.8, "uncited": 0.2} if kind == "labels" else RATED])
    tried = call("try", "my-judge_2.yaml")
    assert tried.code == 0
    assert ("── my-judge_2  cited  score .20" if kind == "labels" else "helpful  score .75") in tried.out


def test_a_new_courtroom_works_as_it_is(call: Call, script: Script) -> None:
    assert call("new", "courtroom", "--json").data["kind"] == "courtroom"
    text = Path("courtroom.yaml").read_text(encoding="utf-8")
    assert "JUDGE_NAME" not in text and max(map(len, text.splitlines())) <= 80
    assert "a strict prosecutor" in call("show", "courtroom.yaml").out
    script([{"faithful": 0.8, "hallucinated": 0.2}, '{"charges": []}'])
    tried = call("try", "courtroom.yaml")
    assert tried.code == 0 and "there was no charge" in tried.out


def test_new_for_machines_and_elsewhere(call: Call) -> None:
    Path("a folder").mkdir()
    done = call("new", "tone", "--to", "a folder", "--json")
    path = "a folder/tone.yaml"
    assert done.data == {"path": path, "kind": "labels", "next": f"magistrate judges try '{path}'"}
    assert Path(path).exists()
    assert "there is no folder nothere" in call("new", "tone", "--to", "nothere").err
    Path("file").touch()
    assert call("new", "tone", "--to", "file").code == 2


def test_nothing_is_replaced_unasked(call: Call) -> None:
    Path("tone.yaml").write_text("mine")
    done = call("new", "tone")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: tone.yaml already exists; use --force to replace it\n"
    assert Path("tone.yaml").read_text() == "mine"
    assert call("new", "tone", "--force").code == 0
    assert judge_from_file(Path("tone.yaml"))


@pytest.mark.parametrize("there", ["link", "dangling link", "folder"])
def test_a_link_is_not_followed(there: str, call: Call, tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    if there == "folder":
        Path("tone.yaml").mkdir()
    else:
        Path("tone.yaml").symlink_to(outside)
    if there == "link":
        outside.write_text("mine")
    assert call("new", "tone").code == 2
    forced = call("new", "tone", "--force")
    assert forced.code == (2 if there == "folder" else 0)
    assert outside.exists() == (there == "link")
    if there == "link":
        assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "a\\b", "/tmp/x", "", ".", "-x", "7", "a b", "a.yaml", "a\nb", "é", "x" * 100, "\x1b[2J"],
)
def test_a_name_that_is_none_writes_nothing(name: str, call: Call, tmp_path: Path) -> None:
    done = call("new", "--force", "--", name)
    assert (done.code, done.out) == (2, "")
    assert "a judge's name starts with a letter, followed by letters, digits, - and _" in done.err
    assert "\x1b" not in done.err
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


# --- try ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["labels", "schema"])
def test_a_new_judge_is_tried_on_the_embedded_model(kind: str, call: Call, model_folder: Path) -> None:
    assert call("new", "mine", "--kind", kind).code == 0
    row = {"id": "a", "input": "When?", "context": "It opens at nine.", "output": "At nine, says the text."}
    done = call("try", "mine.yaml", "--sample", samples(row), "--model", model_folder, "--json")
    assert done.code == 0
    outcome = done.data["outcome"]
    assert (outcome["kind"], outcome["judge"], outcome["sample_id"]) == ("verdict", "mine", "a")
    (step,) = outcome["steps"]
    assert step["verb"] == ("choose" if kind == "labels" else "generate")
    assert "At nine, says the text." in step["prompt"][-1][1]


def test_all_of_one_judgement_is_shown(call: Call, script: Script) -> None:
    call("new", "tone")
    script([{"cited": 0.3, "uncited": 0.6}])
    done = call("try", "tone.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.width <= 80
    for words in (
        "judge   tone@1",
        "model   script",
        "sample  qs-001 of quickstart, with input, context, output",
        "  cited    score 0  answered by Yes yes YES",
        "── tone  uncited  score .67  probability .67  mass .90",
        "step 1: choose",
        "system\n      You check whether",
        "Reply with one word,",
        '"best": "uncited"',
    ):
        assert words in done.out


def test_the_schema_of_what_is_written_is_shown(call: Call, script: Script) -> None:
    call("new", "help", "--kind", "schema")
    script([RATED, RATED])
    done = call("try", "help.yaml")
    assert done.width <= 80
    assert '        "minItems": 1,' in done.out
    assert "helpful if rating is at least 4" in done.out
    assert "it says where" in done.out
    data = call("try", "help.yaml", "--json").data
    assert set(data) == {"judge", "asks", "sample", "outcome"}
    assert data["asks"]["schema"]["required"] == ["reasons", "rating"]
    assert data["outcome"]["details"]["written"] == json.loads(RATED)


def test_letters_meanings_and_the_sentence_are_shown(call: Call, script: Script) -> None:
    Path("tone.yaml").write_text(
        "inputs: [output]\nlabels:\n  polite: 0\n  rude: [1, insults]\nexplain: after\n"
        "prompt: |\n  {{ output }}\n  {{ reply }}\n"
    )
    script([{"polite": 1.0}, "it thanks", {"rude": 1.0}])
    done = call("try", "tone.yaml")
    assert "  polite  score 0  answered by A" in done.out
    assert "  rude    score 1  answered by B  insults" in done.out
    assert '"pattern": "[^' in done.out
    assert "explanation, which contradicts the label\n  it thanks" in done.out
    assert "step 3: choose" in done.out


def test_a_judge_within_another_is_shown_too(call: Call, script: Script) -> None:
    script([{"faithful": 1.0}, {"faithful": 1.0}])
    row = {"output": "It closes at five.", "context": "The hall closes at five o'clock."}
    for name in ("windows", "sentences"):
        assert "faithful      score 0  answered by Yes" in call("try", name, "--sample", samples(row)).out


def test_a_constraint_that_depends_on_the_sample_is_said_to(call: Call, script: Script) -> None:
    script(['{"candidates":[]}'])
    row = {"output": "It closes at five.", "context": "The hall closes at five o'clock."}
    assert "built from the texts of each sample" in call("try", "candidates", "--sample", samples(row)).out


@pytest.mark.parametrize(
    ("row", "reason", "message"),
    [
        ({"context": "c"}, "no_output", "the output is empty"),
        ({"output": "o"}, "no_context", "needs a context, but the sample has none"),
        ({"output": "o", "context": "c"}, "missing_input", "but the sample has none"),
    ],
)
def test_an_abstention_says_why_and_is_no_success(
    row: dict[str, Any], reason: str, message: str, call: Call, script: Script
) -> None:
    script([])
    call("new", "tone")
    path = Path("tone.yaml")
    text = path.read_text().replace("[context, input?, output]", "[context, output, lang]")
    text = text.replace("{% if input %}\n  Question: {{ input }}\n\n  {% endif %}", "{{ lang }}")
    path.write_text(text)
    done = call("try", "tone.yaml", "--sample", samples(row))
    assert done.code == 3
    assert f"abstained: {reason}" in done.out
    assert message in done.out
    assert call("try", "tone.yaml", "--sample", "samples.jsonl", "--json").data["outcome"]["reason"] == reason


def test_a_failure_exits_with_3_and_shows_how_far_it_came(call: Call, script: Script) -> None:
    script([EngineError("it broke")])
    done = call("try", "relevance")
    assert done.code == 3
    assert "failed: engine_error" in done.out
    assert "it broke" in done.out
    assert "step 1: choose" in done.out


def test_without_the_model_it_says_what_to_do(call: Call) -> None:
    done = call("try", "relevance")
    assert (done.code, done.out) == (3, "")
    assert "magistrate models pull" in done.err


def test_the_first_sample_that_can_be_read_is_taken(call: Call, script: Script) -> None:
    script([{"relevant": 1.0}] * 3)
    Path("s.csv").write_text("id,input,output,lang\nx,i,o,en\ny,i,o,de\n")
    done = call("try", "relevance", "--sample", "s.csv")
    assert "sample  x of s, with input, output, metadata.lang" in done.out
    Path("s.json").write_text(json.dumps([{"id": "z", "input": "i", "output": "o"}]))
    assert "sample  z of s" in call("try", "relevance", "--sample", "s.json").out
    Path("s.jsonl").write_text('no\n{"output": 3}\n{"id": "w", "input": "i", "output": "o"}\n')
    done = call("try", "relevance", "--sample", "s.jsonl")
    assert "sample  w of s" in done.out
    assert done.err.startswith("skipped 2 before it that cannot be read: s.jsonl:1: not JSON")


@pytest.mark.parametrize("content", [None, "", "no\n"])
def test_a_file_without_a_sample_is_explained(content: str | None, call: Call, script: Script) -> None:
    script([])
    if content is not None:
        Path("s.jsonl").write_text(content)
    done = call("try", "relevance", "--sample", "s.jsonl")
    assert (done.code, done.out) == (2, "")
    assert "s.jsonl" in done.err


def test_a_sample_goes_to_the_judge_whole(call: Call, script: Script) -> None:
    """Also what a command line cannot say: metadata, alternatives, what was expected, a conversation."""
    engine = script([{"a": 1.0}])
    Path("all.yaml").write_text(
        "inputs: [output, expected, alternatives, messages, lang]\nlabels: {a: 0, b: 1}\nprompt: |\n"
        "  {{ expected }} {{ alternatives }} {{ messages }} {{ lang }} {{ output }}\n  {{ reply }}\n"
    )
    row = {"output": "o", "expected": "e", "alternatives": ["p"], "lang": "en"}
    row["messages"] = [{"role": "user", "content": "u"}]
    assert call("try", "all.yaml", "--sample", samples(row)).code == 0
    (prompt,) = engine.prompts
    assert prompt.messages[0].text.startswith("e [1] p [1] user: u en o\n")


def test_hostile_texts_do_nothing_to_the_terminal(call: Call, script: Script) -> None:
    script([{"a": 1.0}])
    Path("h.yaml").write_text(
        'summary: "\\e[2J[bold]"\ninputs: [output]\nlabels: {a: [0, "\\e[31m"], "b\\e[0m": [1, x]}\n'
        'prompt: "{{ output }} {{ reply }}"\n'
    )
    row = {"id": "\x1b[2J", "output": "\x1b]0;x\x07[bold]", "meta\x1b": "y"}
    for done in (call("show", "h.yaml"), call("try", "h.yaml", "--sample", samples(row))):
        assert done.code == 0
        assert not set(done.out + done.err) & {"\x1b", "\x07"}
        assert "[bold]" in done.out


# --- judges of other packages -------------------------------------------------------------------

CIVIL = """\
summary: is it civil
inputs: [output]
labels: {civil: 0, uncivil: 1}
prompt: |
  {{ output }}
  {{ reply }}
"""
CODE = """\
from dataclasses import dataclass
from magistrate.judges import Judge, JudgeInfo, judge_from_package
from magistrate.types import Verdict

civil = judge_from_package("courtesy", "judges/civil.yaml")


class Short:
    info = JudgeInfo("short", summary="code alone", labels=("short", "long"), kind="code")

    async def judge(self, sample, engine):
        return Verdict(sample.id, "short", "short" if len(sample.output) < 99 else "long", 0.0)


short = Short()


@dataclass(frozen=True)
class Twice:
    of: Judge
    name: str = "twice"
    times: int = 2

    @property
    def info(self):
        return JudgeInfo(self.name)

    async def judge(self, sample, engine):
        return await self.of.judge(sample, engine)
"""
POINTS = """\
[magistrate.judges]
civil = courtesy:civil
short = courtesy:short
twice = courtesy:Twice
gone = courtesy:gone
absent = courtesy_absent:judge
"""


@pytest.fixture
def courtesy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package, installed: a judge from its file, one of code, one that takes another, two broken."""
    site = tmp_path / "site"
    (site / "courtesy" / "judges").mkdir(parents=True)
    (site / "courtesy" / "__init__.py").write_text(CODE)
    (site / "courtesy" / "judges" / "civil.yaml").write_text(CIVIL)
    facts = site / "courtesy-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: courtesy\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    registry.judge_entries.cache_clear()
    yield
    registry.judge_entries.cache_clear()
    sys.modules.pop("courtesy", None)


def test_a_judge_of_another_package_is_found_by_its_name(courtesy: None) -> None:
    engine = ScriptedEngine([{"civil": 0.9, "uncivil": 0.1}])
    found = magistrate.judge(output="Thank you.", judge="civil", model=engine)
    assert isinstance(found, Verdict)
    assert (found.judge, found.label) == ("civil", "civil")
    assert registry.judge("civil:permute=true").info.name == "civil:permute=true"
    twice = registry.judge("twice:of=civil")
    assert registry.spelled(twice) == "twice:of=civil@1"


def test_judges_of_other_packages_are_listed_also_those_that_cannot_be_used(
    call: Call, courtesy: None
) -> None:
    done = call()
    assert (done.code, done.err) == (0, "")
    assert done.width <= 80
    listed = {each["name"]: each for each in call("list", "--json").data}
    assert {"civil", "short", "twice", "gone", "absent", *INSTALLED} == set(listed)
    assert listed["civil"]["scores"] == {"civil": 0, "uncivil": 1}
    assert (listed["short"]["kind"], listed["short"]["options"]) == ("code", {})
    assert "needs the option 'of': twice:of=…" in listed["twice"]["error"]
    assert "cannot be loaded" in listed["gone"]["error"]
    assert "No module named 'courtesy_absent'" in listed["absent"]["error"]


def test_judges_of_other_packages_are_shown_and_tried(call: Call, courtesy: None, script: Script) -> None:
    script([{"civil": 0.9, "uncivil": 0.1}])
    assert "runs code, without a model" in call("show", "short").out
    assert "of=civil@1  times=2" in call("show", "twice:of=civil").out
    assert "── civil  civil  score .10" in call("try", "civil").out
    assert "── short  long" in call("try", "short").out
    assert "cannot be loaded" in call("show", "gone").err
