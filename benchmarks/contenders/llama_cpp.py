"""llama.cpp by its C interface, through the bindings of llama-cpp-python: no server, no sampler chain.

The shared prefix is read once and copied by sequence in a unified KV cache. All rows in flight form one
batch per step, and the next row replaces a finished one immediately.
"""

from __future__ import annotations

import ctypes
import json
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import workload
from benchmarks.contenders.base import Item, Measured, Weights
from magistrate.errors import EngineError

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float32]]

WORKS = ("verdict_only", "verdict_with_reasons", "unconstrained", "prefill", "decode", "mask")
CELLS_A_ROW = 512  # the longest prompt and answer of the workload are some 370 tokens together
BATCH_TOKENS = 8192


class LlamaCpp:
    """A GGUF under llama.cpp's C interface, greedy."""

    name = "llama.cpp"
    works = frozenset(WORKS)

    def version(self) -> str:
        """Return the version of the bindings, which include llama.cpp. Raises `ModuleNotFoundError`."""
        return f"llama-cpp-python {version('llama-cpp-python')}"

    def load(self, weights: Weights, threads: int) -> None:
        """Map the GGUF, on the CPU only."""
        if weights.gguf is None:
            raise EngineError("needs the weights as a GGUF")
        self._lib: Any = import_module("llama_cpp")
        self._quiet = self._lib.llama_log_callback(lambda level, text, data: None)
        self._lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self._lib.llama_backend_init()
        params = self._lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self._weights = self._lib.llama_model_load_from_file(str(weights.gguf).encode(), params)
        if not self._weights:
            raise EngineError("llama.cpp cannot load the GGUF")
        self._vocabulary = self._lib.llama_model_get_vocab(self._weights)
        self._threads = threads
        self._cache: Cache | None = None
        self._prefix: tuple[int, ...] | None = None

    def verdict_only(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Choose the likelier of the two options by the logits after the prompt."""
        options = [self._tokens(option) for option in workload.OPTIONS]
        if any(len(tokens) != 1 for tokens in options):
            raise EngineError("an option is not one token")

        def likelier(row: Row, logits: Floats) -> bool:
            row.written.append(max((tokens[0] for tokens in options), key=lambda token: logits[token]))
            return True

        seconds, rows = self._answered(items, in_flight, lambda: likelier)
        return Measured(len(rows), len(rows), seconds, len(rows))

    def verdict_with_reasons(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Generate the schema's JSON under llama.cpp's own grammar, without white space."""
        with Grammar(self._lib, self._vocabulary, workload.SCHEMA) as grammar:
            grammars: list[Grammar] = []

            def writer() -> Step:
                own = grammar.clone()
                grammars.append(own)

                def step(row: Row, logits: Floats) -> bool:
                    token = own.pick(logits)
                    if self._lib.llama_vocab_is_eog(self._vocabulary, token):
                        return True
                    row.written.append(token)
                    return len(row.written) == workload.MOST_TOKENS

                return step

            seconds, rows = self._answered(items, in_flight, writer)
            for own in grammars:
                own.close()
        written = sum(len(row.written) for row in rows)
        return Measured(len(rows), written, seconds, sum(_answers(self._text(row.written)) for row in rows))

    def unconstrained(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Generate the requested number of tokens, whatever they are."""

        def step(row: Row, logits: Floats) -> bool:
            row.written.append(int(logits.argmax()))
            return len(row.written) == workload.ANSWER_TOKENS

        seconds, rows = self._answered(items, in_flight, lambda: step)
        return Measured(len(rows), sum(len(row.written) for row in rows), seconds, len(rows))

    def prefill(self, items: Sequence[Item]) -> Measured:
        """Read one prompt after the other, which is no slower here than several in a batch."""
        cache = self._fresh(1, unified=False)
        start = time.perf_counter()
        for item in items:
            cache.read([(0, 0, item.tokens)])
            cache.drop(0)
        seconds = time.perf_counter() - start
        return Measured(len(items), sum(len(item.tokens) for item in items), seconds, len(items))

    def decode(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Decode one token per row and step, each row with its own cache."""
        cache = self._fresh(min(in_flight, len(items)), unified=False)
        seconds = 0.0
        for at in range(0, len(items), in_flight):
            group = items[at : at + in_flight]
            logits = cache.read([(row, 0, item.tokens) for row, item in enumerate(group)])
            start = time.perf_counter()
            for step in range(workload.DECODE_TOKENS):
                logits = cache.read(
                    [
                        (row, len(item.tokens) + step, (int(logits[row].argmax()),))
                        for row, item in enumerate(group)
                    ]
                )
            seconds += time.perf_counter() - start
            for row in range(len(group)):
                cache.drop(row)
        return Measured(len(items), len(items) * workload.DECODE_TOKENS, seconds, len(items))

    def mask(self) -> Measured:
        """Apply the grammar to the whole vocabulary, before each token of the answer."""
        tokens = self._tokens(workload.RUBRIC_ANSWER)
        seconds, allowed = 0.0, 0
        with Grammar(self._lib, self._vocabulary, workload.RUBRIC) as grammar:
            for token in tokens:
                seconds += grammar.mask()
                allowed += grammar.allows(token)
                grammar.accept(token)
        return Measured(len(tokens), len(tokens), seconds, allowed)

    def close(self) -> None:
        """Free the model and its cache."""
        if self._cache is not None:
            self._cache.close()
        self._lib.llama_model_free(self._weights)

    # ------------------------------------------------------------------------------------------------

    def _answered(
        self, items: Sequence[Item], in_flight: int, writer: Callable[[], Step]
    ) -> tuple[float, list[Row]]:
        """Write every item to its end; returns the seconds and the rows."""
        cache = self._shared(items[0].tokens[: items[0].shared], in_flight)
        start = time.perf_counter()
        places = list(range(in_flight, 0, -1))  # row 0 of the cache is the prefix
        waiting, active, done = deque(items), list[Row](), list[Row]()
        while waiting or active:
            while waiting and places:
                item, place = waiting.popleft(), places.pop()
                cache.copy(0, place)
                active.append(Row(place, item.shared, item.tokens[item.shared :], writer()))
            logits = cache.read([(row.place, row.at, row.pending) for row in active])
            going = []
            for row, own in zip(active, logits, strict=True):
                row.at += len(row.pending)
                if row.step(row, own):
                    cache.drop(row.place)
                    places.append(row.place)
                    done.append(row)
                else:
                    row.pending = (row.written[-1],)
                    going.append(row)
            active = going
        return time.perf_counter() - start, done

    def _shared(self, prefix: tuple[int, ...], in_flight: int) -> Cache:
        """Return a unified cache with the prefix in row 0, which stays there between calls."""
        if self._cache is None or not self._cache.fits(in_flight + 1, unified=True):
            self._fresh(in_flight + 1, unified=True)
        assert self._cache is not None
        if self._prefix != prefix:
            self._cache.drop(0)
            if prefix:
                self._cache.read([(0, 0, prefix)])
            self._prefix = prefix
        return self._cache

    def _fresh(self, rows: int, *, unified: bool) -> Cache:
        if self._cache is not None:
            self._cache.close()
        self._prefix = None
        self._cache = Cache(self._lib, self._weights, self._threads, rows, unified)
        return self._cache

    def _tokens(self, text: str) -> tuple[int, ...]:
        data = text.encode()
        room = (self._lib.llama_token * (len(data) + 8))()
        n = self._lib.llama_tokenize(self._vocabulary, data, len(data), room, len(room), False, False)
        return tuple(room[:n])

    def _text(self, tokens: Sequence[int]) -> str:
        piece = ctypes.create_string_buffer(256)
        lengths = (
            (self._lib.llama_token_to_piece(self._vocabulary, token, piece, 256, 0, False))
            for token in tokens
        )
        return b"".join(piece.raw[:n] for n in lengths).decode("utf-8", "replace")


Step = Callable[["Row", "Floats"], bool]


@dataclass(slots=True)
class Row:
    """One answer in flight: its row of the cache, the position of the first of its `pending` tokens, and
    what takes its logits, appends to `written` and says whether that was the end."""

    place: int
    at: int
    pending: tuple[int, ...]
    step: Step
    written: list[int] = field(default_factory=list)


class Cache:
    """A context of llama.cpp: a KV cache of `rows` sequences."""

    def __init__(self, lib: Any, weights: Any, threads: int, rows: int, unified: bool) -> None:
        params = lib.llama_context_default_params()
        params.n_seq_max = rows
        params.n_ctx = CELLS_A_ROW * rows
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = unified
        self._lib, self._rows, self._unified = lib, rows, unified
        self._context = lib.llama_init_from_model(weights, params)
        if not self._context:
            raise EngineError(f"llama.cpp cannot make a cache of {rows} rows")
        self._memory = lib.llama_get_memory(self._context)
        self._batch = lib.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(weights))

    def fits(self, rows: int, *, unified: bool) -> bool:
        """Return whether this cache has that many rows."""
        return self._rows == rows and self._unified == unified

    def read(self, rows: Sequence[tuple[int, int, Sequence[int]]]) -> list[Floats]:
        """One forward over rows of (sequence, first position, tokens): the logits after each, which hold
        until the next call."""
        import numpy as np

        batch, n, lasts = self._batch, 0, []
        for sequence, first, tokens in rows:
            for position, token in enumerate(tokens, first):
                batch.token[n] = token
                batch.pos[n] = position
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = sequence
                batch.logits[n] = 0
                n += 1
            batch.logits[n - 1] = 1
            lasts.append(n - 1)
        batch.n_tokens = n
        if status := self._lib.llama_decode(self._context, batch):
            raise EngineError(f"llama_decode of {n} tokens answered {status}")
        pointers = [self._lib.llama_get_logits_ith(self._context, last) for last in lasts]
        return [np.ctypeslib.as_array(pointer, (self._vocabulary,)) for pointer in pointers]

    def copy(self, source: int, target: int) -> None:
        """Share one row's cells with another."""
        self._lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def drop(self, row: int) -> None:
        """Clear a row."""
        self._lib.llama_memory_seq_rm(self._memory, row, -1, -1)

    def close(self) -> None:
        """Free it."""
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)


class Grammar:
    """A JSON schema as a llama.cpp grammar, at one position of a text."""

    def __init__(self, lib: Any, vocabulary: Any, schema: Any, sampler: Any = None) -> None:
        import numpy as np

        if sampler is None:
            written = import_module("llama_cpp.llama_grammar").json_schema_to_gbnf(
                json.dumps(schema), prop_order=list(schema["properties"])
            )
            compact = re.sub(r"^space ::= .*$", 'space ::= ""', written, flags=re.MULTILINE)
            sampler = lib.llama_sampler_init_grammar(vocabulary, compact.encode(), b"root")
            if not sampler:
                raise EngineError("llama.cpp cannot read the grammar that its bindings write for the schema")
        self._lib, self._vocabulary, self._sampler = lib, vocabulary, sampler
        n = lib.llama_vocab_n_tokens(vocabulary)
        self._all = np.zeros(n, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __enter__(self) -> Grammar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clone(self) -> Grammar:
        """Return a copy at the same position."""
        return Grammar(self._lib, self._vocabulary, None, self._lib.llama_sampler_clone(self._sampler))

    def pick(self, logits: Floats) -> int:
        """The likeliest token that is allowed, accepted. As llama.cpp's own tools do, the likeliest of all
        is tried alone first."""
        import numpy as np

        token = int(logits.argmax())
        self._all[:1] = (token, 0, 0)
        self._apply(1)
        if not np.isfinite(self._all["logit"][0]):
            self._all["id"] = np.arange(len(self._all))
            self._all["logit"] = logits
            self._apply(len(self._all))
            token = int(self._all["logit"].argmax())
        self.accept(token)
        return token

    def mask(self) -> float:
        """Apply it to the whole vocabulary; returns the seconds that took."""
        import numpy as np

        self._all["id"] = np.arange(len(self._all))
        self._all["logit"] = 0
        start = time.perf_counter()
        self._apply(len(self._all))
        return time.perf_counter() - start

    def allows(self, token: int) -> bool:
        """Return whether the last `mask` allows a token."""
        return bool(self._all["logit"][token] == 0)

    def accept(self, token: int) -> None:
        """Advance by one token."""
        self._lib.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        """Free it."""
        self._lib.llama_sampler_free(self._sampler)

    def _apply(self, n: int) -> None:
        pointer = self._all.ctypes.data_as(ctypes.POINTER(self._lib.llama_token_data))
        array = self._lib.llama_token_data_array(pointer, n, -1, False)
        self._lib.llama_sampler_apply(self._sampler, ctypes.byref(array))


def _answers(text: str) -> bool:
    from jsonschema import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(Draft202012Validator(workload.SCHEMA).is_valid(value))
