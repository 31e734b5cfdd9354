"""Rows as prompts: the tokens that generation gets, what rewards need, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.llm_grpo.options import Options, Reward, Rewards
from overtone.recipes.llm_grpo.prompt_rows import PromptProcessor, decode_row, list_unused, measure_length, read
from tests.recipes.llm_sft import families

QUESTION = [{"role": "user", "content": "17 + 25?"}]


def make_processor(positions: int | None = 96, **rewards: Any) -> PromptProcessor:
    given = Rewards.model_validate(rewards or {"exact_match": {}}, strict=False)
    return PromptProcessor(families.tokenizer("chatml"), Options(rewards=given, group=4, max_new_tokens=10), positions)


def test_a_prompt_has_the_tokens_that_generation_gets() -> None:
    processor = make_processor()
    sample = read({"prompt": QUESTION, "answer": "42"}, processor, Path())
    expected = processor.tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    assert processor.tokenizer.decode(sample["ids"]) == expected
    assert decode_row(sample) == {"prompt": QUESTION, "answer": "42"}
    assert measure_length(sample) == 4 * (len(sample["ids"]) + 11), "the answer's end is a token, too"
    assert read({"messages": QUESTION, "answer": 42}, processor, Path())["ids"].tolist() == sample["ids"].tolist()


def test_a_text_has_no_template() -> None:
    processor = make_processor()
    sample = read({"prompt": "17 + 25 =", "answer": "42"}, processor, Path())
    assert processor.tokenizer.decode(sample["ids"]) == "17 + 25 ="


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"answer": "42"}, "has neither 'prompt' nor 'messages'"),
        ({"prompt": QUESTION, "messages": QUESTION, "answer": "42"}, "has both 'prompt' and 'messages'; remove one"),
        ({"prompt": QUESTION}, "exact_match needs 'answer'"),
        ({"prompt": [*QUESTION, {"role": "assistant", "content": "42"}], "answer": "42"}, "the last message is the assistant's"),
        ({"prompt": [], "answer": "42"}, "messages"),
        ({"prompt": 3, "answer": "42"}, "messages"),
        ({"prompt": "", "answer": "42"}, "the prompt has no tokens"),
        ({"prompt": "a", "tools": [{}], "answer": "42"}, "has 'tools', but its prompt is a text"),
        ({"prompt": "word " * 100, "answer": "42"}, r"with options\.max_new_tokens: 10 more than the model's 96 positions"),
    ],
)
def test_a_row_that_cannot_be_answered_or_rewarded_is_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read(row, make_processor(), Path())


def test_a_model_without_a_limit_reads_long_prompts() -> None:
    assert len(read({"prompt": "word " * 100, "answer": "42"}, make_processor(None), Path())["ids"]) > 96


def test_keys_that_no_reward_reads_are_counted() -> None:
    row = {"prompt": "a", "answer": "42", "schema": {}, "level": 3, "source": "a.jsonl:3", "empty": ""}
    assert list_unused({**row, "schema": {"type": "integer"}}, make_processor()) == ["key schema", "key level"]
    assert list_unused(row, make_processor(length={})) == ["key answer", "key schema", "key level"]
    assert list_unused(row, make_processor(json_schema={}, judge={"url": "http://127.0.0.1:9", "model": "m"})) == ["key level"]
    assert list_unused(row, make_processor(functions=Path("f.py"))) == [], "functions may read all of it"


def test_what_the_template_may_drop_is_dropped_and_counted() -> None:
    row = {"prompt": [{"role": "system", "content": "Be brief."}, *QUESTION], "answer": "42"}
    given = Options(rewards=Rewards(exact_match=Reward()), group=4, max_new_tokens=10)
    tokenizer = families.tokenizer("chatml")
    without = copy.deepcopy(tokenizer)
    without.chat_template = "{% for message in messages if message.role != 'system' %}{{ message.content }}{% endfor %}"
    with pytest.raises(UserError, match=r"the model's chat template ignores the content of messages\[0\] \(system\); remove it"):
        read(row, PromptProcessor(without, given, 96), Path())
    allowed = PromptProcessor(without, given.model_copy(update={"allow_dropped": ("system",)}), 96)
    assert without.decode(read(row, allowed, Path())["ids"]) == "17 + 25?"
    assert list_unused(row, allowed) == ["system, which the chat template drops"]
