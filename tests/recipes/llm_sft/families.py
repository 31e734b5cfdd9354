"""Tiny byte-level tokenizers with the added tokens of each model family, and templates like theirs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"
TEXT = """Good day. And to you. The weather in Oslo is cold, the weather in Rome is warm. What is the weather?
It is cold.
<|im_start|>assistant user system Who are you? I am a machine.
Think before you answer, then answer: yes or no.\n\n\n\nYes.\n\nNo.\n\nIt is.\n\n"""
NEWLINES = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""The pattern of Qwen and Llama: white space that ends in line breaks is one piece, so two line breaks can become one token."""


class Family(NamedTuple):
    template: str
    end: str
    begin: str | None
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    """Added tokens that the tokenizer treats as text."""


FAMILIES = {
    "chatml": Family("chatml", "<|im_end|>", None, ("<|im_start|>",)),
    "llama3": Family("llama3", "<|eot_id|>", "<|begin_of_text|>", ("<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>")),
    "qwen3": Family("qwen3", "<|im_end|>", None, ("<|im_start|>",), ("<think>", "</think>", "<tool_call>", "</tool_call>")),
    "gemma2": Family("gemma2", "<end_of_turn>", "<bos>", ("<start_of_turn>", "<eos>")),
    "gemma3": Family("gemma3", "<end_of_turn>", "<bos>", ("<start_of_turn>", "<eos>")),
    "mistral": Family(
        "mistral",
        "</s>",
        "<s>",
        ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ),
    "generation": Family("generation", "<|im_end|>", None, ("<|im_start|>",), ("<think>", "</think>")),
    "generation_unended": Family("generation_unended", "</s>", None, ()),
}


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer(family: str, template_name: str | None = None) -> Any:
    """The family's tokenizer with its own template, or with another."""
    own = FAMILIES[family]
    whole = Tokenizer(models.BPE())
    whole.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(NEWLINES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    whole.decoder = decoders.ByteLevel()
    whole.train_from_iterator([TEXT] * 4, _trainer())
    made = _wrapped(whole, own)
    made.chat_template = template(template_name or own.template)
    return made


@cache
def spaced() -> Any:
    """A tokenizer like SentencePiece's, which adds a space before every text: decoded piece by piece, a text changes."""
    whole = Tokenizer(models.BPE(byte_fallback=True))
    whole.normalizer = normalizers.Replace(" ", "▁")
    whole.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    whole.decoder = decoders.Metaspace(prepend_scheme="first")
    whole.train_from_iterator([TEXT] * 4, trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"]))
    return _wrapped(whole, FAMILIES["mistral"])


def _trainer() -> trainers.BpeTrainer:
    return trainers.BpeTrainer(vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def _wrapped(whole: Tokenizer, own: Family) -> Any:
    """Like released tokenizers: special tokens, other added tokens, and one that is added at the beginning of every text."""
    named = [own.end, *([own.begin] if own.begin else [])]
    whole.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*named, *own.special)])
    whole.add_tokens([AddedToken(text, special=False, normalized=False) for text in own.plain])
    if own.begin:
        number = whole.token_to_id(own.begin)
        whole.post_processor = processors.TemplateProcessing(f"{own.begin} $A", f"{own.begin} $A $B", [(own.begin, number)])
    return PreTrainedTokenizerFast(tokenizer_object=whole, eos_token=own.end, bos_token=own.begin)


def learned(ids: list[int], mask: list[bool], of: Any) -> list[str]:
    """The text of each run of supervised tokens."""
    runs: list[list[int]] = []
    for number, (token, supervised) in enumerate(zip(ids, mask, strict=True)):
        if supervised and not (number and mask[number - 1]):
            runs.append([])
        if supervised:
            runs[-1].append(token)
    return [of.decode(run, clean_up_tokenization_spaces=False) for run in runs]
