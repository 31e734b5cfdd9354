"""The tokenizer of SmolLM2 from the fields of its GGUF, and the proof that the folder's tokenizer is the same one.

`from_pretrained(gguf_file=…)` of transformers makes another one of these fields: Llama's, with other special tokens. The class in
tokenizer_config.json must be the general one: with `GPT2Tokenizer`, transformers 5 drops the pre-tokenizer of tokenizer.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

from overtone.finetune.errors import UserError

NORMAL, CONTROL = 1, 3
"""Types of tokens in a GGUF."""
DIGIT = regex.compile(r"\p{N}")
PIECE = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
"""What llama.cpp's pre-tokenizer `smollm` splits at: every digit first, then GPT-2's pieces."""
PRE_TOKENIZERS = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
"""The same in `tokenizers`."""
PROBES = (
    "What is the capital of France?",
    "In 2024, it's 1234567 times 3.14; we'll see, they've gone.",
    "  two leading spaces,\ttabs\t\tand\n\n\nlines  \n with ends ",
    "½ and ² and ١٢ and Ⅷ after a space",
    "naïve café, Привет, 你好, 😀‍👩 e\u0301",
    '{"name": "Ada", "age": 36, "tags": ["a_b", "C++"]}',
    "",
)


@dataclass(frozen=True)
class GgufTokenizer:
    """A byte-level BPE tokenizer as a GGUF describes it."""

    tokens: list[str]
    kinds: list[int]
    """`NORMAL` or `CONTROL`, for each token."""
    merges: list[str]
    """Two tokens with a space between them; the first merge is the first to be applied."""
    begin: int
    end: int
    unknown: int
    padding: int
    template: str

    @property
    def control_tokens(self) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind == CONTROL]


def read_gguf_tokenizer(fields: Any) -> GgufTokenizer:
    """From the fields of a `gguf.GGUFReader`. Raises `UserError` for a tokenizer of another kind than SmolLM2's."""

    def get(key: str) -> Any:
        if f"tokenizer.{key}" not in fields:
            raise UserError(f"the GGUF has no field tokenizer.{key}")
        return fields[f"tokenizer.{key}"].contents()

    kind = (get("ggml.model"), get("ggml.pre"), get("ggml.add_bos_token"))
    if kind != ("gpt2", "smollm", False):
        raise UserError(f"the tokenizer of the GGUF is {kind}; the builder knows ('gpt2', 'smollm', False), without a token at the begin")
    kinds = get("ggml.token_type")
    if not set(kinds) <= {NORMAL, CONTROL}:
        raise UserError(f"the GGUF has tokens of types {sorted(set(kinds))}; the builder knows {NORMAL} and {CONTROL}")
    ids = (get(f"ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding"))
    return GgufTokenizer(get("ggml.tokens"), kinds, get("ggml.merges"), *ids, template=get("chat_template"))


def write_tokenizer(given: GgufTokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    merges = [(left, right) for left, right in (merge.split(" ") for merge in given.merges)]
    whole = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(given.tokens)}, merges=merges))
    whole.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS)
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in given.control_tokens])
    whole.save(str(folder / "tokenizer.json"))
    names = {"bos": given.begin, "eos": given.end, "unk": given.unknown, "pad": given.padding}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": given.tokens[number] for name, number in names.items()},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(given.template, encoding="utf-8")


def check_tokenizer(given: GgufTokenizer, folder: Path) -> None:
    """Compare what transformers loads from `folder` with the GGUF: ids, merges, special tokens, template, and the ids of `PROBES`.

    Raises `UserError` with the first difference.
    """
    loaded = AutoTokenizer.from_pretrained(folder)
    whole = json.loads(loaded.backend_tokenizer.to_str())
    expected = Tokenizer(models.BPE())
    expected.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS)
    special = (loaded.bos_token_id, loaded.eos_token_id, loaded.unk_token_id, loaded.pad_token_id)
    begins = loaded("a")["input_ids"] != encode(given, "a")
    found = {
        "tokens": ([loaded.convert_ids_to_tokens(number) for number in range(len(loaded))], given.tokens),
        "merges": ([" ".join(pair) for pair in whole["model"]["merges"]], given.merges),
        "pre-tokenizer": (whole["pre_tokenizer"], json.loads(expected.to_str())["pre_tokenizer"]),
        "begin, end, unknown, padding": (special, (given.begin, given.end, given.unknown, given.padding)),
        "control tokens": ([loaded.tokenize(f"a{token}")[1:] for token in given.control_tokens], [[each] for each in given.control_tokens]),
        "token before a text": (begins, False),
        "template": (loaded.chat_template, given.template),
        **{f"ids of {text!r}": (loaded(text, add_special_tokens=False)["input_ids"], encode(given, text)) for text in PROBES},
    }
    for name, (made, given_by_gguf) in found.items():
        if made != given_by_gguf:
            raise UserError(f"the tokenizer that transformers loads from {folder} differs from the GGUF in {name}: {made!r:.300}")


def encode(given: GgufTokenizer, text: str) -> list[int]:
    """Ids of a text without control tokens: byte-level BPE written out, which shares no code with `tokenizers`."""
    numbers = {token: number for number, token in enumerate(given.tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(given.merges)}
    letters = _list_byte_letters()
    found = []
    for piece in _split(text):
        parts = [letters[byte] for byte in piece.encode("utf-8")]
        while pairs := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [numbers[part] for part in parts]
    return found


def _split(text: str) -> list[str]:
    pieces, position = [], 0
    for digit in [*DIGIT.finditer(text), None]:
        pieces += PIECE.findall(text[position : digit.start() if digit else len(text)])
        if digit:
            pieces.append(digit[0])
            position = digit.end()
    return pieces


def _list_byte_letters() -> list[str]:
    """GPT-2's letter for each byte: itself if it is printable in Latin-1, or else the next one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + hidden.index(byte)) for byte in range(256)]
