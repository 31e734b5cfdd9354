"""Tiny models of each architecture that is exported as GGUF: llama.cpp computes what transformers does, and renders the same prompts.

The models have random weights and a tokenizer of SentencePiece that is made here. The packages are those of locked/gguf.txt; without them
the tests are skipped, with a line that says so.
"""

from __future__ import annotations

import io
import itertools
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaTokenizer

from overtone.finetune.errors import UserError
from overtone.recipes.language.gguf import converter_process
from overtone.recipes.language.gguf.convertible_architectures import CONVERTIBLE
from overtone.recipes.language.gguf.export_conversion import make_conversion
from tests.model_sweep.architectures import ARCHITECTURES, SHAPE
from tests.recipes.llm_sft import families

pytestmark = pytest.mark.slow
pytest.importorskip("xllamacpp", reason="NO TEST OF GGUF EXPORTS RAN: install locked/gguf.txt")
sentencepiece = pytest.importorskip("sentencepiece", reason="NO TEST OF GGUF EXPORTS RAN: install locked/gguf.txt")
try:
    converter_process.find_converter()
except UserError as missing:
    pytest.skip(f"NO TEST OF GGUF EXPORTS RAN: {missing}", allow_module_level=True)

from tests.real.llama_cpp_server import LlamaCpp, serve  # noqa: E402

END = 2
MOST, NEAR = 12, 0.05
"""Tokens of an answer; difference of the two best logits below which rounding may decide."""
ALIKE = 0.03
"""Most that log-likelihoods differ, in nats: weights are rounded to f16, and scores are computed in f16."""
POSITIONS = 512
"""Context of the server. Beyond the original positions of longrope, llama.cpp would take the factors for long texts for short ones, too."""
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, llama3": {},
    "llama, linear": {},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"sliding_window": None},
    "phi3, longrope": {"sliding_window": None, "original_max_position_embeddings": POSITIONS},
    "smollm3": {"num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1]},
    "gemma3_text": {"num_hidden_layers": 7},
}
"""Tiny config of the model sweep → what makes it one that llama.cpp computes."""
WORDS = (
    "Good day. What is the weather in Oslo today? It is cold, and the wind comes from the north. Who wrote this book about machines? "
    "The user, the assistant and the system speak in turns: answer briefly, then stop. Name three colors: red, green, blue. 1 2 3 4 5"
)
TEMPLATES = ("chatml", "qwen3", "llama3", "gemma3", "mistral")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a town.",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
]


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


CALL = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"town": "Oslo"}}}
PLAIN = [say("user", "What is the weather?")]
TURNS = [say("user", "Who are you?"), say("assistant", "A machine."), say("user", "Name three colors.")]
CHATS = {
    "one question": PLAIN,
    "several turns": TURNS,
    "system": [say("system", "Answer briefly."), *TURNS],
}
WITH_TOOL = [
    *(say("system", "Answer briefly."), say("user", "What is the weather in Oslo?")),
    *({"role": "assistant", "content": "", "tool_calls": [CALL]}, {**say("tool", "cold"), "tool_call_id": "call12345", "name": "weather"}),
]


def make_tokenizer(folder: Path, template: str) -> Any:
    """A tokenizer of SentencePiece with its tokenizer.model, as Llama 2, Mistral 7B, Phi-3 and Gemma have one."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS.split(". ") * 4), model_writer=written, model_type="bpe", vocab_size=420, byte_fallback=True,
        bos_id=1, eos_id=END, unk_id=0, pad_id=-1, user_defined_symbols=["<|im_start|>", "<|im_end|>"], minloglevel=2,
        normalization_rule_name="identity",
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    (folder / "chat_template.jinja").write_text(families.template(template))
    LlamaTokenizer.from_pretrained(folder).save_pretrained(folder)
    # Loaded before there is a config.json: with that of a Qwen, transformers 5 takes Qwen's class, whatever the folder says.
    return AutoTokenizer.from_pretrained(folder)


class Converted(NamedTuple):
    folder: Path
    """For transformers."""
    file: Path
    tokenizer: Any


def convert(home: Path, name: str, template: str = "chatml") -> Converted:
    """A model with random weights, exported in f16."""
    folder, copy, target = (home / part for part in ("base", "copy", "gguf"))
    for made in (folder, target):
        made.mkdir()
    tokenizer = make_tokenizer(folder, template)
    values = {**SHAPE, **ARCHITECTURES[name], **MODELS[name], "vocab_size": len(tokenizer), "initializer_range": 0.3}
    values |= {"bos_token_id": 1, "eos_token_id": END, "pad_token_id": END}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{key: value for key, value in values.items() if value is not None or key in MODELS[name]})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for one, parameter in model.named_parameters():  # otherwise ones and zeros, which a converter may forget unnoticed
        if "norm" in one or one.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.5 if "norm" in one and "gemma" not in name else 0.0, 0.2)
    model.half().float().save_pretrained(folder)
    shutil.copytree(folder, copy)
    make_conversion("gguf", folder, tokenizer, {"eos_token_id": END}).convert(copy, target, "f16")
    return Converted(folder, target / "model-f16.gguf", tokenizer)


def test_each_architecture_that_is_exported_is_tried() -> None:
    assert {ARCHITECTURES[name]["model_type"] for name in MODELS} == set(CONVERTIBLE)


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_computes_what_transformers_does(name: str, tmp_path: Path, figures: list[str]) -> None:
    made = convert(tmp_path, name)
    model = AutoModelForCausalLM.from_pretrained(made.folder, dtype=torch.float32)
    furthest, compared, ends = 0.0, 0, {END, made.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    with serve(made.file, positions=POSITIONS) as llama:
        for chat in CHATS.values():
            prompt = made.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            ids = made.tokenizer(prompt, add_special_tokens=False)["input_ids"]
            assert llama.render(chat) == prompt
            assert llama.tokenize(prompt) == ids
            found = model.generate(
                torch.tensor([ids]), max_new_tokens=MOST, do_sample=False, output_logits=True, return_dict_in_generate=True
            )
            first = found.logits[0][0].log_softmax(-1)
            likely = llama.log_probabilities(ids, 5)
            furthest = max(furthest, 0.0, *(abs(float(first[token]) - value) for token, value in likely.items()))
            answer = [*itertools.takewhile(lambda token: token not in ends, found.sequences[0, len(ids) :].tolist())]
            gaps = [float(two[0] - two[1]) for two in (logits[0].topk(2).values for logits in found.logits)]
            sure = next((place for place, gap in enumerate(gaps) if gap < NEAR), len(answer))
            assert llama.generate(ids, MOST)[0][:sure] == answer[:sure]
            compared += min(sure, len(answer))
    figures.append(f"{name} in llama.cpp: {compared} greedy tokens equal, log-likelihoods within {furthest:.3f} nats")
    assert 0 < furthest < ALIKE and compared > 3


@pytest.mark.parametrize("template", TEMPLATES)
def test_chats_get_the_prompt_of_the_training(template: str, tmp_path: Path) -> None:
    made = convert(tmp_path, "llama", template)
    with serve(made.file, positions=POSITIONS) as llama:
        for chat in CHATS.values():
            compare_prompts(llama, made.tokenizer, chat, None)
        if template in ("qwen3", "llama3", "mistral"):
            compare_prompts(llama, made.tokenizer, WITH_TOOL[:2], TOOLS)
            compare_prompts(llama, made.tokenizer, WITH_TOOL, TOOLS)


def compare_prompts(llama: LlamaCpp, tokenizer: Any, chat: list[dict[str, Any]], tools: list[Any] | None) -> None:
    """Assert that llama.cpp renders a chat as it was trained. It gets the arguments of calls as OpenAI has them, as text."""
    sent = json.loads(json.dumps(chat))
    for message in sent:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    expected = tokenizer.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
    prompt = llama.render(sent, tools)
    assert prompt.removeprefix(tokenizer.bos_token) == expected.removeprefix(tokenizer.bos_token)
    assert llama.tokenize(prompt) == tokenizer(expected, add_special_tokens=False)["input_ids"]
