"""Whatever a server replies, a verdict is exactly what the reply says, or there is none.

Thousands of replies are made of right ones by changing them in known ways: taken back, cut off, with prose or
a second answer beside them, in other languages, of another type, in broken answers. Stand-ins on this machine
give them; they speak the documented protocols.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from magistrate.engines.anthropic import AnthropicEngine, read_options
from magistrate.engines.base import Engine, Option
from magistrate.engines.remote.client import run_on_io_loop
from magistrate.engines.remote.replies import label_named
from magistrate.errors import InvalidOutput
from magistrate.judges import registry
from magistrate.runs.execute import judge_one
from magistrate.types import Outcome, Sample, Verdict
from standins import Standin, engine, ollama_like, running
from tiers import tries

# Every kind of judge that asks a server, and those that ask in another way when they are set so.
JUDGES = (
    *("faithfulness", "faithfulness:permute=true", "faithfulness:explain=before"),
    *("relevance", "context_relevance", "moderation", "hallucination", "hallucination:constrained=false"),
    *("chainpoll:n=1", "rubric:free_stage=false", "rubric", "candidates", "candidates:constrained=false"),
    *("selfcheck:n=1", "semantic_entropy:n=2", "sentences", "windows", "passages", "geval", "correctness"),
    "cascade:first=faithfulness,then=chainpoll",
)
# What these make of replies is held by tests of their own: one reply to all questions decides nothing.
ELSEWHERE = {"pairwise": "test_pairwise.py", "courtroom": "test_courtroom.py"}
# Whether a judge decides by replies of JSON, by named answers, or by both.
FORMS = {
    **dict.fromkeys(("hallucination", "chainpoll", "rubric"), (True,)),
    "candidates": (True, False),
}
SPOKEN = {"choose", "generate", "constraints"}  # what a server without log-probabilities can do
LINE = "in case {} the museum closes at six every day"


def sample(number: int) -> Sample:
    """A sample that every judge can read; its number stands in all that is asked of it."""
    spoken = LINE.format(number)
    return Sample(
        str(number),
        f"{spoken.capitalize()}.",
        (f"{spoken.replace('six', 'five')}.",),
        input=f"{spoken}?",
        expected=f"{spoken.replace('six', 'five')}.",
    )


# --- what is replied -----------------------------------------------------------------------------


@dataclass
class Case:
    """One judgement: `says` changes the text of every right reply, `ships` the answer around it."""

    judge: str
    right: bool
    whole: bool | None  # whether what comes still says the same, and nothing else; None where that is open
    json: bool | None = None  # whether it is replies of JSON that are changed; None for all
    says: Callable[[str, str], str] = lambda text, other: text
    ships: Callable[[Any], Any] = lambda answer: answer
    name: str = "as it is"
    texts: list[str] = field(default_factory=list)


def written(judge: str, right: bool, number: int, asked: str) -> tuple[str, str]:
    """A right reply to a question, and what would be the opposite."""
    if found := re.findall(r"with one (?:word|letter), ([\w, ]+?) or (\w+)\.", asked):
        offered = [*found[-1][0].split(", "), found[-1][1]]
        words = sorted(offered, reverse=right)  # Yes or No, in whatever order they are offered
        return words[0], words[-1]
    quote = LINE.format(number).replace("in case", "In case")
    if "hallucination" in judge:
        texts = [json.dumps({"reasons": ["It is so."], "score": score}) for score in (0, 1)]
    elif '"verdict"' in asked or "chainpoll" in judge:
        words = ("faithful", "hallucinated")
        texts = [json.dumps({"reasoning": "It is so.", "verdict": word}) for word in words]
    elif "rubric" in judge and "claims" in asked:
        claim = {
            "answer_quote": quote,
            "context_quote": quote.replace("In case", "in case").replace("six", "five"),
            "quoted": "statement",
            "reasoning": "It is so.",
        }
        kinds = ("agreement", "contradiction")
        texts = [json.dumps({"claims": [{**claim, "kind": kind}]}) for kind in kinds]
    elif "candidates" in judge:
        texts = [json.dumps({"candidates": [{"reason": "It is so.", "quote": quote}]})] * 2
    else:
        return f"It closes at {next(COUNT)}.", ""
    return (texts[0], texts[1]) if right else (texts[1], texts[0])


COUNT = itertools.count()

# What the deciding reply becomes. `{a}` is the right answer, `{b}` its opposite.
SAME = ("{a}", " {a}\n", "\n\n{a}", "{a}.", '"{a}"', "“{a}”", "'{a}'", "{lower}", "{upper}")
SAME += ('{{"answer": "{a}"}}', ' {{"label" : "{a}"}}\n')
MAY = ("<think>{b}? No.</think>{a}", "<think>\n{b}\n</think>\n\n{a}")  # thoughts, to who looks for them
OTHER = (
    "{a} .",
    *("Not {a}", "{a}? No.", "{a}\nActually {b}.", "{a}, the context does not support it", "{a} not"),
    *("{a} and {b}", "{a}/{b}", "{a}\n{b}", "{a} or {b}", "It is not true that {a}.", "{a}\n\n{a}", "un{a}"),
    *(
        "I would say {a}",
        "The answer is {a}.",
        "Answer: {a}",
        "{a}!",
        "{a}?",
        "{a}...",
        "{a}..",
        '"{a}',
        "{a},",
    ),
    *(
        "**{a}**",
        "# {a}",
        "- {a}",
        "[{a}]",
        "<b>{a}</b>",
        "{a} 👍",
        "{a}\u200b",
        "{a}\x00",
        "\ufeff{a}-",
        "{a}{a}",
    ),
    *(
        "Oui",
        "Nein, {a} ist falsch",
        "はい",
        "Да",
        "不是",
        "لا",
        "Sí",
        "ναι",
        "Ja",
        "Tak",
        "Nej",
        "Não",
        "아니요",
    ),
    *(
        "",
        " ",
        "\n",
        ".",
        '""',
        "null",
        "true",
        "false",
        "0",
        "1",
        "1.0",
        "NaN",
        "-",
        "...",
        "{{}}",
        "[]",
        "{{",
    ),
    *('["{a}"]', '[{{"answer": "{a}"}}]', '{{"answer": ["{a}"]}}', '{{"answer": {{"answer": "{a}"}}}}'),
    *('{{"faithful": false}}', '{{"faithful": tr', '{{"faithful": true}}', '{{"hallucinated": "{a}"}}'),
    *(
        '{{"answer": "{a}", "correction": "{b}"}}',
        '{{"answer": "{a}"',
        '{{"answer": "{a}"}} no',
        '{{"not": "{a}"}}',
    ),
    *('{{"answer": "{a}"}}{{"answer": "{b}"}}', '{{"answer": "{b}", "answer": "{a}"}}', '{{"answer": null}}'),
    *(
        '{{"answer": true}}',
        '{{"answer": 1}}',
        '{{"answer": "{a}, no"}}',
        '{{"error": "{a}"}}',
        "{{answer: {a}}}",
    ),
    *("<think>{a}", "<think>{a}</think>", "</think>{a}", "{a}</think>", "[THINK]{a}", "{a}<think>No</think>"),
    *("9" * 5000, '{{"answer": ' + "9" * 5000 + "}}", "[" * 3000, "{a}" * 500, "```\n{a}\n```", "`{a}`\n{b}"),
)
PROSE = (
    " not",
    "no, ",
    "\nNo.",
    " - or rather not",
    "It is wrong that ",
    " 不",
    "?",
    " (sic)",
    "/",
    "Kein ",
    "\n#",
)
JSON_SAME = ("{a}", " {a}\n", "\n{a}", "\t{a} ")
FENCED = ("```json\n{a}\n```", "```\n{a}\n```", "```JSON \n\n{a}```")  # to who puts an answer right
JSON_OTHER = (
    *(
        "{a}\nActually no.",
        "{a} is wrong",
        "Not this: {a}",
        "{a}{b}",
        "{a}\n{b}",
        "[{a}]",
        "[{a}, {b}]",
        "{a}]",
    ),
    *(
        '{{"answer": {a}}}',
        '{{"wrong": {a}, "right": {b}',
        '{{"wrong": {a}',
        "{b} no: {a}",
        "{a} // no",
        "/* {a} */",
    ),
    *(
        "```json\n{a}\n```\nOr rather: {b}",
        "Of course:\n```json\n{a}\n```",
        "```json\n{a}",
        "<b>{a}</b>",
        "not {a}",
    ),
    *("", "{{}}", "[]", "null", "0", "Yes", "true", '"{{}}"', "{{" * 2000, "<think>{a}", "9" * 5000, "NaN"),
)


def of_word(pattern: str) -> Callable[[str, str], str]:
    """A text that was made of `pattern` and a right reply; JSON and free texts have patterns of their own."""

    def says(text: str, other: str) -> str:
        return pattern.format(a=text, b=other, lower=text.lower(), upper=text.upper())

    return says


def of_json(change: Callable[[dict[str, Any], dict[str, Any]], str]) -> Callable[[str, str], str]:
    return lambda text, other: change(json.loads(text), json.loads(other))


def last(holder: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The object in a reply that decides, and its deciding key."""
    inner = holder[next(iter(holder))]
    if isinstance(inner, list) and inner and isinstance(inner[0], dict):
        return inner[0], list(inner[0])[-1]
    return holder, list(holder)[-1]


def with_value(value: Any) -> Callable[[str, str], str]:
    def change(mine: dict[str, Any], _: dict[str, Any]) -> str:
        inner, key = last(mine)
        inner[key] = value
        return json.dumps(mine).replace('"HUGE"', "9" * 5000).replace('"LARGE"', "1e999")

    return of_json(change)


def twice(mine: dict[str, Any], other: dict[str, Any]) -> str:
    """The deciding key two times in one object."""
    _, key = last(mine)
    theirs = json.dumps(last(other)[0][key])
    return json.dumps(mine).replace(f'"{key}":', f'"{key}": {theirs}, "{key}":')


def without(mine: dict[str, Any], _: dict[str, Any]) -> str:
    inner, key = last(mine)
    del inner[key]
    return json.dumps(mine)


def commented(mine: dict[str, Any], _: dict[str, Any]) -> str:
    return json.dumps(mine)[:-1] + " /* no, the opposite */ }"


def more(mine: dict[str, Any], _: dict[str, Any]) -> str:
    return json.dumps({**mine, "correction": "the opposite is true"})


STRUCTURED = [of_json(each) for each in (twice, without, commented, more)]
STRUCTURED += [
    with_value(each) for each in (None, True, "no", [0], {}, -1, 2, "HUGE", "LARGE", "0 of 1", " ")
]


def cut(random: random.Random) -> Callable[[str, str], str]:
    share = random.random() * 0.99
    return lambda text, other: text[: int(len(text) * share)]


# --- what an answer is shipped in ----------------------------------------------------------------


def choice_with(**changes: Any) -> Callable[[Any], Any]:
    return lambda body: {**body, "choices": [{**body["choices"][0], **changes}]}


def message_with(**changes: Any) -> Callable[[Any], Any]:
    def ship(body: Any) -> Any:
        (choice,) = body["choices"]
        return {**body, "choices": [{**choice, "message": {**choice["message"], **changes}}]}

    return ship


def body_with(**changes: Any) -> Callable[[Any], Any]:
    return lambda body: {**body, **changes}


def part_beside(kind: str) -> Callable[[Any], Any]:
    def ship(body: Any) -> Any:
        text = body["choices"][0]["message"]["content"]
        return message_with(content=[{"type": "text", "text": text}, {"type": kind, kind: "no"}])(body)

    return ship


CALL = {"id": "1", "type": "function", "function": {"name": "no", "arguments": "{}"}}
WRONG = {"message": "it failed", "code": 502}
ENDS = (
    "length",
    "error",
    "content_filter",
    "tool_calls",
    "function_call",
    "",
    None,
    "abort",
    "load",
    "ERROR",
)
OPENAI_BROKEN: tuple[Callable[[Any], Any], ...] = (
    *(choice_with(finish_reason=each) for each in (*ENDS, "model_length", "max_tokens", "cancelled", 0)),
    *(body_with(error=each) for each in (WRONG, "no", {}, ["no"], {"message": "no"}, 500, True)),
    body_with(object="error", message="no"),
    choice_with(error=WRONG),
    *(message_with(**each) for each in ({"error": WRONG}, {"role": "user"}, {"role": "tool"})),
    *(body_with(**each) for each in ({"errors": ["no"]}, {"error_code": 7}, {"success": False})),
    *(body_with(status=each) for each in ("failed", "incomplete", "cancelled")),
    choice_with(index=1),
    lambda body: {**body, "choices": body["choices"] * 2},
    *(body_with(choices=each) for each in ([], None, {}, "Yes", [None], ["Yes"])),
    message_with(tool_calls=[CALL]),
    message_with(function_call=CALL["function"]),
    message_with(refusal="I will not say."),
    *(message_with(content=each) for each in (None, 1, True, {}, {"text": "Yes"}, [])),
    *map(part_beside, ("refusal", "image_url", "tool_use", "error")),
    choice_with(message=None),
    lambda body: [],
    lambda body: "Yes",
    lambda body: b'{"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop"}], "choi',
    lambda body: b"<html>Yes</html>",
    lambda body: json.dumps(body).encode()[:-1] + b', "n": ' + b"9" * 5000 + b"}",
    lambda body: json.dumps(body).replace('"content"', '"content": "No", "content"', 1).encode(),
)


def blocks_with(*beside: Any) -> Callable[[Any], Any]:
    return lambda body: {**body, "content": [*body["content"], *beside]}


ANTHROPIC_BROKEN: tuple[Callable[[Any], Any], ...] = (
    *(
        body_with(stop_reason=each)
        for each in ("max_tokens", "refusal", "tool_use", "pause_turn", None, "error", "")
    ),
    *(body_with(error=each) for each in (WRONG, "no", {}, ["no"])),
    body_with(type="error"),
    *(body_with(**each) for each in ({"errors": ["no"]}, {"status": "failed"}, {"role": "user"})),
    blocks_with({"type": "tool_use", "id": "2", "name": "other", "input": {"answer": "Yes"}}),
    blocks_with({"type": "image", "source": "no"}),
    blocks_with({"type": "server_tool_use", "input": {}}),
    blocks_with({"type": "text", "text": "\nActually, the opposite."}),
    *(body_with(content=each) for each in ([], None, "Yes", [None], [{"type": "text", "text": 1}])),
    lambda body: [],
    lambda body: b'{"content": [{"type": "text", "text": "Yes"}], "stop_reason": "end_tu',
    lambda body: json.dumps(body).encode()[:-1] + b', "n": ' + b"9" * 5000 + b"}",
    lambda body: json.dumps(body).replace('"content"', '"content": [], "content"', 1).encode(),
)


@dataclass
class Replying(Standin):
    """A stand-in that replies to whatever is asked of a case as that case says, in both protocols."""

    cases: dict[int, Case] = field(default_factory=dict)
    stream: bool = False

    def answer(self, method: str, path: str, body: Any, key: str) -> tuple[int, Any]:
        if not self.cases or method != "POST" or path not in ("/v1/chat/completions", "/v1/messages"):
            return super().answer(method, path, body, key)
        asked = json.dumps(body, ensure_ascii=False)
        number = int(re.search(r"case (\d+)", asked)[1])  # type: ignore[index]
        case = self.cases[number]
        text, other = written(case.judge, case.right, number, asked)
        if other and case.json in (None, text.startswith("{")):  # a free text decides nothing
            text = case.says(text, other)
            case.texts.append(text)
        plain = path == "/v1/messages"
        made = self._message(text, body) if plain else self._completion(text)
        shipped = case.ships(made) if other else made
        return 200, shipped

    def _completion(self, text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        return {"object": "chat.completion", "choices": [choice], "usage": usage, "error": None}

    def _message(self, text: str, body: Mapping[str, Any]) -> dict[str, Any]:
        content: list[Any] = [{"type": "text", "text": text}]
        return {
            "type": "message",
            "role": "assistant",
            "content": content,
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 1},
        }


@pytest.fixture(scope="module")
def standin() -> Iterator[Replying]:
    kind = ollama_like()
    with running(Replying(pages=kind.pages)) as found:
        yield found  # type: ignore[misc]


def anthropic(standin: Standin, words: str) -> AnthropicEngine:
    """An engine that asks the stand-in by the Messages API."""
    name, options = read_options(words)
    url = standin.url.removesuffix("/v1")
    made = AnthropicEngine(name, base_url=url, key="none", timeout=20, options=options)
    run_on_io_loop(made.connect())
    return made


# --- the law -------------------------------------------------------------------------------------


def texts(judge: str, draw: random.Random) -> Iterator[Case]:
    """Every change of the text, to both answers; the rest of the answer is as it should be."""
    kinds = [each for each in (True, False) if each in FORMS.get(judge.partition(":")[0], (False,))]
    for right, is_json in itertools.product((True, False), kinds):
        groups = ((JSON_SAME, True), (JSON_OTHER, False)) if is_json else ((SAME, True), (OTHER, False))
        for patterns, whole in (*groups, (MAY, None), (FENCED if is_json else (), None)):
            for pattern in patterns:
                yield Case(judge, right, whole, is_json, of_word(pattern), name=pattern[:80])
        for number in range(6):
            yield Case(judge, right, False, is_json, cut(draw), name=f"cut {number}")
        for change in STRUCTURED if is_json else ():
            yield Case(judge, right, False, True, change, name=f"structure {STRUCTURED.index(change)}")


def shipped(judge: str, broken: tuple[Callable[[Any], Any], ...]) -> Iterator[Case]:
    """A right text in every broken answer."""
    for right in (True, False):
        for number, ships in enumerate(broken):
            yield Case(judge, right, False, ships=ships, name=f"answer {number}")


def judged(standin: Replying, asked: Engine, cases: list[Case]) -> list[tuple[Case, Outcome]]:
    """What becomes of each case, many at once."""
    judges = {spec: registry.judge(spec) for spec in {case.judge for case in cases}}
    standin.cases = dict(enumerate(cases, 1000))
    gate = asyncio.Semaphore(16)

    async def one(number: int, case: Case) -> tuple[Case, Outcome]:
        async with gate:
            return case, await judge_one(sample(number), judges[case.judge], asked)

    async def all_of_them() -> list[tuple[Case, Outcome]]:
        return await asyncio.gather(*(one(number, case) for number, case in standin.cases.items()))

    try:
        return asyncio.run(all_of_them())
    finally:
        standin.cases = {}


def test_every_judge_that_a_server_can_answer_is_asked() -> None:
    named = {registry.judge(spec).info.name.partition(":")[0] for spec in JUDGES}
    for name in registry.judge_entries():
        info = registry.judge(name).info
        if info.asks and not info.lacks and info.needs <= SPOKEN:
            assert name in named or Path(__file__).with_name(ELSEWHERE[name]).is_file()


def test_a_text_names_an_answer_only_where_it_says_that_and_nothing_else() -> None:
    """Every change of every answer of several kinds of questions, some thousands, without a server."""
    questions = [("Yes", "No"), ("A", "B"), ("supported", "unsupported"), ("true", "false"), ("ja", "nein")]
    draw, wrong, count = random.Random(time.strftime("%G-%V")), [], 0
    for pair, right in itertools.product(questions, (0, 1)):
        options = [Option(f"label {word}", (word, f" {word}")) for word in pair]
        for pattern in (*SAME, *OTHER):
            for _ in range(3):
                before, behind = (draw.choice(("", "", "", *PROSE)) for _ in range(2))
                text = before + of_word(pattern)(pair[right], pair[1 - right]) + behind
                says = pattern in SAME and not before + behind
                count += 1
                try:
                    found = label_named(text, options)
                except InvalidOutput:
                    found = None
                plain = text.strip().removesuffix(".").casefold() in [word.casefold() for word in pair]
                if (found == options[right].label) != says and not (plain and found is not None):
                    wrong.append(f"{text[:200]!r} of {pair}: {found}")
    assert count > 2000 and wrong == []


ENGINES: tuple[tuple[Callable[[Standin, str], Engine], str, tuple[Callable[[Any], Any], ...]], ...] = (
    (engine, "model-a,anew=0", OPENAI_BROKEN),
    (anthropic, "model-a,anew=0", ANTHROPIC_BROKEN),
)


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_verdict_is_exactly_what_was_replied_or_there_is_none(standin: Replying, protocol: str) -> None:
    """The verdict on a right reply is known from the plain one; every change of it must be seen."""
    make, words, broken = ENGINES[0 if protocol == "openai" else 1]
    asked = make(standin, words)
    draw = random.Random(f"{protocol} {time.strftime('%G-%V')}")
    plain = judged(standin, asked, [Case(judge, right, True) for judge in JUDGES for right in (True, False)])
    labels = {(case.judge, case.right): getattr(outcome, "label", str(outcome)) for case, outcome in plain}
    assert [f"{case.judge}: {found}" for case, found in plain if not isinstance(found, Verdict)] == []
    assert [judge for judge in JUDGES if labels[judge, True] == labels[judge, False]] == []
    cases = [case for judge in JUDGES for case in texts(judge, draw)]
    cases = draw.sample(cases, tries(400))  # of some 5,000, others every week
    cases += [case for judge in draw.sample(JUDGES, 2) for case in shipped(judge, broken)]
    wrong = []
    for case, outcome in judged(standin, asked, cases):
        if isinstance(outcome, Verdict):
            good = case.whole is not False and outcome.label == labels[case.judge, case.right]
        else:
            codes = ("invalid_output", "engine_error", "refused")
            good = case.whole is not True and getattr(outcome, "code", "over_length") in (
                *codes,
                "over_length",
            )
        if not good:
            wrong.append(f"{case.judge} {case.right} {case.name!r}: {outcome} {case.texts[-1:]}"[:300])
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:40])
