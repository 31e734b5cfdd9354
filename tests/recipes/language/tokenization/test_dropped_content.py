"""Nothing that a chat template drops stays unnoticed, and nothing that it renders is refused."""

from __future__ import annotations

import copy
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overtone.data_prep.chats.chat_messages import read_messages, read_tools
from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.chat_template import make_chat
from overtone.recipes.language.tokenization.dropped_content import find_dropped, list_parts
from overtone.recipes.language.tokenization.sft_tokenization import list_unused, tokenize_row
from tests.recipes.llm_sft.families import FAMILIES, tokenizer

ASKED, SAID = {"role": "user", "content": "Oslo?"}, {"role": "assistant", "content": "Cold."}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}}}]
CODE = 'def f(x):\n    return {"a": [1, \'b\'], "c": "<&>"}  # naïve \u2028 漢字\\n'


def call(arguments: Any, id: str = "abcdefghi") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def result(content: str, id: str = "abcdefghi") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": id, "name": "weather"}


def errand(*calls: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [ASKED, {"role": "assistant", "tool_calls": [*calls], **more}, result("-3"), SAID], "tools": TOOLS}


def dropped(row: dict[str, Any], of: Any, learns: bool = True) -> list[str]:
    chat = make_chat(read_messages(row)[0], read_tools(row), of)
    return [each.what for each in find_dropped(chat, chat.render(), learns)]


WHOLE: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [ASKED, SAID]},
    "equal texts": {"messages": [{**ASKED, "content": "Hi"}, {**SAID, "content": "Hi"}] * 2},
    "words of templates": {"messages": [{**ASKED, "content": "user"}, {**SAID, "content": "assistant"}]},
    "code": {"messages": [{**ASKED, "content": CODE}, {**SAID, "content": CODE}]},
    "white space": {"messages": [{**ASKED, "content": "  a\n\n b \t"}, {**SAID, "content": "x \n y\n"}]},
    "thoughts in the content": {"messages": [ASKED, {**SAID, "content": "<think>\nNorth.\n</think>\n\nCold."}, ASKED, SAID]},
    "a call": errand(call({"city": "Oslo"})),
    "arguments of all kinds": errand(
        call({"city": 'Os"lo\n漢 <b>', "n": 3, "x": 1.5, "e": 1e-05, "t": True, "z": None, "l": ["a b", {"k": "v"}], "o": {}, "s": ""})
    ),
    "no arguments": errand(call({})),
    "arguments as text": errand(call('{"city": "Oslo"}')),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("family", ["qwen3", "llama3", "mistral", "chatml", "gemma2", "generation"])
def test_what_is_rendered_is_not_refused(name: str, family: str) -> None:
    row = WHOLE[name]
    if "tools" in row and family in ("chatml", "gemma2", "generation"):
        pytest.skip("this template has no tools")
    if name == "thoughts in the content" and family == "gemma2":
        pytest.skip("this template refuses nothing here")
    assert dropped(row, tokenizer(family)) == []


def with_template(jinja: str, family: str = "chatml") -> Any:
    of = copy.deepcopy(tokenizer(family))
    of.chat_template = jinja
    return of


TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
ALL = "{% for m in messages %}" + TURN + "{% endfor %}"
ANSWER_ONLY = "{% for m in messages %}{{ m.role }}{{ m.content.split('</think>')[-1] }}{% endfor %}"
HELPFUL, YES = "You are helpful.", {"content": "Yes"}


def only(condition: str) -> str:
    return "{% for m in messages %}{% if " + condition + " %}" + TURN + "{% endif %}{% endfor %}"


def calls_as(jinja: str) -> str:
    return "{{ tools }}{% for m in messages %}{{ m.role }}" + jinja + "{% endfor %}"


@pytest.mark.parametrize(
    ("jinja", "messages", "what"),
    [
        (only("m.role != 'system'"), [SYSTEM, ASKED, SAID], "the content of messages[0] (system)"),
        (only("m.role != 'system'"), [{**SYSTEM, "role": "developer"}, ASKED, SAID], "the content of messages[0] (system)"),
        (only("m.role != 'tool'"), [ASKED, SAID, {"role": "tool", "content": "5"}, SAID], "the content of messages[2] (tool)"),
        # The text is also in the template, or in another message.
        (HELPFUL + only("m.role != 'system'"), [{**SYSTEM, "content": HELPFUL}, ASKED, SAID], "the content of messages[0] (system)"),
        (only("loop.index != 2"), [ASKED, {**SAID, **YES}, {**ASKED, **YES}, SAID], "the content of messages[1] (assistant)"),
        # Only some values are dropped.
        (only("'secret' not in m.content"), [{**ASKED, "content": "a secret"}, SAID], "the content of messages[0] (user)"),
        (ALL.replace("m.content", "m.content[:20]"), [{**ASKED, "content": "long " * 9}, SAID], "the content of messages[0] (user)"),
        (ALL.replace("in messages", "in messages | reverse"), [ASKED, SAID], "the content of messages[1] (assistant)"),
        (ALL, [{**ASKED, "name": "Anna"}, SAID], "the name of messages[0] (user)"),
        (ALL, [ASKED, {**SAID, "content": "<think>a"}, ASKED, SAID], None),
        (ANSWER_ONLY, [ASKED, {**SAID, "content": "<think>North.</think>C"}], "the thoughts in the content of messages[1] (assistant)"),
        (
            calls_as("{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"),
            errand(call({"city": "Oslo"}), content="x")["messages"],
            "a name or an argument of the tool calls of messages[1] (assistant)",
        ),
        (
            calls_as("{{ m.tool_calls or m.content }}"),
            errand(call({"city": "Oslo"}), content="Let me look.")["messages"],
            "the content of messages[1] (assistant)",
        ),
    ],
)
def test_what_a_template_drops_is_found(jinja: str, messages: list[Any], what: str | None) -> None:
    assert dropped({"messages": messages, "tools": TOOLS if "tools" in jinja else None}, with_template(jinja))[:1] == (
        [what] if what else []
    )


def test_thoughts_may_be_dropped_from_prompts() -> None:
    jinja = "{% for m in messages %}{{ m.role }}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    assert (
        dropped({"messages": [ASKED, {**SAID, "content": "<think>North.</think>Cold."}, ASKED]}, with_template(jinja), learns=False) == []
    )


def test_a_row_is_refused_unless_the_loss_is_accepted() -> None:
    of, row = with_template(only("m.role != 'system'")), {"messages": [SYSTEM, ASKED, {**SAID, "mood": "sad"}]}
    with pytest.raises(UserError, match=r"ignores the content of messages\[0\] \(system\), so .* with --options.allow_dropped system$"):
        tokenize_row(row, of, "assistant")
    assert tokenize_row(row, of, "assistant", ["system"]) == tokenize_row({"messages": [ASKED, SAID]}, of, "assistant")
    assert list_unused(row, of, ["system"]) == ["key mood of messages", "system, which the chat template drops"]
    assert list_unused(row, of, ()) == ["key mood of messages"] and list_unused({"messages": [ASKED, SAID]}, of, ["system"]) == []
    assert list_unused(row, with_template("{{ m.mood }} {{ m['mood'] }}"), ()) == [], "this template reads the key"
    assert list_unused(row, with_template("moody {{ m.moods }}"), ()) == ["key mood of messages"]


words = st.text(st.sampled_from("ab c\n\"'\\<>&é漢{}:.\u2028"), max_size=12)


@settings(max_examples=80)
@given(
    contents=st.lists(words.filter(str.strip), min_size=2, max_size=6),
    arguments=st.dictionaries(words, words | st.integers() | st.booleans() | st.none() | st.lists(words, max_size=2), max_size=3),
    family=st.sampled_from(["qwen3", "llama3", "mistral"]),
)
def test_any_text_and_any_arguments_are_found(contents: list[str], arguments: dict[str, Any], family: str) -> None:
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(contents)]
    assert dropped({"messages": messages}, tokenizer(family)) == []
    assert dropped(errand(call(arguments)), tokenizer(family)) == []


TRL = Path(find_spec("trl").origin or "").parent / "chat_templates" if find_spec("trl") else None
TEMPLATES = sorted(TRL.glob("*.jinja")) if TRL else []


@pytest.mark.skipif(TRL is None, reason="the environment with transformers 5 has the templates of trl")
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_published_templates_drop_exactly_what_is_reported(path: Path) -> None:
    """A word of each text is searched in what was rendered, by no rule of the check. Chats that a template refuses are skipped."""
    assert len(TEMPLATES) > 40
    of, rendered = with_template(path.read_text(encoding="utf-8"), "llama3"), 0
    rows = [row for name, row in WHOLE.items() if name != "thoughts in the content"]  # some templates drop them
    for row in [*rows, {"messages": [SYSTEM, ASKED, SAID]}, errand(call({"city": "Rome"}), content="Let me look.")]:
        messages, tools = read_messages(row)[0], read_tools(row)
        chat = make_chat(messages, tools, of)
        try:
            text = chat.render()
        except UserError:
            continue
        rendered += 1
        wanted = [word for part in list_parts(messages) for form in part.forms[:1] for word in re.findall(r"[A-Za-z]{3,}", form)]
        lost = {word for word in wanted if word.lower() not in text.lower()}
        found = [each.what for each in find_dropped(chat, text, learns=True) if each.option != "tools"]
        moved = any(message.get("tool_calls") and message.get("content") for message in messages)  # Gemma 4: after the tool result
        assert bool(found) == bool(lost) or (moved and not lost), (row, found, lost)
    assert rendered >= 4 and len(FAMILIES) == 8
