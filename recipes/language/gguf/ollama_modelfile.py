"""The Modelfile of an export for Ollama: the chat template in Go's language, the tokens that end an answer, and how answers are sampled.

Ollama does not read the Jinja template of a GGUF file. Its own language has no functions for text, so the Jinja template is not translated:
it is rendered, and the text between the messages of a chat is found. A template whose text depends on more than the roles of two
neighbours cannot be expressed, which is found by rendering other chats, and refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from overtone.finetune.errors import UserError
from overtone.recipes.language.gguf.tokenizer_check import TrainedTokenizer
from overtone.recipes.language.tokenization.chat_template import make_chat

START, END = "", "answer"
"""The neighbours of the first and of the last message: nothing, and the answer to generate."""
CHATS = (
    ("user",),
    ("system", "user"),
    ("user", "assistant", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "user", "assistant", "user"),
    ("system", "user", "assistant", "user", "assistant", "user"),
)
"""Roles of the chats that are rendered."""
PARAMETERS = {"temperature": ("temperature", 1.0), "top_p": ("top_p", 1.0), "top_k": ("top_k", 50), "min_p": ("min_p", 0.0)}
"""Parameter of Ollama → key of generation_config.json, and transformers' default."""
Transitions = dict[tuple[str, str], str]
"""(role of a message, role of the next one) → the text between them; `START` and `END` are the neighbours at the ends."""


def render_modelfile(trained: TrainedTokenizer, generation: dict[str, Any]) -> str:
    """Return the Modelfile without its first line, which names the weights. `generation`: content of generation_config.json. Raises
    `UserError` for a chat template that Ollama's language cannot express."""
    transitions = find_transitions(trained)
    remark = [] if (START, "system") in transitions else ["# The chat template of the training has no system message: Ollama's is dropped."]
    stops = [quote_plainly(trained.tokenizer.convert_ids_to_tokens(stop)) for stop in trained.stops]
    lines = [
        *remark,
        f'TEMPLATE """{render_go_template(transitions)}"""',
        *(f"PARAMETER stop {stop}" for stop in stops),
        *(f"PARAMETER {name} {value}" for name, value in list_parameters(generation).items()),
    ]
    return "\n".join(lines) + "\n"


def quote_plainly(text: str) -> str:
    """Return a text in quotes, as a parameter of a Modelfile, which knows no escapes. Raises `UserError` for one that needs them."""
    if '"' in text or not text.isprintable():
        raise UserError(f"--format ollama: the stop token {text!r} cannot be written in a Modelfile; export with --format gguf")
    return f'"{text}"'


def list_parameters(generation: dict[str, Any]) -> dict[str, float]:
    """Return how transformers would sample with a generation_config.json, as parameters of Ollama, whose defaults are others."""
    penalty = {"repeat_penalty": generation.get("repetition_penalty") or 1.0}
    if not generation.get("do_sample"):
        return {"temperature": 0.0, **penalty}
    values = {name: generation.get(key) for name, (key, _) in PARAMETERS.items()}
    return {**{name: PARAMETERS[name][1] if value is None else value for name, value in values.items()}, **penalty}


def find_transitions(trained: TrainedTokenizer) -> Transitions:
    """Return the texts between messages. Raises `UserError` for a template whose text depends on anything else than two neighbours."""
    if trained.tokenizer.chat_template is None:
        raise UserError("--format ollama: the model has no chat template, which a Modelfile needs; export with --format gguf")
    found: Transitions = {}
    for roles in CHATS:
        texts = render_between(trained, roles)
        if texts is None:
            if "system" in roles:  # some templates refuse system messages; then Ollama's are dropped
                continue
            raise refuse_template(roles, "the texts of the messages are changed")
        for pair, text in zip(pairwise((START, *roles, END)), texts, strict=True):
            if found.setdefault(pair, text) != text:
                raise refuse_template(roles, f"between {pair[0] or 'the beginning'} and {pair[1]} it writes {text!r} or {found[pair]!r}")
    begin = trained.tokenizer.bos_token if trained.begins else ""  # llama.cpp adds it
    return {pair: text.removeprefix(begin) if pair[0] == START else text for pair, text in found.items()}


def refuse_template(roles: Sequence[str], reason: str) -> UserError:
    return UserError(
        f"--format ollama: the chat template cannot be written in Ollama's language ({', '.join(roles)}: {reason}); export with --format "
        "gguf, and serve it with llama-server --jinja, which renders the template itself"
    )


def render_between(trained: TrainedTokenizer, roles: Sequence[str]) -> list[str] | None:
    """Return the texts before, between and after the messages of a chat that the assistant is to answer; None if the template refuses the
    chat or changes what is in the messages."""
    contents = [f"message-{number}-of-{role}" for number, role in enumerate(roles)]
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    try:
        rest = make_chat(messages, None, trained.tokenizer).render(add_generation_prompt=True)
    except UserError:
        return None
    texts = []
    for content in contents:
        before, found, rest = rest.partition(content)
        if not found:
            return None
        texts.append(before)
    return [*texts, rest]


def render_go_template(transitions: Transitions) -> str:
    """Return a template of Go that writes these texts between the messages of Ollama's list. The text after the last message is that before
    an answer; none follows a message of the assistant, which the model then continues."""
    inner = [(before, role, text) for (before, role), text in transitions.items() if role != END]
    cases = [
        f"{{{{- {'else ' * bool(number)}if and (eq $last {quote(before)}) (eq .Role {quote(role)}) }}}}"
        f"{{{{ {quote(text)} }}}}{{{{ .Content }}}}"
        for number, (before, role, text) in enumerate(inner)
    ]
    ends = [
        f"{{{{- if eq $last {quote(before)} }}}}{{{{ {quote(text)} }}}}{{{{ end }}}}"
        for (before, role), text in transitions.items()
        if role == END
    ]
    lines = ['{{- $last := "" }}', "{{- range .Messages }}", *cases, "{{- end }}", "{{- $last = .Role }}", "{{- end }}", *ends]
    return "\n".join(lines)


def quote(text: str) -> str:
    """Return a string literal of Go. It is ASCII, because Ollama's parser drops characters that it takes for unprintable."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(one if one < "\x7f" else f"\\u{ord(one):04x}" if one <= "\uffff" else f"\\U{ord(one):08x}" for one in plain)
