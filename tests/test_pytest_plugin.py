"""The pytest plugin as others use it: in suites of their own, also with pytest-xdist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from magistrate import Claim, Failure, Sample, ScriptedEngine, Span, Verdict, classifier
from magistrate.errors import DatasetError, EngineError, SpecError
from magistrate.testing import Judging, NoVerdict, assert_faithful, case_ids, described
from magistrate.types import Abstention

pytest_plugins = ["pytester"]

# A conftest.py whose engine comes by the package's own way to engines, counts how often, and answers by word.
CONFTEST = """
    import os
    from pathlib import Path
    import pytest
    import magistrate.engines.embedded.engine
    from magistrate import ScriptedEngine
    from magistrate.errors import EngineError

    def by_word(prompt):
        (output,) = (part.text for part in prompt.data() if part.name == "output")
        if "break" in output:
            return EngineError("the engine <broke>")
        return {"faithful": 0.9, "hallucinated": 0.1} if "true" in output else {"hallucinated": 1.0}

    def made(*args, **options):
        with Path("loaded.txt").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        return ScriptedEngine(by_word, name="script")

    magistrate.engines.embedded.engine.LocalEngine = made
"""
ROWS = [
    {"id": "one", "output": "true, it is old", "context": "It is old."},
    {"id": "a/b::[c] é", "output": "it is new", "context": "It is old."},
    {"id": "three", "output": "true, too", "context": "It is old."},
]


INI = "[pytest]\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = error\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with its own conftest.py and a data set, run strictly."""
    monkeypatch.setenv("MAGISTRATE_HOME", str(pytester.path / "home"))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")  # it takes seconds to import
    pytester.makeconftest(CONFTEST)
    pytester.makeini(f"{INI}magistrate_judge = faithfulness\n")
    (pytester.path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return pytester


def loaded(suite: pytest.Pytester) -> list[str]:
    """The processes that loaded an engine, once for each time."""
    file = suite.path / "loaded.txt"
    return file.read_text().split() if file.exists() else []


# --- assert_faithful ------------------------------------------------------------------------------


def engine_of(*answers: object) -> ScriptedEngine:
    return ScriptedEngine(list(answers), name="script")  # type: ignore[arg-type]


def test_a_faithful_output_passes_and_answers_the_verdict() -> None:
    verdict = assert_faithful(
        "It is old.", "It is 90 years old.", model=engine_of({"faithful": 1.0}), judge="faithfulness"
    )
    assert (verdict.label, verdict.score) == ("faithful", 0.0)


def test_a_hallucinated_output_fails_with_label_score_and_probability() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_faithful(
            "It is new.",
            ["It is old."],
            input="How old?",
            model=engine_of({"hallucinated": 0.75, "faithful": 0.25}),
            judge="faithfulness",
        )
    told = str(caught.value)
    assert told.startswith("faithfulness says hallucinated (score 0.750, probability 0.750)")
    assert "input: How old?\ncontext: It is old.\noutput: It is new." in told


def test_what_has_no_verdict_is_an_error_and_no_pass() -> None:
    for on_failure, kind in (("error", NoVerdict), ("fail", AssertionError)):
        with pytest.raises(kind, match=r"no verdict: failed \(engine_error\): EngineError: gone"):
            assert_faithful(
                "x",
                "y",
                model=engine_of(EngineError("gone")),
                on_failure=on_failure,  # type: ignore[arg-type]
                judge="faithfulness",
            )
    with pytest.raises(NoVerdict, match=r"abstained \(no_context\)") as caught:
        assert_faithful("x", model=engine_of(), judge="faithfulness")
    assert isinstance(caught.value.outcome, Abstention)


def test_every_claim_is_shown_with_both_quotes_and_nothing_moves_the_cursor() -> None:
    sample = Sample("s1", "It is new\x1b[2J and blue.", ("It is old.", "It is red."))
    claims = (
        Claim("contradiction", Span(0, 9), Span(0, 10), 1, "new is not old", 0.8, "It is new", "It is red."),
        Claim("unsupported", Span(10, 20), None, None, "", None, "and blue", None),
    )
    told = described(sample, Verdict("s1", "rubric", "hallucinated", 0.9, None, "because", claims=claims))
    assert "rubric says hallucinated (score 0.900, probability unknown)" in told
    assert (
        "claim 1: contradiction, probability 0.800\n  output: “It is new”\n  context 2: “It is red.”" in told
    )
    assert "  reasoning: new is not old" in told and "sample: s1" in told and "because: because" in told
    assert "claim 2: unsupported\n  output: “and blue”\n  context: nothing quoted" in told
    assert "\x1b" not in told and "␛[2J" in told
    assert "(100000 characters)" in described(
        Sample("s", "x" * 100_000), Failure("s", "j", "timeout", "slow")
    )


def test_what_could_never_pass_is_refused() -> None:
    tone = classifier("tone", "{{ output }}\n{{ reply }}", {"polite": 0, "rude": 1})
    with pytest.raises(SpecError, match="has no label 'faithful'"):
        assert_faithful("x", "y", judge=tone, model=engine_of())
    with pytest.raises(SpecError, match="on_failure is 'error' or 'fail', got 'skip'"):
        assert_faithful("x", "y", model=engine_of(), on_failure="skip", judge="faithfulness")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="either a sample or texts"):
        assert_faithful(Sample("s", "x"), "y", model=engine_of(), judge="faithfulness")
    with pytest.raises(DatasetError, match="cannot be judged"):
        assert_faithful(None, "y", model=engine_of(), judge="faithfulness")  # type: ignore[arg-type]


def test_a_judging_is_called_for_verdicts_of_any_label() -> None:
    tone = classifier("tone", "{{ output }}\n{{ reply }}", {"polite": 0, "rude": 1})
    assert Judging(tone, engine_of({"rude": 0.9, "polite": 0.1}))("You fool.").label == "rude"


def test_a_judging_that_has_no_verdict_says_why_unless_the_outcome_is_asked_for() -> None:
    tone = classifier("tone", "{{ output }}\n{{ reply }}", {"polite": 0, "rude": 1})
    judging = Judging(tone, engine_of(*[EngineError("gone")] * 3))
    with pytest.raises(NoVerdict, match=r"no verdict: failed \(engine_error\): EngineError: gone") as caught:
        judging("You fool.")
    assert isinstance(caught.value.outcome, Failure)
    with pytest.raises(AssertionError, match="no verdict"):
        judging("You fool.", on_failure="fail")
    with pytest.raises(SpecError, match="on_failure is 'error' or 'fail'"):
        judging("You fool.", on_failure="skip")  # type: ignore[arg-type]
    assert isinstance(judging.outcome("You fool."), Failure)


def test_ids_of_cases_hold_nothing_that_runners_read() -> None:
    samples = [Sample(each, "x") for each in ("a/b::[c] é", "...", "\x1b[0m", "日本-1", "")]
    assert case_ids(samples) == ["a-b-c-é", "...", "0m", "日本-1", "sample"]


# --- in suites ------------------------------------------------------------------------------------


def test_the_judge_is_a_fixture_and_a_data_set_becomes_cases(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.magistrate_dataset("rows.jsonl")
        def test_answers(judge, sample):
            judge.assert_faithful(sample)

        @pytest.mark.magistrate_dataset("quickstart", limit=4)
        def test_application(judge, sample):
            judge.assert_faithful("true " + sample.input, context=sample.context, input=sample.input)

        def test_outcome(judge):
            assert judge("it is new", context="It is old.").label == "hallucinated"
        """
    )
    done = suite.runpytest_subprocess("-v")
    done.assert_outcomes(passed=7, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*::test_answers[[]one[]] PASSED*",
            "*::test_answers[[]a-b-c-*[]] FAILED*",
            "*faithfulness says hallucinated (score 1.000, probability 1.000)",
            "*sample: a/b::*",
            "*output: it is new",
        ]
    )
    assert "def assert_faithful" not in done.stdout.str()  # the test's own line is shown, not ours
    assert len(loaded(suite)) == 1


@pytest.mark.full
def test_a_judge_that_asks_no_engine_loads_none(suite: pytest.Pytester) -> None:
    suite.makeini(INI)
    suite.makepyfile(
        """
        def test_default(judge):
            verdict = judge("It is old.", context="It is old.")
            assert (verdict.judge, verdict.label) == ("auto", "faithful")
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=1)
    assert loaded(suite) == []


@pytest.mark.full
def test_questions_without_outputs_become_cases(suite: pytest.Pytester) -> None:
    (suite.path / "questions.jsonl").write_text('{"question": "How old?", "context": "It is old."}\n')
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.magistrate_dataset("questions.jsonl", need_output=False)
        def test_application(judge, sample):
            judge.assert_faithful("true: " + sample.input, context=sample.context, input=sample.input)
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=1)


def test_failures_and_abstentions_are_not_green(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        def test_failure(judge):
            judge.assert_faithful("break", context="x")

        def test_abstention(judge):
            judge.assert_faithful("true")

        def test_label(judge):
            assert judge("break", context="x").label == "hallucinated"
        """
    )
    done = suite.runpytest_subprocess()
    done.assert_outcomes(failed=3)
    assert done.stdout.str().count("E       magistrate.errors.NoVerdict: faithfulness has no verdict") == 3
    assert "AttributeError" not in done.stdout.str() and "def __call__" not in done.stdout.str()
    done.stdout.fnmatch_lines(
        ["*NoVerdict: faithfulness has no verdict: failed (engine_error)*the engine <broke>*"]
    )
    done.stdout.fnmatch_lines(["*NoVerdict: faithfulness has no verdict: abstained (no_context)*"])


@pytest.mark.full
def test_judge_and_model_come_from_the_command_line_then_the_ini_file(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nmagistrate_judge = faithfulness:permute=true\nmagistrate_model = mine.gguf\n")
    suite.makeconftest(CONFTEST.replace("file.write(f", 'file.write(f"{args[0]} " + f'))
    suite.makepyfile(
        "def test_it(judge):\n    print('JUDGE', judge.judge.info.name)\n    judge('x', context='y')"
    )
    suite.runpytest_subprocess("-s").stdout.fnmatch_lines(["*JUDGE faithfulness:permute=true*"])
    said = suite.runpytest_subprocess(
        "-s", "--magistrate-judge", "relevance", "--magistrate-model", "other.gguf"
    )
    said.stdout.fnmatch_lines(["*JUDGE relevance*"])
    assert loaded(suite)[::2] == ["mine.gguf", "other.gguf"]


@pytest.mark.full
def test_an_engine_of_ones_own_replaces_the_fixture(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from magistrate import ScriptedEngine

        @pytest.fixture(scope="session")
        def magistrate_engine():
            return ScriptedEngine(lambda prompt: {"faithful": 1.0}, name="mine")

        def test_it(judge):
            assert judge.assert_faithful("x", context="y").label == "faithful"
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=1)
    assert loaded(suite) == []


LESS = [
    ("'rows.jsonl'", "def test_it(judge): pass", "needs the argument 'sample'"),
    ("'no.jsonl'", "def test_it(sample): pass", "no.jsonl"),
    ("'bad.jsonl'", "def test_it(sample): pass", "bad.jsonl:2: not JSON"),
    ("'empty.jsonl'", "def test_it(sample): pass", "empty.jsonl has no samples"),
    (
        "'rows.jsonl', limt=3",
        "def test_it(sample): pass",
        "no option 'limt' (did you mean 'limit'?); known: limit",
    ),
    (
        "'rows.jsonl', mapping={'output': 'said'}",
        "def test_it(sample): pass",
        "no column 'said', given by mapping",
    ),
    (
        "'rows.jsonl', mapping={'outpt': 'said'}",
        "def test_it(sample): pass",
        "unknown field 'outpt' in mapping (did",
    ),
    ("'rows.jsonl', balance='label'", "def test_it(sample): pass", "balance"),
    ("'bare.jsonl'", "def test_it(sample): pass", 'give its column with mapping={"output": "COLUMN"}'),
    ("", "def test_it(sample): pass", "needs one data set, got 0"),
]


@pytest.mark.full
def test_a_data_set_that_would_test_less_than_it_says_ends_the_collection(suite: pytest.Pytester) -> None:
    (suite.path / "bad.jsonl").write_text(json.dumps(ROWS[0]) + "\n{broken\n")
    (suite.path / "empty.jsonl").write_text("")
    (suite.path / "bare.jsonl").write_text('{"said": "it is old"}\n')
    files = {
        f"test_less_{number}": f"import pytest\n@pytest.mark.magistrate_dataset({marker})\n{test}\n"
        for number, (marker, test, _) in enumerate(LESS)
    }
    suite.makepyfile(**files)
    done = suite.runpytest_subprocess()
    done.assert_outcomes(errors=len(LESS))
    told = re.split(r"_+ ERROR collecting test_less_\d+\.py _+", done.stdout.str())[1:]
    for (marker, _, said), error in zip(LESS, told, strict=True):
        assert said in error and "--map" not in error, marker


@pytest.mark.full
def test_a_file_stands_beside_the_test_or_below_the_root(suite: pytest.Pytester) -> None:
    folder = suite.mkdir("deep")
    body = "import pytest\n@pytest.mark.magistrate_dataset('{}')\ndef test_it(sample): pass\n"
    (folder / "test_root.py").write_text(body.format("rows.jsonl"))
    (folder / "near.jsonl").write_text(json.dumps(ROWS[0]))
    (folder / "test_near.py").write_text(body.format("near.jsonl"))
    suite.runpytest_subprocess().assert_outcomes(passed=4)


SPREAD = """
    import pytest

    @pytest.mark.magistrate_dataset("quickstart", limit=12)
    def test_answers(judge, sample):
        judge.assert_faithful("true", context=sample.context)

    @pytest.mark.parametrize("number", range(12))
    def test_other(number):
        pass
"""


@pytest.mark.full
def test_with_xdist_and_loadgroup_the_engine_is_loaded_once_in_all(suite: pytest.Pytester) -> None:
    suite.makepyfile(SPREAD)
    done = suite.runpytest_subprocess("-n", "2", "--dist", "loadgroup", "-v")
    done.assert_outcomes(passed=24)
    # From pytest 9.2 on, pytest-xdist 3.8 cannot group anything (pytest-dev/pytest-xdist#1386).
    grouped = "@magistrate" in done.stdout.str()
    assert grouped or pytest.version_tuple >= (9, 2)
    assert len(loaded(suite)) == 1 if grouped else len(loaded(suite)) == len(set(loaded(suite)))


@pytest.mark.full
def test_with_xdist_and_loadfile_the_engine_is_loaded_once_a_file(suite: pytest.Pytester) -> None:
    suite.makepyfile(SPREAD, test_others="def test_it(): pass")
    suite.runpytest_subprocess("-n", "2", "--dist", "loadfile").assert_outcomes(passed=25)
    assert len(loaded(suite)) == 1


@pytest.mark.full
def test_with_xdist_alone_it_is_loaded_once_a_process(suite: pytest.Pytester) -> None:
    suite.makepyfile(SPREAD)
    suite.runpytest_subprocess("-n", "2").assert_outcomes(passed=24)
    assert 1 <= len(loaded(suite)) == len(set(loaded(suite))) <= 2


@pytest.mark.full
def test_a_group_of_ones_own_is_left_alone(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.mark.xdist_group("mine")
        def test_it(judge, request):
            assert [mark.args for mark in request.node.iter_markers("xdist_group")] == [("mine",)]

        def test_ours(judge, request):
            assert [mark.args for mark in request.node.iter_markers("xdist_group")] == [("magistrate",)]

        @pytest.mark.parametrize("judge", ["a judge of one's own"])
        def test_none(request, judge):
            assert not list(request.node.iter_markers("xdist_group"))
        """
    )
    suite.runpytest_subprocess().assert_outcomes(passed=3)


@pytest.mark.full
def test_without_xdist_nothing_is_grouped(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_it(judge, request):\n    assert not list(request.node.iter_markers())")
    suite.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


# --- in suites that do not use it -----------------------------------------------------------------


@pytest.mark.full
def test_a_suite_that_does_not_use_it_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            ours = {name for name in sys.modules if name.startswith("magistrate")}
            plugin = {"magistrate.integrations", "magistrate.integrations.pytest"}
            assert ours == {"magistrate", "magistrate._lazy", "magistrate._version"} | plugin
            heavy = {"numpy", "pydantic", "sklearn", "scipy", "sqlalchemy", "openvino", "rich", "jinja2"}
            assert not heavy & set(sys.modules)
        """
    )
    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_importing_the_plugin_loads_nothing_of_the_package() -> None:
    code = (
        "import sys, pytest, magistrate.integrations.pytest\n"
        "print(*[m for m in sys.modules if 'magistrate' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {
        "magistrate",
        "magistrate._lazy",
        "magistrate._version",
        "magistrate.integrations",
        "magistrate.integrations.pytest",
    }
    assert set(done.stdout.split()) == loaded


@pytest.mark.full
def test_markers_and_options_are_told(pytester: pytest.Pytester) -> None:
    markers = pytester.runpytest_subprocess("--markers")
    markers.stdout.fnmatch_lines(["@pytest.mark.magistrate_dataset(source, *, limit, *"])
    options = pytester.runpytest_subprocess("--help")
    options.stdout.fnmatch_lines(["*--magistrate-judge*", "*--magistrate-model*"])
    options.stdout.fnmatch_lines(["*magistrate_judge (string)*"])
    assert Path(pytester.path).exists()
