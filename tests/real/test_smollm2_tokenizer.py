"""The tokenizer that is written from a GGUF is proven equal to it, and each difference is found."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from overtone.finetune.errors import UserError
from tests.real.smollm2_tokenizer import CONTROL, NORMAL, GgufTokenizer, check_tokenizer, encode, read_gguf_tokenizer, write_tokenizer
from tests.real.smollm2_tokenizer import _list_byte_letters as list_byte_letters

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "1 2", "Ġ 1", "Ġ Â"]
TOKENS = [*CONTROLS, *list_byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
GIVEN = GgufTokenizer(
    TOKENS, [CONTROL] * 4 + [NORMAL] * (len(TOKENS) - 4), MERGES, begin=1, end=2, unknown=0, padding=2, template="{{ messages }}"
)


class Field:
    def __init__(self, value: Any) -> None:
        self.contents = lambda: value


def fields_of(**changed: Any) -> dict[str, Field]:
    named = {
        "ggml.model": "gpt2", "ggml.pre": "smollm", "ggml.add_bos_token": False, "ggml.tokens": TOKENS, "ggml.token_type": GIVEN.kinds,
        "ggml.merges": MERGES, "ggml.bos_token_id": 1, "ggml.eos_token_id": 2, "ggml.unknown_token_id": 0, "ggml.padding_token_id": 2,
        "chat_template": GIVEN.template,
    }  # fmt: skip
    return {f"tokenizer.{key}": Field(value) for key, value in (named | {f"ggml.{key}": value for key, value in changed.items()}).items()}


def test_it_is_read_from_the_fields_and_others_are_refused() -> None:
    assert read_gguf_tokenizer(fields_of()) == GIVEN
    for changed in ({"pre": "llama-bpe"}, {"model": "llama"}, {"add_bos_token": True}):
        with pytest.raises(UserError, match="the tokenizer of the GGUF is .*; the builder knows"):
            read_gguf_tokenizer(fields_of(**changed))
    with pytest.raises(UserError, match=r"tokens of types \[1, 3, 4\]"):
        read_gguf_tokenizer(fields_of(token_type=[4, *GIVEN.kinds[1:]]))
    with pytest.raises(UserError, match="the GGUF has no field tokenizer.ggml.merges"):
        read_gguf_tokenizer({key: field for key, field in fields_of().items() if not key.endswith("merges")})


def test_the_reference_splits_digits_before_all_else() -> None:
    def tokens(text: str) -> list[str]:
        return [TOKENS[number] for number in encode(GIVEN, text)]

    assert tokens("in the in") == ["in", "Ġthe", "Ġ", "in"]
    assert tokens(" 12") == ["Ġ", "1", "2"], "no merge joins digits with each other or with a space"
    assert tokens(" ½") == ["Ġ", "Â", "½"], "nor other numerals"


def test_what_is_written_is_the_same_tokenizer(tmp_path: Path) -> None:
    write_tokenizer(GIVEN, tmp_path)
    check_tokenizer(GIVEN, tmp_path)


@pytest.mark.parametrize(
    ("difference", "changed"),
    [
        ("tokens", {"tokens": [*TOKENS[:-2], TOKENS[-1], TOKENS[-2]]}),
        ("merges", {"merges": [*MERGES[1:], MERGES[0]]}),
        ("begin, end, unknown, padding", {"end": 0}),
        ("control tokens", {"kinds": [*GIVEN.kinds[:3], NORMAL, *GIVEN.kinds[4:]]}),
        ("template", {"template": "{{ other }}"}),
    ],
)
def test_each_difference_is_found(tmp_path: Path, difference: str, changed: dict[str, Any]) -> None:
    write_tokenizer(replace(GIVEN, **changed), tmp_path)
    with pytest.raises(UserError, match=f"differs from the GGUF in {difference}: "):
        check_tokenizer(GIVEN, tmp_path)


def test_a_pre_tokenizer_that_does_not_split_digits_is_found(tmp_path: Path) -> None:
    write_tokenizer(GIVEN, tmp_path)
    whole = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    whole["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(UserError, match="differs from the GGUF in pre-tokenizer: "):
        check_tokenizer(GIVEN, tmp_path)
    assert encode(GIVEN, " ½") != AutoTokenizer.from_pretrained(tmp_path)(" ½")["input_ids"]
