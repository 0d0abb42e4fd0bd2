"""Compiles one schema with a peer and times its masks, in the Python of the peers; see constraints.py.

Standard input: {"engine", "vocabulary": [[base64, id], ...], "size", "end", "schema", "tokens"}.
Standard output: {"version", "compile_ms", "masks_us", "accepted"}; `masks_us` twice along the same tokens.
"""

import base64
import json
import sys
import time
from importlib.metadata import version


def xgrammar(asked):
    import numpy as np
    import xgrammar as xgr

    vocabulary = [b""] * asked["size"]
    for text, token in asked["vocabulary"]:
        vocabulary[token] = base64.b64decode(text)
    info = xgr.TokenizerInfo(vocabulary, vocab_size=asked["size"], stop_token_ids=[asked["end"]])
    compiler = xgr.GrammarCompiler(info, max_threads=2, cache_enabled=False)
    start = time.perf_counter()
    grammar = compiler.compile_json_schema(asked["schema"], any_whitespace=False, separators=(",", ":"))
    yield time.perf_counter() - start
    bits = xgr.allocate_token_bitmask(1, asked["size"])
    for _ in range(2):
        matcher = xgr.GrammarMatcher(grammar)

        def allowed(token):
            return bool(np.asarray(bits)[0][token >> 5] >> (token & 31) & 1)

        yield lambda matcher=matcher: matcher.fill_next_token_bitmask(bits), matcher.accept_token, allowed


def outlines_core(asked):
    import numpy as np
    from outlines_core import Guide, Index, Vocabulary
    from outlines_core.json_schema import build_regex_from_schema

    by_text = {}
    for text, token in asked["vocabulary"]:
        by_text.setdefault(base64.b64decode(text), []).append(token)
    vocabulary = Vocabulary(asked["end"], by_text)
    start = time.perf_counter()
    index = Index(build_regex_from_schema(asked["schema"], whitespace_pattern=""), vocabulary)
    yield time.perf_counter() - start
    bits = np.zeros(-(-asked["size"] // 32), np.int32)
    for _ in range(2):
        guide = Guide(index)

        def allowed(token):
            return bool(bits[token >> 5] >> (token & 31) & 1)

        yield (
            lambda guide=guide: guide.write_mask_into(bits.ctypes.data, len(bits), 4),
            lambda token, guide=guide: guide.advance(token, False),
            allowed,
        )


asked = json.load(sys.stdin)
name = asked["engine"]
steps = {"xgrammar": xgrammar, "outlines-core": outlines_core}[name](asked)
compile_seconds = next(steps)
masks, accepted = [], True
for fill, advance, allowed in steps:
    own = []
    for token in asked["tokens"]:
        start = time.perf_counter()
        fill()
        own.append(1e6 * (time.perf_counter() - start))
        if not allowed(token):
            accepted = False
            break
        advance(token)
    masks.append(own)
json.dump(
    {
        "version": version(name.replace("-", "_")),
        "compile_ms": 1000 * compile_seconds,
        "masks_us": masks,
        "accepted": accepted,
    },
    sys.stdout,
)
