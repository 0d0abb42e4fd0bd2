"""Grammar-guided decoding from scratch: pick the likeliest next token that fits the grammar.

Run: python examples/guided_decoding.py [--scripted]

This is how a token mask works: the grammar checks the text plus one more token and finds it valid, a valid
beginning, or invalid. Magistrate's engines check all tokens at once.
"""

import asyncio
import sys

from magistrate.constraints import Lark, check
from magistrate.engines.base import Capture, Engine, Option
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.scripted import ScriptedEngine
from magistrate.types import Prompt

GRAMMAR = Lark(r"""
start: "{\"sum\":" NUMBER ("+" NUMBER){1,2} ",\"even\":" ("true" | "false") "}"
NUMBER: /[1-9][0-9]{0,2}/
""")
PROMPT = Prompt.of("Write two numbers to be added, and whether their sum is even. Answer in JSON.")
LIKES = ["Sure", "The", ' "', "12", "+", ",", '"even"', "true", "}", '"sum"', ":", "{"]  # of a chatty model


async def ranked(engine: Engine, text: str) -> list[str]:
    """Return the model's next tokens after `text`, likeliest first."""
    if isinstance(engine, LocalEngine):
        # `captured` has the likeliest tokens at each position of the text, and after its end.
        seen = await engine.likelihood(PROMPT, text or "{", capture=Capture(top=2000))
        assert seen.captured is not None
        return [engine.tokenizer.show(int(each)) for each in seen.captured.top_tokens[-1 if text else 0]]
    chosen = await engine.choose(PROMPT, [Option(token, (token,)) for token in LIKES])
    return sorted(LIKES, key=lambda token: -(chosen.probabilities or {})[token])


async def write(engine: Engine) -> str:
    """Write an answer that fits the grammar, token by token."""
    text = ""
    while check(text, GRAMMAR) != "valid":
        tokens = [token for token in await ranked(engine, text) if token]
        fits = (place for place, token in enumerate(tokens) if check(text + token, GRAMMAR) != "invalid")
        place = next(fits, None)
        if place is None:
            raise SystemExit(f"none of the {len(tokens)} likeliest tokens goes on from {text!r}")
        text += tokens[place]
        print(f"{place:5} refused, then {tokens[place]!r}")
    return text


scripted = ScriptedEngine(lambda prompt: {token: 2.0**-place for place, token in enumerate(LIKES, 1)})
print(asyncio.run(write(scripted if "--scripted" in sys.argv else LocalEngine("smollm2-135m-instruct"))))
