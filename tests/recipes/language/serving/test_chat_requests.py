"""Tests of `overtone.recipes.language.serving.chat_requests`: the prompt is that of `overtone generate`, and nothing is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.recipes.language.answer_generation import LoadedModel, make_row, tokenize_prompt
from overtone.recipes.language.serving.chat_queue import ServedModel
from overtone.recipes.language.serving.chat_requests import ChatCall, parse_call
from overtone.recipes.serving.api_errors import Refusal
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from tests.recipes.llm_sft import families

USER = {"role": "user", "content": "Good day."}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def make_served(loaded: LoadedModel, family: str = "chatml") -> ServedModel:
    return ServedModel(LoadedModel(loaded.model, families.tokenizer(family), loaded.stop_ids), 0, 2000, 1000)


def parse(served: ServedModel, *messages: dict[str, Any], **fields: Any) -> Any:
    return parse_call(ChatCall(model="m", messages=[*messages], **fields), served)


def test_the_prompt_is_that_of_the_verb_generate(loaded: LoadedModel) -> None:
    served = make_served(loaded)
    tokenizer = served.loaded.tokenizer
    expected = tokenize_prompt(make_row("Good day.", "Be brief.", tokenizer), tokenizer)
    parts = {"role": "user", "content": [{"type": "text", "text": "Good "}, {"type": "text", "text": "day."}]}
    for role, user in (("system", USER), ("developer", USER), ("system", parts)):
        assert parse(served, {"role": role, "content": "Be brief."}, user).prompt == expected


def test_an_answer_that_comes_back_with_the_clients_empty_fields_is_accepted(loaded: LoadedModel) -> None:
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    answer = {"role": "assistant", "content": "Yes.", **empty}
    served = make_served(loaded)
    assert parse(served, USER, answer, USER).prompt == parse(served, USER, {"role": "assistant", "content": "Yes."}, USER).prompt


def test_tools_are_given_to_a_template_that_takes_them(loaded: LoadedModel) -> None:
    served = make_served(loaded, "qwen3")
    turns = (USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "1", "content": "cold"})
    text = served.loaded.tokenizer.decode(parse(served, *turns, tools=[TOOL]).prompt)
    assert '"weather"' in text and "cold" in text and "<tool_call>" in text


def test_a_chat_of_many_messages_is_rendered_a_few_times(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    served, rendered = make_served(loaded), list[int]()
    apply = served.loaded.tokenizer.apply_chat_template
    monkeypatch.setattr(
        served.loaded.tokenizer, "apply_chat_template", lambda *args, **kwargs: rendered.append(1) or apply(*args, **kwargs)
    )
    parse(served, *[{"role": "system", "content": str(number)} for number in range(30)], USER)
    assert len(rendered) < 6


@pytest.mark.parametrize(
    ("messages", "fields", "param", "message"),
    [
        ([USER], {"tools": [TOOL]}, "messages", "ignores `tools`"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, USER], {}, "messages", "ignores `tool_calls`"),
        ([{**USER, "name": "anna"}], {}, "messages", "ignores the name of messages[0] (user)"),
        ([{**USER, "weight": 0}], {}, "messages.0.weight", "not supported"),
        ([{"role": "critic", "content": "No."}], {}, "messages.0.role", "use system, developer, user"),
        ([{"role": "user"}], {}, "messages.0.content", "missing"),
        ([{"role": "user", "content": 3}], {}, "messages.0.content", "must be text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], {}, "messages.0.content.0", "'image_url'"),
        ([USER, {"role": "assistant", "content": "Yes."}], {}, "messages.1", "the last message is the assistant's"),
        ([{"role": "user", "content": "\ud800"}], {}, "messages", "lone surrogate"),
        ([{"role": "user", "content": "ab " * 1000}], {}, "messages", "tokens, and the model takes 2,000 tokens"),
        ([USER], {"max_tokens": 1001}, "max_tokens", "1,001 is more than this server generates, 1,000"),
        ([USER], {"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "differ"),
        ([USER], {"temperature": 0.001}, "temperature", "send 0"),
        ([USER], {"stop": ["a"] * 5}, "stop", "up to 4 texts"),
        ([USER], {"stop": ""}, "stop", "1 to 256 characters"),
    ],
)
def test_what_cannot_be_fulfilled_is_refused(
    messages: list[Any], fields: dict[str, Any], param: str, message: str, loaded: LoadedModel
) -> None:
    with pytest.raises(Refusal) as caught:
        parse(make_served(loaded), *messages, **fields)
    assert (caught.value.status_code, caught.value.param) == (400, param) and message in caught.value.detail


def test_a_role_that_the_template_refuses_is_reported(loaded: LoadedModel) -> None:
    with pytest.raises(Refusal, match="chat template cannot render"):
        parse(make_served(loaded, "gemma2"), {"role": "system", "content": "Be brief."}, USER)


def test_sampling_is_greedy_unless_the_request_says_otherwise(loaded: LoadedModel) -> None:
    served = make_served(loaded)
    assert parse(served, USER).sampler == parse(served, USER, temperature=0, top_p=0.5).sampler == CodeSampler(True)
    assert parse(served, USER, top_p=0.5).sampler == CodeSampler(False, 1.0, top_p=0.5)
    assert parse(served, USER, temperature=0.7).sampler == CodeSampler(False, 0.7)
    assert parse(served, USER, seed=4).seed == 4 and parse(served, USER).seed != parse(served, USER).seed


def test_an_answer_ends_where_the_context_ends(loaded: LoadedModel) -> None:
    served = make_served(loaded)
    prompt = parse(served, USER).prompt
    assert parse(served, USER, max_tokens=7).limit == parse(served, USER, max_completion_tokens=7).limit == 7
    assert parse(served, USER).limit == 1000
    assert parse(ServedModel(served.loaded, 0, len(prompt) + 5, 1000), USER, max_tokens=7).limit == 5
    assert parse(served, USER, stop="a").stops == ("a",) and parse(served, USER, stop=["a", "b"]).stops == ("a", "b")
