"""What is supervised, family by family, as text written down by hand; and by two checks that know nothing of how it is found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.errors import UserError
from recipes.language import chat_labels
from recipes.language.assistant_spans import Turn
from recipes.language.chat_labels import check_template, tokenise
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
    return learned(*tokenise({"messages": messages, **row}, tokenizer(family), supervise), tokenizer(family))


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
def test_every_turn_of_the_assistant_to_its_end(family: str, expected: list[str]) -> None:
    assert supervised(family, CHAT) == expected
    assert supervised(family, CHAT, "last") == expected[1:]
    assert supervised(family, [*CHAT, user("Bye.")], "last")[0].endswith(expected[1].removeprefix("<think>\n\n</think>\n\n"))
    assert len(FAMILIES) == 8


@pytest.mark.parametrize("family", ["chatml", "llama3", "qwen3", "gemma3", "generation", "generation_unended"])
def test_a_system_prompt_changes_nothing(family: str) -> None:
    assert supervised(family, [SYSTEM, *CHAT]) == supervised(family, CHAT)


def test_tools_and_their_calls() -> None:
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


def test_thoughts_where_the_template_keeps_them() -> None:
    thoughtful = [user("Oslo?"), said("", tool_calls=[CALL], reasoning_content="Ask."), ERRAND[2], said("Cold.", reasoning_content="-3!")]
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert supervised("qwen3", thoughtful, tools=TOOLS) == [
        f"<think>\nAsk.\n</think>\n\n{call}<|im_end|>",
        "<think>\n-3!\n</think>\n\nCold.<|im_end|>",
    ]
    inline = [user("Oslo?"), said("<think>\n-3!\n</think>\n\nCold.")]
    assert supervised("qwen3", inline) == ["<think>\n-3!\n</think>\n\nCold.<|im_end|>"]


def test_thoughts_that_the_template_drops_are_not_trained_away() -> None:
    thoughtful = [user("Oslo?"), said("Cold.", reasoning_content="North."), user("Rome?"), said("Warm.", reasoning_content="South.")]
    with pytest.raises(UserError, match=r"messages\[1\]: the template leaves '<think>\\nNorth.\\n</think>\\n\\n' out.*supervise: last"):
        supervised("qwen3", thoughtful)
    assert supervised("qwen3", thoughtful, "last") == ["<think>\nSouth.\n</think>\n\nWarm.<|im_end|>"]
    errand = [user("Oslo?"), said("", tool_calls=[CALL], reasoning_content="Ask."), ERRAND[2], said("Cold."), *CHAT[2:]]
    with pytest.raises(UserError, match="messages.1.: the template leaves .*Ask"):
        supervised("qwen3", errand)
    with pytest.raises(UserError, match="messages.3.: the template rewrites what is past"):  # there generation still saw the thought
        tokenise({"prompt": errand[:3], "completion": errand[3:]}, tokenizer("qwen3"), "assistant")
    assert supervised("qwen3", errand, "last") == ["<think>\n\n</think>\n\nAnd to you.<|im_end|>"]


def test_what_mistral_moves_is_refused_where_it_was_moved() -> None:
    for messages, row in (([SYSTEM, *CHAT], {}), ([*ERRAND, *CHAT], {"tools": TOOLS})):
        with pytest.raises(UserError, match="the template rewrites what is past.*options.supervise: last"):
            supervised("mistral", messages, **row)
        assert supervised("mistral", messages, "last", **row) == [" And to you.</s>"]
    assert supervised("mistral", [SYSTEM, *CHAT[:2]]) == [" I am a machine.</s>"]


def test_what_a_template_refuses_or_passes_over_is_told() -> None:
    with pytest.raises(UserError, match="cannot write this chat: TemplateError: System role not supported"):
        supervised("gemma2", [SYSTEM, *CHAT])
    with pytest.raises(UserError, match="passes over `tool_calls`"):
        supervised("gemma3", [*ERRAND[:2], said("Cold.")])
    with pytest.raises(UserError, match="passes over `tools`"):
        supervised("chatml", CHAT, tools=TOOLS)
    with pytest.raises(UserError, match="passes over `reasoning_content`"):
        supervised("llama3", [user("Oslo?"), said("Cold.", reasoning_content="North.")])


def test_everything() -> None:
    ids, mask = tokenise({"messages": CHAT}, tokenizer("llama3"), "everything")
    assert ids[0] == tokenizer("llama3").bos_token_id and mask == [False] + [True] * (len(ids) - 1), "nothing stands before the first"
    ids, mask = tokenise({"prompt": "Good day.", "completion": " And"}, tokenizer("chatml"), "everything")
    assert mask == [False] + [True] * (len(ids) - 1)


def test_prompt_and_completion_as_messages() -> None:
    row = {"prompt": [SYSTEM, *CHAT[:3]], "completion": CHAT[3:]}
    of = tokenizer("chatml")
    assert learned(*tokenise(row, of, "assistant"), of) == ["And to you.<|im_end|>"], "what the assistant says in the prompt is given"
    assert tokenise(row, of, "assistant")[0] == tokenise({"messages": [SYSTEM, *CHAT]}, of, "assistant")[0]


@pytest.mark.parametrize("row", [{"messages": [SYSTEM, user("Hello?")]}, {"prompt": CHAT, "completion": [user("Bye.")]}])
@pytest.mark.parametrize("family", ["chatml", "generation"])
def test_nothing_supervised_is_an_error(family: str, row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="nothing is supervised in this row: no message to learn has the role assistant .roles: .*user"):
        tokenise(row, tokenizer(family), "assistant")


def test_a_lone_token_is_nobodys_target() -> None:
    of = tokenizer("chatml")
    with pytest.raises(UserError, match="nothing is supervised"):
        tokenise({"prompt": "", "completion": ""}, of, "assistant")


def test_a_tokenizer_that_puts_a_space_before_every_text() -> None:
    of = spaced()
    of.chat_template = families.template("mistral")
    ids, mask = tokenise({"messages": CHAT}, of, "assistant")
    assert [text.strip() for text in learned(ids, mask, of)] == ["I am a machine.</s>", "And to you.</s>"]
    assert ids == of.apply_chat_template(CHAT, tokenize=True, return_dict=True)["input_ids"]


@pytest.mark.parametrize("family", ["llama3", "gemma2", "gemma3", "mistral"])
def test_the_beginning_of_text_stands_once(family: str) -> None:
    of = tokenizer(family)
    ids, _ = tokenise({"messages": CHAT}, of, "assistant")
    assert ids[0] == of.bos_token_id and ids.count(of.bos_token_id) == 1
    assert of(of.decode(ids))["input_ids"][:2] == [of.bos_token_id] * 2, "which this tokenizer would double"


def test_the_ids_are_those_of_transformers() -> None:
    for family in FAMILIES:
        whole = tokenizer(family).apply_chat_template(CHAT, tokenize=True, return_dict=True)["input_ids"]
        ours, _ = tokenise({"messages": CHAT}, tokenizer(family), "assistant")
        assert ours == whole or family == "llama3", "whose clock stands still here"


def test_the_start_up_check_tells_the_way() -> None:
    assert "{% generation %}" in check_template(tokenizer("generation"))
    assert check_template(tokenizer("qwen3")).endswith("proven for each row, to the end-of-turn token")
    assert "only the last one" in check_template(tokenizer("chatml", "bad_shortened"))
    with pytest.raises(UserError, match="no end-of-turn token"):
        check_template(tokenizer("chatml", "bad_unended"))


# Two checks of the mask itself, by what generation does. Each is shown the bug that it is there for.


def check_generation_would_stand_there(messages: list[dict[str, Any]], family: str) -> None:
    """Before the first token of each run stand exactly the ids that generation is given at that turn."""
    of = tokenizer(family)
    ids, mask = tokenise({"messages": messages}, of, "assistant")
    starts = [place for place in range(len(ids)) if mask[place] and not mask[place - 1]]
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    given = [of.apply_chat_template(messages[:place], add_generation_prompt=True, return_dict=True)["input_ids"] for place in answers]
    assert [ids[:start] for start in starts] == given


def check_each_turn_ends(messages: list[dict[str, Any]], family: str) -> None:
    """The last token of each run is the one at which generation stops, and there are as many as turns."""
    ids, mask = tokenise({"messages": messages}, tokenizer(family), "assistant")
    lasts = [ids[place] for place in range(len(ids)) if mask[place] and not any(mask[place + 1 : place + 2])]
    assert lasts == [tokenizer(family).eos_token_id] * sum(message["role"] == "assistant" for message in messages)


PLAIN = ["chatml", "qwen3", "gemma2", "mistral"]
BOTH = [*PLAIN, "generation", "generation_unended"]


@pytest.mark.parametrize("family", BOTH)
def test_the_mask_agrees_with_generation(family: str) -> None:
    check_each_turn_ends(CHAT, family)
    check_generation_would_stand_there(CHAT, family)


@pytest.mark.parametrize("family", BOTH)
def test_a_mask_off_by_one_turn_is_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = chat_labels.find

    def off_by_one_turn(of: Any, text: str, wanted: list[int], ends: frozenset[str]) -> list[Turn]:
        turns = honest(of, text, wanted, ends)
        return [Turn(before.end, turn.start) for before, turn in zip([Turn(0, 0), *turns], turns, strict=False)]

    monkeypatch.setattr(chat_labels, "find", off_by_one_turn)
    with pytest.raises(AssertionError):
        check_generation_would_stand_there(CHAT, family)


@pytest.mark.parametrize("family", BOTH)
def test_an_end_of_turn_that_is_not_supervised_is_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, end = chat_labels.find, len(tokenizer(family).eos_token)
    monkeypatch.setattr(chat_labels, "find", lambda *asked: [Turn(turn.start, turn.end - end) for turn in honest(*asked)])
    with pytest.raises(AssertionError):
        check_each_turn_ends(CHAT, family)


words = st.text(st.sampled_from("ab c\n.:é漢<>|"), max_size=12)


@settings(max_examples=60)
@given(contents=st.lists(words, min_size=2, max_size=6), family=st.sampled_from(PLAIN))
def test_any_chat_agrees_with_generation_or_is_refused(contents: list[str], family: str) -> None:
    messages = [said(text) if number % 2 else user(text) for number, text in enumerate(contents)]
    try:
        tokenise({"messages": messages}, tokenizer(family), "assistant")
    except UserError as refusal:
        assert "the tokenizer joins" in str(refusal)
        return
    check_each_turn_ends(messages, family)
    check_generation_would_stand_there(messages, family)


def test_templates_are_all_used() -> None:
    assert len(list(families.TEMPLATES.glob("*.jinja"))) == 13
