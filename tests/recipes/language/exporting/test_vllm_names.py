"""What vLLM reads of an export: the name of its class, its tokenizer and chat template, and the tokens that end an answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

from transformers import AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from overtone.recipes.language.gguf.convertible_architectures import CONVERTIBLE
from tests.recipes.llm_sft import families

PAGE = Path(__file__).resolve().parents[4] / "docs" / "exports.md"
REGISTRY = frozenset(
    {"CohereForCausalLM", "Cohere2ForCausalLM", "Exaone4ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Glm4ForCausalLM"}
    | {"GptOssForCausalLM", "GraniteForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Olmo2ForCausalLM"}
    | {"OlmoeForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}
)
"""Of `_TEXT_GENERATION_MODELS` in vllm/model_executor/models/registry.py at commit 0002bff0, the names of families that people train."""


def test_the_page_names_the_classes_of_the_registry_and_the_others() -> None:
    """As what transformers calls the classes of the families that exports are tested with."""
    classes = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[each] for each in CONVERTIBLE}
    section = PAGE.read_text(encoding="utf-8").split("## vLLM")[1].split("\n## ")[0]
    listed, others = section.split("registry has")[1].split("runs through the backend")[0].rsplit(";", 1)
    assert {*re.findall(r"\w+ForCausalLM", listed)} == classes & REGISTRY
    assert {*re.findall(r"\w+ForCausalLM", others)} == classes - REGISTRY


def test_an_export_has_what_vllm_reads(exported: Path) -> None:
    config, generation = (json.loads((exported / name).read_text()) for name in ("config.json", "generation_config.json"))
    tokenizer, end = AutoTokenizer.from_pretrained(exported), families.FAMILIES["chatml"].end
    assert config["architectures"] == ["Qwen3ForCausalLM"] and {*config["architectures"]} <= REGISTRY
    ends = generation["eos_token_id"]
    assert tokenizer.convert_tokens_to_ids(end) in (ends if isinstance(ends, list) else [ends])
    assert tokenizer.chat_template == families.template("chatml") and len(tokenizer) <= config["vocab_size"]
