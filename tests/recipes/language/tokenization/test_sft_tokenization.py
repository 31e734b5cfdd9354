"""The supervised text of each family written by hand, and two checks by what generation does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.finetune.errors import UserError
from overtone.recipes.language.collation import IGNORE, collate
from overtone.recipes.language.tokenization import sft_tokenization
from overtone.recipes.language.tokenization.assistant_spans import TurnSpan
from overtone.recipes.language.tokenization.sft_tokenization import check_template, tokenize_row
from tests.recipes.llm_sft import families
from tests.recipes.llm_sft.families import FAMILIES, learned, spaced, tokenizer


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
CHAT = [user("Who are you?"), said("I am a machine."), user("Good day."), said("And to you.")]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "?", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"type": "function", "id": "abc", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
ERRAND = [user("Oslo?"), {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "-3"}, said("Cold.")]


def supervised(family: str, messages: list[dict[str, Any]], supervise: str = "assistant", **row: Any) -> list[str]:
    return learned(*tokenize_row({"messages": messages, **row}, tokenizer(family), supervise), tokenizer(family))


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("chatml", ["I am a machine.<|im_end|>", "And to you.<|im_end|>"]),
        ("llama3", ["I am a machine.<|eot_id|>", "And to you.<|eot_id|>"]),
        ("qwen3", ["I am a machine.<|im_end|>", "<think>\n\n</think>\n\nAnd to you.<|im_end|>"]),
        ("gemma2", ["I am a machine.<end_of_turn>", "And to you.<end_of_turn>"]),
        ("gemma3", ["I am a machine.<end_of_turn>", "And to you.<end_of_turn>"]),
        ("mistral", [" I am a machine.</s>", " And to you.</s>"]),
        ("generation", ["I am a machine.<|im_end|>", "And to you.<|im_end|>"]),
        ("generation_unended", ["I am a machine.</s>", "And to you.</s>"]),
    ],
)
def test_every_turn_of_the_assistant_is_supervised_with_its_end_token(family: str, expected: list[str]) -> None:
    assert supervised(family, CHAT) == expected
    assert supervised(family, CHAT, "last") == expected[1:]
    assert supervised(family, [*CHAT, user("Bye.")], "last")[0].endswith(expected[1].removeprefix("<think>\n\n</think>\n\n"))
    assert len(FAMILIES) == 8


@pytest.mark.parametrize("family", ["chatml", "llama3", "qwen3", "gemma3", "generation", "generation_unended"])
def test_a_system_prompt_does_not_change_what_is_supervised(family: str) -> None:
    assert supervised(family, [SYSTEM, *CHAT]) == supervised(family, CHAT)


@pytest.mark.parametrize("family", ["chatml", "llama3", "generation"])
def test_an_answer_with_weight_0_is_read_and_not_learned(family: str) -> None:
    weighted = [CHAT[0], {**CHAT[1], "weight": 0}, CHAT[2], {**CHAT[3], "weight": 1}]
    assert supervised(family, weighted) == supervised(family, CHAT)[1:]
    with pytest.raises(UserError, match="only the last answer would be, and it has weight 0; remove the row, or use supervise: assistant"):
        supervised(family, [*CHAT[:2], CHAT[2], {**CHAT[3], "weight": 0}], "last")
    everything = "".join(supervised(family, weighted, "everything"))
    assert "I am a machine." not in everything and "Who are you?" in everything and "And to you." in everything
    row = {"messages": weighted}
    assert tokenize_row(row, tokenizer(family), "assistant")[0] == tokenize_row({"messages": CHAT}, tokenizer(family), "assistant")[0]
    with pytest.raises(UserError, match="every answer in it has weight 0"):
        supervised(family, weighted[:2])
    with pytest.raises(UserError, match="weight must be 0"):
        supervised(family, [CHAT[0], {**CHAT[1], "weight": "low"}])


def test_the_loss_ignores_an_answer_with_weight_0() -> None:
    """Its tokens are no targets of a batch, so any other answer in its place gives the same targets."""

    def targets(answer: str) -> list[int]:
        chat = [CHAT[0], said(answer, weight=0), *CHAT[2:]]
        ids, mask = tokenize_row({"messages": chat}, tokenizer("chatml"), "assistant")
        batch = collate([{"ids": torch.tensor(ids), "supervised": torch.tensor(mask)}])
        return [target for target in batch.tensors["targets"].flatten().tolist() if target != IGNORE]

    assert targets("I am a machine.") == targets("Something entirely different.")
    assert tokenizer("chatml").decode(targets("I am a machine.")) == "And to you.<|im_end|>"


def test_tool_calls_are_supervised_and_tool_results_are_not() -> None:
    call = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    assert supervised("qwen3", [SYSTEM, *ERRAND], tools=TOOLS) == [
        f"<tool_call>\n{call}\n</tool_call><|im_end|>",
        "<think>\n\n</think>\n\nCold.<|im_end|>",
    ]
    assert supervised("llama3", [SYSTEM, *ERRAND], tools=TOOLS) == [
        '{"name": "weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
        "Cold.<|eot_id|>",
    ]
    assert supervised("mistral", ERRAND, tools=TOOLS) == [
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}, "id": "abc"}]</s>',
        " Cold.</s>",
    ]


def test_thoughts_that_the_template_renders_are_supervised() -> None:
    thoughtful = [user("Oslo?"), said("", tool_calls=[CALL], reasoning_content="Ask."), ERRAND[2], said("Cold.", reasoning_content="-3!")]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert supervised("qwen3", thoughtful, tools=TOOLS) == [
        f"<think>\nAsk.\n</think>\n\n{call}<|im_end|>",
        "<think>\n-3!\n</think>\n\nCold.<|im_end|>",
    ]
    inline = [user("Oslo?"), said("<think>\n-3!\n</think>\n\nCold.")]
    assert supervised("qwen3", inline) == ["<think>\n-3!\n</think>\n\nCold.<|im_end|>"]


def test_a_row_with_thoughts_that_the_template_drops_is_refused() -> None:
    thoughtful = [user("Oslo?"), said("Cold.", reasoning_content="North."), user("Rome?"), said("Warm.", reasoning_content="South.")]
    with pytest.raises(UserError, match=r"messages\[1\]: the template drops '<think>\\nNorth.\\n</think>\\n\\n' from.*supervise: last"):
        supervised("qwen3", thoughtful)
    assert supervised("qwen3", thoughtful, "last") == ["<think>\nSouth.\n</think>\n\nWarm.<|im_end|>"]
    errand = [user("Oslo?"), said("", tool_calls=[CALL], reasoning_content="Ask."), ERRAND[2], said("Cold."), *CHAT[2:]]
    with pytest.raises(UserError, match="messages.1.: the template drops .*Ask"):
        supervised("qwen3", errand)
    with pytest.raises(UserError, match="messages.3.: the template rewrites earlier messages"):  # generation still saw the thought there
        tokenize_row({"prompt": errand[:3], "completion": errand[3:]}, tokenizer("qwen3"), "assistant")
    assert supervised("qwen3", errand, "last") == ["<think>\n\n</think>\n\nAnd to you.<|im_end|>"]


def test_turns_before_a_moved_system_prompt_or_tools_are_refused() -> None:
    for messages, row in (([SYSTEM, *CHAT], {}), ([*ERRAND, *CHAT], {"tools": TOOLS})):
        with pytest.raises(UserError, match="the template rewrites earlier messages.*options.supervise: last"):
            supervised("mistral", messages, **row)
        assert supervised("mistral", messages, "last", **row) == [" And to you.</s>"]
    assert supervised("mistral", [SYSTEM, *CHAT[:2]]) == [" I am a machine.</s>"]


def test_fields_that_a_template_refuses_or_ignores_are_errors() -> None:
    with pytest.raises(UserError, match="cannot render this chat: TemplateError: System role not supported"):
        supervised("gemma2", [SYSTEM, *CHAT])
    with pytest.raises(UserError, match="ignores `tool_calls`"):
        supervised("gemma3", [*ERRAND[:2], said("Cold.")])
    with pytest.raises(UserError, match="ignores `tools`"):
        supervised("chatml", CHAT, tools=TOOLS)
    with pytest.raises(UserError, match="ignores `reasoning_content`"):
        supervised("llama3", [user("Oslo?"), said("Cold.", reasoning_content="North.")])


def test_everything_supervises_all_tokens_but_the_first() -> None:
    ids, mask = tokenize_row({"messages": CHAT}, tokenizer("llama3"), "everything")
    assert ids[0] == tokenizer("llama3").bos_token_id and mask == [False] + [True] * (len(ids) - 1), "nothing comes before the first"
    ids, mask = tokenize_row({"prompt": "Good day.", "completion": " And"}, tokenizer("chatml"), "everything")
    assert mask == [False] + [True] * (len(ids) - 1)


def test_messages_of_a_prompt_are_not_supervised() -> None:
    row = {"prompt": [SYSTEM, *CHAT[:3]], "completion": CHAT[3:]}
    of = tokenizer("chatml")
    assert learned(*tokenize_row(row, of, "assistant"), of) == ["And to you.<|im_end|>"], (
        "the assistant's message in the prompt is not learned"
    )
    assert tokenize_row(row, of, "assistant")[0] == tokenize_row({"messages": [SYSTEM, *CHAT]}, of, "assistant")[0]


@pytest.mark.parametrize("row", [{"messages": [SYSTEM, user("Hello?")]}, {"prompt": CHAT, "completion": [user("Bye.")]}])
@pytest.mark.parametrize("family", ["chatml", "generation"])
def test_a_row_without_supervised_tokens_is_refused(family: str, row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="nothing is supervised in this row: no message to learn has the role assistant .roles: .*user"):
        tokenize_row(row, tokenizer(family), "assistant")


def test_a_single_token_is_no_target() -> None:
    of = tokenizer("chatml")
    with pytest.raises(UserError, match="nothing is supervised"):
        tokenize_row({"prompt": "", "completion": ""}, of, "assistant")


def test_a_tokenizer_that_adds_a_space_before_every_text_is_supported() -> None:
    of = spaced()
    of.chat_template = families.template("mistral")
    ids, mask = tokenize_row({"messages": CHAT}, of, "assistant")
    assert [text.strip() for text in learned(ids, mask, of)] == ["I am a machine.</s>", "And to you.</s>"]
    assert ids == of.apply_chat_template(CHAT, tokenize=True, return_dict=True)["input_ids"]


@pytest.mark.parametrize("family", ["llama3", "gemma2", "gemma3", "mistral"])
def test_the_beginning_of_text_is_not_doubled(family: str) -> None:
    of = tokenizer(family)
    ids, _ = tokenize_row({"messages": CHAT}, of, "assistant")
    assert ids[0] == of.bos_token_id and ids.count(of.bos_token_id) == 1
    assert of(of.decode(ids))["input_ids"][:2] == [of.bos_token_id] * 2, "this tokenizer adds it again"


def test_ids_equal_those_of_transformers() -> None:
    for family in FAMILIES:
        whole = tokenizer(family).apply_chat_template(CHAT, tokenize=True, return_dict=True)["input_ids"]
        ours, _ = tokenize_row({"messages": CHAT}, tokenizer(family), "assistant")
        assert ours == whole or family == "llama3", "whose date is fixed here"


def test_the_check_of_a_template_says_how_turns_are_found() -> None:
    assert "{% generation %}" in check_template(tokenizer("generation"))
    assert check_template(tokenizer("qwen3")).endswith("proven for each row, up to the end-of-turn token")
    assert "only the last one" in check_template(tokenizer("chatml", "bad_shortened"))
    with pytest.raises(UserError, match="no end-of-turn token"):
        check_template(tokenizer("chatml", "bad_unended"))


# Two checks of the mask by what generation does. For each, a test shows that it detects its bug.


def check_prompts_equal_generations(messages: list[dict[str, Any]], family: str) -> None:
    """The ids before the first token of each run are exactly those that generation is given at that turn."""
    of = tokenizer(family)
    ids, mask = tokenize_row({"messages": messages}, of, "assistant")
    starts = [place for place in range(len(ids)) if mask[place] and not mask[place - 1]]
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    given = [of.apply_chat_template(messages[:place], add_generation_prompt=True, return_dict=True)["input_ids"] for place in answers]
    assert [ids[:start] for start in starts] == given


def check_each_turn_ends(messages: list[dict[str, Any]], family: str) -> None:
    """The last token of each run is the one at which generation stops, and there are as many runs as turns."""
    ids, mask = tokenize_row({"messages": messages}, tokenizer(family), "assistant")
    lasts = [ids[place] for place in range(len(ids)) if mask[place] and not any(mask[place + 1 : place + 2])]
    assert lasts == [tokenizer(family).eos_token_id] * sum(message["role"] == "assistant" for message in messages)


PLAIN = ["chatml", "qwen3", "gemma2", "mistral"]
BOTH = [*PLAIN, "generation", "generation_unended"]


@pytest.mark.parametrize("family", BOTH)
def test_the_mask_agrees_with_generation(family: str) -> None:
    check_each_turn_ends(CHAT, family)
    check_prompts_equal_generations(CHAT, family)


@pytest.mark.parametrize("family", BOTH)
def test_the_check_detects_a_mask_that_is_off_by_one_turn(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = sft_tokenization.find_turns

    def off_by_one_turn(of: Any, text: str, messages: list[int], ends: frozenset[str]) -> list[TurnSpan]:
        turns = original(of, text, messages, ends)
        return [TurnSpan(before.end, turn.start) for before, turn in zip([TurnSpan(0, 0), *turns], turns, strict=False)]

    monkeypatch.setattr(sft_tokenization, "find_turns", off_by_one_turn)
    with pytest.raises(AssertionError):
        check_prompts_equal_generations(CHAT, family)


@pytest.mark.parametrize("family", BOTH)
def test_the_check_detects_an_end_token_that_is_not_supervised(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, end = sft_tokenization.find_turns, len(tokenizer(family).eos_token)
    monkeypatch.setattr(sft_tokenization, "find_turns", lambda *given: [TurnSpan(turn.start, turn.end - end) for turn in original(*given)])
    with pytest.raises(AssertionError):
        check_each_turn_ends(CHAT, family)


words = st.text(st.sampled_from("ab c\n.:é漢<>|"), max_size=12)


@settings(max_examples=60)
@given(contents=st.lists(words, min_size=2, max_size=6), family=st.sampled_from(PLAIN))
def test_any_chat_agrees_with_generation_or_is_refused(contents: list[str], family: str) -> None:
    messages = [said(text) if number % 2 else user(text) for number, text in enumerate(contents)]
    try:
        tokenize_row({"messages": messages}, tokenizer(family), "assistant")
    except UserError as refusal:
        assert "the tokenizer merges" in str(refusal)
        return
    check_each_turn_ends(messages, family)
    check_prompts_equal_generations(messages, family)


def test_all_templates_are_listed() -> None:
    assert len(list(families.TEMPLATES.glob("*.jinja"))) == 13


@pytest.mark.parametrize("family", ["chatml", "llama3", "mistral"])
def test_all_of_a_raw_text_is_learned_and_the_end_only_where_it_ends(family: str) -> None:
    of = tokenizer(family)
    begins = of("")["input_ids"]
    ids, mask = tokenize_row({"text": "It was cold.", "ends": True, "source": "a.txt:1#2"}, of, "assistant")
    assert ids == [*begins, *of("It was cold.", add_special_tokens=False)["input_ids"], of.eos_token_id]
    assert mask == [False, *[True] * (len(ids) - 1)]
    assert tokenize_row({"text": "It was cold.", "ends": False}, of, "last") == (ids[:-1], mask[:-1])
    assert tokenize_row({"text": f"It was cold.{of.eos_token}", "ends": True}, of, "last") == (ids, mask), "one end is enough"
    assert sft_tokenization.list_unused({"text": "It was cold.", "ends": True}, of, ()) == []


def test_keys_of_a_row_that_nothing_reads_are_counted() -> None:
    of, chat = tokenizer("chatml"), [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Good day."}]
    read = {"messages": chat, "tools": None, "mask": "user", "source": "a.jsonl:3"}
    assert sft_tokenization.list_unused(read, of, ()) == []
    unread = {"prompt": "Hello.", "score": 0, "system": "", "meta": None}
    assert sft_tokenization.list_unused({**read, **unread}, of, ()) == ["key prompt", "key score"], "empty ones hold nothing"
    text = {"prompt": "Hello.", "completion": "Good day.", "tools": [{"name": "clock"}]}
    assert sft_tokenization.list_unused(text, of, ()) == ["key tools"]
    assert sft_tokenization.list_unused({"prompt": chat[:1], "completion": chat[1:], "id": "7"}, of, ()) == ["key id"]


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"text": "a"}, "found text$"),
        ({"text": "a", "ends": True, "label": 1}, "found text, ends, label$"),
        ({"text": "a", "audio_codes": [[1]]}, "clip of speech"),
        ({"text": "a", "ends": "no"}, "ends must be true or false, found 'no'"),
        ({"text": "", "ends": False}, "nothing is supervised"),
        ({"text": 3, "ends": True}, "expected"),
    ],
)
def test_a_text_that_may_be_something_else_is_refused(row: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=part):
        tokenize_row(row, tokenizer("chatml"), "assistant")
