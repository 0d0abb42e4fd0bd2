"""Grammar-guided decoding from scratch: take the model's next tokens in its own order, keep the first that fits.

Run: python examples/guided_decoding.py [--scripted]

This is what a mask does, token by token: the grammar looks at the text with one more token and says whether it is
valid, can still become valid, or is lost. Magistrate's engines do it for all tokens at once.
"""

import asyncio
import sys

from magistrate.constraints import Lark, check
from magistrate.engines.base import Capture, Engine, Option
from magistrate.engines.local.engine import LocalEngine
from magistrate.engines.scripted import ScriptedEngine
from magistrate.types import Prompt

GRAMMAR = Lark(r'''
start: "{" "\"sum\":" sum ",\"even\":" answer "}"
sum: NUMBER ("+" NUMBER){1,2}
answer: "true" | "false"
NUMBER: /[1-9][0-9]{0,2}/
''')
PROMPT = Prompt.of("Write two numbers to be added, and whether their sum is even. Answer in JSON.")
TRIED = 2000  # of the model's likeliest tokens
LIKES = ["Sure", "The", ' "', "12", "+", ",", '"even"', "true", "}", '"sum"', ":", "{"]  # what a chatty model wants


async def ranked(engine: Engine, text: str) -> list[str]:
    """The model's next tokens after `text`, likeliest first."""
    if isinstance(engine, LocalEngine):
        # Captured are the places before each token of a text and after its last.
        seen = await engine.likelihood(PROMPT, text or "{", capture=Capture(top=TRIED))
        assert seen.captured is not None
        tokens = seen.captured.top_tokens[-1 if text else 0]
        return [engine.tokenizer.show(int(token)) for token in tokens]
    chosen = await engine.choose(PROMPT, [Option(token, (token,)) for token in LIKES])
    return sorted(LIKES, key=lambda token: -(chosen.probabilities or {})[token])


async def write(engine: Engine) -> str:
    text = ""
    while (status := check(text, GRAMMAR)) != "valid":
        assert status == "incomplete"  # every token that was kept left a way to the end
        for refused, token in enumerate(await ranked(engine, text)):
            if token and check(text + token, GRAMMAR) != "invalid":
                break
        else:
            raise SystemExit(f"none of the tokens that were tried goes on from {text!r}")
        text += token
        print(f"{refused:5} refused, then {token!r}")
    return text


scripted = ScriptedEngine(lambda prompt: {token: 1 / 2**place for place, token in enumerate(LIKES, 1)})
print(asyncio.run(write(scripted if "--scripted" in sys.argv else LocalEngine("smollm2-135m-instruct"))))
