"""Tests of `overtone.recipes.language.gguf.tokenizer_check`: a file of the trained tokenizer passes, and no other one does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from overtone.finetune.errors import UserError
from overtone.finetune.storage.gguf_files import GgufHeader, read_header
from overtone.recipes.language.gguf import tokenizer_check
from overtone.recipes.language.gguf.tokenizer_check import TrainedTokenizer
from tests.finetune.storage.gguf_samples import write_gguf
from tests.recipes.language.gguf.tokenizers_of_llama_cpp import (
    CONTROL,
    KEY,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER,
    byte_level,
    describe,
    sentence_piece,
)
from tests.recipes.llm_sft import families


def trained(tokenizer: Any, *stops: int) -> TrainedTokenizer:
    return TrainedTokenizer(tokenizer, stops or (tokenizer.eos_token_id,))


def header(folder: Path, metadata: dict[str, Any]) -> GgufHeader:
    return read_header(write_gguf(folder / "model.gguf", metadata, {"a": ("F32", np.zeros(1))}))


def differences(folder: Path, tokenizer: Any, *stops: int, **changes: Any) -> list[str]:
    return tokenizer_check.find_differences(trained(tokenizer, *stops), header(folder, describe(tokenizer, **changes)))


def replaced(values: list[Any], place: int, value: Any) -> list[Any]:
    return [*values[:place], value, *values[place:][1:]]


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_a_file_of_the_trained_tokenizer_has_no_difference(tmp_path: Path, make: Any) -> None:
    assert differences(tmp_path, make()) == []


def test_ids_beyond_the_vocabulary_are_unused_tokens(tmp_path: Path) -> None:
    own = describe(byte_level())
    tokens, types = own[f"{KEY}tokens"], own[f"{KEY}token_type"]
    assert differences(tmp_path, byte_level(), tokens=[*tokens, "[PAD403]"], token_type=[*types, UNUSED]) == []
    assert differences(tmp_path, byte_level(), tokens=[*tokens, "new"], token_type=[*types, NORMAL]) == [
        f"token {len(tokens)} is 'new', which the trained vocabulary lacks"
    ]


def test_added_tokens_get_a_type_by_which_they_are_found_in_a_text(tmp_path: Path) -> None:
    """The converter knows them by `added_tokens_decoder` in tokenizer_config.json, which transformers 5 does not write."""
    tokenizer = byte_level()
    plain = describe(tokenizer, token_type=[NORMAL] * len(tokenizer))
    types = tokenizer_check.find_metadata(trained(tokenizer), header(tmp_path, plain))[f"{KEY}token_type"]
    assert types == describe(tokenizer)[f"{KEY}token_type"]
    assert differences(tmp_path, tokenizer, token_type=types) == []
    assert f"{KEY}token_type" not in tokenizer_check.find_metadata(trained(tokenizer), header(tmp_path, describe(tokenizer)))


def test_the_token_for_unknown_characters_may_have_its_own_type(tmp_path: Path) -> None:
    tokenizer = byte_level()
    end, types = tokenizer.convert_tokens_to_ids("<|im_end|>"), describe(tokenizer)[f"{KEY}token_type"]
    marked = replaced(types, end, UNKNOWN)
    assert differences(tmp_path, tokenizer, token_type=marked) == [
        f"token {end} (<|im_end|>) is not a control token, and the trained one is special"
    ]
    also = copy.deepcopy(tokenizer)
    also.unk_token = "<|im_end|>"
    assert differences(tmp_path, also, token_type=marked) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda own: {"model": "llama"}, "the vocabulary is of the kind 'llama', where the trained one is 'gpt2'"),
        (lambda own: {"pre": "qwen2"}, "the pre-tokenizer qwen2, with "),
        (lambda own: {"pre": "default"}, "the pre-tokenizer 'default', which was not compared"),
        (lambda own: {"pre": None}, "the pre-tokenizer None, which was not compared"),
        (lambda own: {"tokens": replaced(own["tokens"], 300, "other")}, "token 300 is 'other', where the trained one is "),
        (lambda own: {"tokens": own["tokens"][:-1]}, "tokens and "),
        (lambda own: {"merges": own["merges"][:-1]}, "merges, where the trained one has"),
        (lambda own: {"merges": None}, "it has 0 merges, where the trained one has"),
        (lambda own: {"merges": [*own["merges"][1::-1], *own["merges"][2:]]}, "merge 0 is "),
        (lambda own: {"token_type": [NORMAL] * len(own["tokens"])}, "(<|im_end|>) is not a control token, and the trained one is special"),
        (lambda own: {"token_type": [kind if kind != USER else NORMAL for kind in own["token_type"]]}, "(<think>) is not found in a text"),
        (lambda own: {"eos_token_id": 5}, "its eos token is 5, where the trained one is "),
        (lambda own: {"add_bos_token": True}, "llama.cpp would add a token before each text"),
        (lambda own: {"add_bos_token": None}, "llama.cpp would add a token before each text"),
    ],
)
def test_each_difference_is_named(tmp_path: Path, change: Any, complaint: str) -> None:
    own = {key.removeprefix(KEY): value for key, value in describe(byte_level()).items()}
    found = differences(tmp_path, byte_level(), **change(own))
    assert any(complaint in one for one in found), found


def test_another_template_is_a_difference(tmp_path: Path) -> None:
    other = {**describe(byte_level()), "tokenizer.chat_template": families.template("gemma3")}
    assert tokenizer_check.find_differences(trained(byte_level()), header(tmp_path, other)) == [
        "its chat template differs from the trained one"
    ]
    plain = byte_level(None)
    found = tokenizer_check.find_differences(trained(plain), header(tmp_path, {**describe(plain), "tokenizer.chat_template": "x"}))
    assert found == ["it has a chat template, and the trained tokenizer has none"]


def test_the_trained_ends_of_an_answer_end_it_in_llama_cpp(tmp_path: Path) -> None:
    """`<|im_start|>` stands for an end of turn that llama.cpp does not know by its text."""
    tokenizer = byte_level()
    end, start = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    assert differences(tmp_path, tokenizer, end, start) == [
        f"llama.cpp would not end an answer at <|im_start|> ({start}), where the training does"
    ]
    known = tokenizer_check.find_metadata(trained(tokenizer, end, start), header(tmp_path, describe(tokenizer)))
    assert known == {f"{KEY}add_bos_token": False, f"{KEY}add_eos_token": False, f"{KEY}eot_token_id": start}
    assert differences(tmp_path, tokenizer, end, start, eot_token_id=start) == []
    with pytest.raises(UserError, match=r"ends answers with the tokens \[1, 2, 3\], and a GGUF file can name 2"):
        tokenizer_check.find_metadata(trained(tokenizer, end, 1, 2, 3), header(tmp_path, describe(tokenizer)))


def test_a_token_that_ends_answers_too_early_is_a_difference(tmp_path: Path) -> None:
    tokenizer = byte_level()
    found = differences(tmp_path, tokenizer, tokenizer.convert_tokens_to_ids("<|im_start|>"))
    assert any("llama.cpp would end an answer at token" in one for one in found)


def test_scores_express_the_merges(tmp_path: Path) -> None:
    """Without a tokenizer.model, the converter writes one score for every token, by which llama.cpp would merge from the left."""
    tokenizer = sentence_piece()
    flat = describe(tokenizer, scores=[-1000.0] * len(tokenizer))
    metadata = tokenizer_check.find_metadata(trained(tokenizer), header(tmp_path, flat))
    assert metadata[f"{KEY}add_space_prefix"] is True and metadata[f"{KEY}add_bos_token"] is True
    scores = metadata[f"{KEY}scores"]
    assert isinstance(scores, list)
    found = {token: scores[number] for token, number in tokenizer.get_vocab().items()}
    assert found["ab"] > found["bc"] > found["▁a"] > found["abc"] > found["▁ab"] > found["▁abc"]
    assert differences(tmp_path, tokenizer, scores=scores) == []
    assert f"{KEY}scores" not in tokenizer_check.find_metadata(trained(tokenizer), header(tmp_path, describe(tokenizer)))


def test_scores_in_another_order_are_a_difference(tmp_path: Path) -> None:
    own = describe(sentence_piece())[f"{KEY}scores"]
    place = sentence_piece().convert_tokens_to_ids("bc")
    found = differences(tmp_path, sentence_piece(), scores=replaced(own, place, 5.0))
    assert found == ["the scores merge 'bc' before 'ab', and the trained tokenizer merges 'ab' first"]


def test_merges_that_scores_cannot_express_are_a_difference(tmp_path: Path) -> None:
    found = differences(tmp_path, sentence_piece(complete=False))
    assert found == ["the scores merge '▁ab' and 'c', which the trained tokenizer never merges"]


def test_a_tokenizer_that_llama_cpp_lacks_is_refused() -> None:
    wordpiece = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")))
    with pytest.raises(UserError, match="possible for BPE tokenizers without normalization, and this one is WordPiece with none"):
        _ = trained(wordpiece, 0).kind
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    with pytest.raises(UserError, match="neither bytes nor a fallback to bytes"):
        _ = trained(plain, 0).kind


@pytest.mark.parametrize(
    ("template", "begins"), [("<s>{{ messages[0].content }}", True), ("{{ messages[0].content }}", False), (None, True)]
)
def test_a_text_begins_with_a_token_if_tokenizer_and_template_add_it(template: str | None, begins: bool) -> None:
    tokenizer = sentence_piece()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    assert trained(made).begins is begins


def test_a_template_alone_adds_no_token() -> None:
    """SmolLM2: `<|im_start|>` is its beginning of text, and only the template writes it."""
    own = byte_level()
    made = PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>")
    made.chat_template = own.chat_template
    assert trained(made).begins is False


def test_control_tokens_are_those_of_the_format() -> None:
    assert (tokenizer_check.CONTROL, tokenizer_check.UNUSED) == (CONTROL, UNUSED)
