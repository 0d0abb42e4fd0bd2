"""Convert a GGUF's tokenizer to the files that the `tokenizers` library reads (byte-level BPE only).

The result has no normalizer and adds no tokens by itself. So decoding an encoded text returns it byte for
byte, and the first tokens of a prompt come from its chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magistrate.errors import ModelError

# Token types, as numbered in GGUF.
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6

# Tokens that end a turn or a text, whichever one the file declares as its end token.
ENDINGS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def _split(digits: str) -> dict[str, Any]:
    pattern = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_REST}"
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(False)]}


_SMOLLM = {
    "type": "Sequence",
    "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
}
# Pre-tokenization (the splitting before merges) by the name in `tokenizer.ggml.pre`, and whether a
# piece that is a whole token skips the merges.
PRE_TYPES: Mapping[str, tuple[dict[str, Any], bool]] = {
    "smollm": (_SMOLLM, False),
    "qwen2": (_split(r"\p{N}"), False),
    "llama-bpe": (_split(r"\p{N}{1,3}"), True),
}


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the contents of `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.

    `metadata` contains a GGUF's `tokenizer.*` fields. Raises `ModelError` for a tokenizer that is not
    byte-level BPE or whose pre-tokenization is unknown.
    """
    pre = _pre_type(metadata)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    if len(tokens) != len(kinds):
        raise ModelError(f"the GGUF has {len(tokens)} tokens but {len(kinds)} token types: it is damaged")
    cut, ignore_merges = PRE_TYPES[pre]
    added = [
        {
            "id": token_id,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for token_id, (content, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    # Tokens that pad the embedding table are omitted, so that no mask can allow them.
    vocabulary = {
        content: token_id
        for token_id, (content, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != UNUSED
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocabulary,
        "merges": [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]],
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": cut,
        "post_processor": _byte_level(False),
        "decoder": _byte_level(True),
        "model": model,
    }
    _check(tokenizer)
    return {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": _configuration(metadata, added),
        "generation_config.json": {
            "bos_token_id": bos_id(metadata),
            "eos_token_id": eos_ids(metadata),
            "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        },
    }


def eos_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Return the tokens that end a turn or a text; the file's declared end token comes first."""
    named = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    known = [
        tokens.index(content)
        for content in ENDINGS
        if content in tokens and kinds[tokens.index(content)] == CONTROL
    ]
    found = list(dict.fromkeys(token_id for token_id in [*named, *known] if token_id is not None))
    if not found:
        raise ModelError(
            "the GGUF does not define the token that ends a turn; use a file of an instruct model"
        )
    return found


def bos_id(metadata: Mapping[str, Any]) -> int | None:
    """Return the token that the file declares as the beginning of a text, or None."""
    found = metadata.get("tokenizer.ggml.bos_token_id")
    return None if found is None else int(found)


def _pre_type(metadata: Mapping[str, Any]) -> str:
    missing = [name for name in ("model", "tokens", "token_type") if f"tokenizer.ggml.{name}" not in metadata]
    if missing:
        raise ModelError(f"the GGUF has no tokenizer ({', '.join(missing)} missing); use an OpenVINO folder")
    family, pre = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "default")
    advice = "use an OpenVINO folder of this model (with its tokenizer.json) instead"
    if family != "gpt2" or "tokenizer.ggml.merges" not in metadata:
        raise ModelError(
            f"the GGUF's tokenizer has type {family!r}; only byte-level BPE is supported; {advice}"
        )
    if pre not in PRE_TYPES:
        raise ModelError(
            f"the GGUF's tokenizer splits text by the rule {pre!r}; known: {', '.join(PRE_TYPES)}; {advice}"
        )
    return str(pre)


def _configuration(metadata: Mapping[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    padding = metadata.get("tokenizer.ggml.padding_token_id")
    beginning = bos_id(metadata)
    described = {
        str(token["id"]): {name: value for name, value in token.items() if name != "id"} for token in added
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "added_tokens_decoder": described,
        "bos_token": None if beginning is None else tokens[beginning],
        "eos_token": tokens[eos_ids(metadata)[0]],
        "pad_token": None if padding is None else tokens[padding],
        "chat_template": metadata.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }


def _check(tokenizer: dict[str, Any]) -> None:
    """Check that the library can read the result and gives every added token its id."""
    import json

    from tokenizers import Tokenizer

    try:
        read = Tokenizer.from_str(json.dumps(tokenizer))
    except Exception as error:
        raise ModelError(f"the GGUF's tokenizer is damaged: {error}") from error
    for token in tokenizer["added_tokens"]:
        if read.token_to_id(token["content"]) != token["id"]:
            raise ModelError(f"the GGUF has two tokens spelled {token['content']!r}: it is damaged")
