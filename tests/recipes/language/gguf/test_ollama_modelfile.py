"""Tests of `overtone.recipes.language.gguf.ollama_modelfile`: the template of Go writes what the Jinja template writes."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from overtone.finetune.errors import UserError
from overtone.recipes.language.gguf import ollama_modelfile
from overtone.recipes.language.gguf.ollama_modelfile import CHATS, END, START, find_transitions, render_modelfile
from overtone.recipes.language.gguf.tokenizer_check import TrainedTokenizer
from overtone.recipes.language.tokenization.chat_template import make_chat
from tests.recipes.language.gguf.tokenizers_of_llama_cpp import byte_level
from tests.recipes.llm_sft import families

DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def trained(template: str, family: str = "chatml") -> TrainedTokenizer:
    own = families.tokenizer(family)
    made = PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer, bos_token=own.bos_token, eos_token=own.eos_token)
    made.chat_template = template
    return TrainedTokenizer(made, (made.eos_token_id,))


def write_with_go(modelfile: str, messages: list[dict[str, str]]) -> str:
    """What Go writes for this subset of its templates: cases over the role of a message and of the one before it, in one loop."""
    [template] = re.findall(r'TEMPLATE """(.*?)"""', modelfile, re.DOTALL)
    literal = r'"((?:[^"\\]|\\.)*)"'
    inner = re.findall(
        rf"if and \(eq \$last {literal}\) \(eq \.Role {literal}\) \}}\}}\{{\{{ {literal} \}}\}}\{{\{{ \.Content \}}\}}", template
    )
    ends = re.findall(rf"\{{\{{- if eq \$last {literal} \}}\}}\{{\{{ {literal} \}}\}}\{{\{{ end \}}\}}", template)
    cases = {(unquote(before), unquote(role)): unquote(text) for before, role, text in inner}
    text, last = "", ""
    for message in messages:
        if (last, message["role"]) in cases:
            text += cases[last, message["role"]] + message["content"]
        last = message["role"]
    return text + {unquote(before): unquote(end) for before, end in ends}.get(last, "")


def unquote(literal: str) -> str:
    plain = re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), literal)
    found: str = json.loads(f'"{plain}"')
    return found


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("chatml", "chatml"),
        ("llama3", "llama3"),
        ("qwen3", "qwen3"),
        ("gemma3", "gemma3"),
        ("gemma2", "gemma2"),
        ("generation", "generation"),
        (DEFAULT_SYSTEM, "chatml"),
    ],
)
def test_go_writes_what_jinja_writes(template: str, family: str) -> None:
    own = trained(families.template(template) if template in families.FAMILIES else template, family)
    modelfile, compared = render_modelfile(own, {}), 0
    for roles in CHATS:
        messages = [{"role": role, "content": f"{{{{ .System }}}} {number} «{role}»"} for number, role in enumerate(roles)]
        try:
            expected = make_chat(messages, None, own.tokenizer).render(add_generation_prompt=True)  # with the date of the training
        except UserError:
            assert "# The chat template of the training has no system message" in modelfile and "system" in roles
            continue
        begin = own.tokenizer.bos_token if own.begins else ""
        assert write_with_go(modelfile, messages) == expected.removeprefix(begin)
        compared += 1
    assert compared >= 3


def test_the_text_is_readable_go() -> None:
    modelfile = render_modelfile(trained(DEFAULT_SYSTEM), {})
    assert (
        modelfile
        == '''TEMPLATE """{{- $last := "" }}
{{- range .Messages }}
{{- if and (eq $last "") (eq .Role "user") }}{{ "<|im_start|>system\\nBe kind.<|im_end|>\\n<|im_start|>user\\n" }}{{ .Content }}
{{- else if and (eq $last "") (eq .Role "system") }}{{ "<|im_start|>system\\n" }}{{ .Content }}
{{- else if and (eq $last "system") (eq .Role "user") }}{{ "<|im_end|>\\n<|im_start|>user\\n" }}{{ .Content }}
{{- else if and (eq $last "user") (eq .Role "assistant") }}{{ "<|im_end|>\\n<|im_start|>assistant\\n" }}{{ .Content }}
{{- else if and (eq $last "assistant") (eq .Role "user") }}{{ "<|im_end|>\\n<|im_start|>user\\n" }}{{ .Content }}
{{- end }}
{{- $last = .Role }}
{{- end }}
{{- if eq $last "user" }}{{ "<|im_end|>\\n<|im_start|>assistant\\n" }}{{ end }}"""
PARAMETER stop "<|im_end|>"
PARAMETER temperature 0.0
PARAMETER repeat_penalty 1.0
'''
    )


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (
            "{% for message in messages %}[{{ message.role }} {{ loop.index }}]{{ message.content }}{% endfor %}",
            "between user and assistant it writes",
        ),
        (
            "{% for message in messages %}[{{ message.role }}]{{ message.content | upper }}{% endfor %}",
            "the texts of the messages are changed",
        ),
        (None, "the model has no chat template"),
    ],
)
def test_a_template_that_go_cannot_express_is_refused(template: str | None, complaint: str) -> None:
    own = byte_level(None) if template is None else trained(template).tokenizer
    with pytest.raises(UserError, match=f"--format ollama: .*{complaint}.*--format gguf"):
        find_transitions(TrainedTokenizer(own, (0,)))


def test_every_neighbourhood_of_a_chat_is_tried() -> None:
    seen = {pair for roles in CHATS for pair in pairwise((START, *roles, END))}
    assert seen == {("", "user"), ("", "system"), ("system", "user"), ("user", "assistant"), ("assistant", "user"), ("user", END)}


@pytest.mark.parametrize(
    ("generation", "parameters"),
    [
        ({}, {"temperature": 0.0, "repeat_penalty": 1.0}),
        ({"temperature": 0.7, "repetition_penalty": 1.1}, {"temperature": 0.0, "repeat_penalty": 1.1}),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": None},
            {"temperature": 0.7, "top_p": 1.0, "top_k": 50, "min_p": 0.0, "repeat_penalty": 1.0},
        ),
    ],
)
def test_answers_are_sampled_as_transformers_would(generation: dict[str, Any], parameters: dict[str, float]) -> None:
    assert ollama_modelfile.list_parameters(generation) == parameters


@pytest.mark.parametrize("text", ['a"b', "\\", "\n\t\x00\x7f", "｜▁é", "🦙", '"""', "{{ x }}"])
def test_literals_are_ascii_and_read_back(text: str) -> None:
    literal = ollama_modelfile.quote(text)
    assert literal.isascii() and literal.isprintable() and unquote(literal[1:-1]) == text and '"""' not in literal


def test_a_stop_token_that_needs_escapes_is_refused() -> None:
    assert ollama_modelfile.quote_plainly("<｜end▁of▁sentence｜>") == '"<｜end▁of▁sentence｜>"'
    for text in ('a"b', "a\nb"):
        with pytest.raises(UserError, match="cannot be written in a Modelfile"):
            ollama_modelfile.quote_plainly(text)
