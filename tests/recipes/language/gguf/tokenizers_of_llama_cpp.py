"""Tiny tokenizers of both kinds that llama.cpp knows, and the metadata of a GGUF file that describes them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.recipes.llm_sft import families

KEY = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


@cache
def byte_level(template: str | None = "chatml") -> Any:
    """BPE of bytes with GPT-2's pre-tokenizer."""
    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    whole.train_from_iterator([families.TEXT] * 4, trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet))
    whole.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<|im_end|>", "<|im_start|>")])
    whole.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return _wrap(whole, template, None)


@cache
def sentence_piece(complete: bool = True) -> Any:
    """BPE of characters with a fallback to bytes, whose merges are all pairs of tokens that make a token, as in a tokenizer.json that was
    made from a tokenizer.model. `complete`: false leaves one out."""
    words = ["a", "b", "c", "▁", "ab", "bc", "▁a", "abc", "▁ab", "▁abc"]
    vocabulary = {token: number for number, token in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words])}
    made = [(word[:cut], word[cut:]) for word in words for cut in range(1, len(word))]
    merges = [pair for pair in made if pair[0] in vocabulary and pair[1] in vocabulary][: None if complete else -1]
    whole = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    whole.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    whole.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    whole.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>")])
    begin = whole.token_to_id("<s>")
    whole.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", begin)])
    return _wrap(whole, None, "<s>")


def _wrap(whole: Tokenizer, template: str | None, begin: str | None) -> Any:
    made = PreTrainedTokenizerFast(tokenizer_object=whole, eos_token="</s>" if begin else "<|im_end|>", bos_token=begin)
    made.chat_template = None if template is None else families.template(template)
    return made


def describe(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """The metadata that describes a tokenizer rightly, with `changes` to it: keys without their prefix; None removes one."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    added = tokenizer.added_tokens_decoder
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    bytewise = not parts["model"]["byte_fallback"]
    types = [NORMAL if number not in added else CONTROL if added[number].special else USER for number in range(len(tokens))]
    own: dict[str, Any] = {
        "model": "gpt2" if bytewise else "llama",
        "pre": "gpt-2" if bytewise else "default",
        "tokens": tokens,
        "token_type": types,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "add_bos_token": tokenizer.bos_token is not None,
    }
    if bytewise:
        own["merges"] = [" ".join(merge) for merge in parts["model"]["merges"]]
    else:
        ranks = {"".join(merge): rank for rank, merge in reversed([*enumerate(parts["model"]["merges"])])}
        own["scores"] = [-float(ranks.get(token, 0)) for token in tokens]
    template = {} if tokenizer.chat_template is None else {"tokenizer.chat_template": tokenizer.chat_template}
    found = {f"{KEY}{key}": value for key, value in {**own, **changes}.items() if value is not None}
    return {"general.architecture": "qwen3", **found, **template}
