"""`attention_selection`: the configured implementation is used, `auto` logs its choice, unsupported ones are
refused."""

from __future__ import annotations

import re
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.compilation import compile_blocks
from overtone.recipes.language.modeling import attention_selection, varlen_attention
from overtone.recipes.transformers_release import is_old

PLAIN = LlamaConfig()


def choose(
    requested: str, shape: PretrainedConfig = PLAIN, precision: str = "fp32", compiled: bool | str = "auto", packing: bool = True
) -> attention_selection.AttentionChoice:
    train, data = SimpleNamespace(precision=precision, compile=compiled), SimpleNamespace(packing=packing)
    config: Any = SimpleNamespace(options=SimpleNamespace(attention=requested), train=train, data=data)
    return attention_selection.choose_attention(config, shape)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that reports a GPU and has no package flash-attn."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    return monkeypatch


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("shape", [PLAIN, MistralConfig(sliding_window=32)])
@pytest.mark.parametrize("requested", ["auto", "varlen"])
def test_samples_are_computed_separately_unless_configured_otherwise(requested: str, shape: PretrainedConfig) -> None:
    assert choose(requested, shape) == (
        varlen_attention.LOOP,
        "attention: varlen, the samples of a packed row separately, in a loop with sdpa",
    )


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("requested", ["sdpa", "eager"])
def test_the_configured_attention_is_used(requested: str) -> None:
    name, remark = choose(requested)
    assert name == requested
    assert remark == f"attention: {requested}, as configured; the cost of a packed row grows with the square of its whole length"


@pytest.mark.parametrize("compiled", [True, False, "auto"])
def test_a_gpu_in_bf16_uses_the_kernel_and_without_it_flash_attn(gpu: pytest.MonkeyPatch, compiled: bool | str) -> None:
    assert choose("auto", precision="bf16", compiled=compiled).name == varlen_attention.KERNEL
    assert choose("auto").name == varlen_attention.LOOP and choose("auto", compiled=True).name == "sdpa"
    assert choose("flex_attention").name == "flex_attention"
    gpu.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    assert choose("auto", MptConfig()).name == "eager", "transformers has no other for it"
    assert choose("auto", precision="bf16", compiled=compiled).name == varlen_attention.KERNEL, (
        "with the package, the host would wait for the GPU in each layer"
    )
    assert choose("varlen", precision="bf16", compiled=compiled).name == varlen_attention.KERNEL
    wide = LlamaConfig(head_dim=512)
    assert choose("auto", wide, precision="bf16").name == choose("flash_attention_2").name == "flash_attention_2"
    assert choose("auto", wide).name == varlen_attention.LOOP, "the package does not support fp32"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("shape", "compiled", "name", "reason"),
    [
        (PLAIN, True, "sdpa", "train.compile would compile each block again"),
        (Gemma2Config(), False, "eager", "sdpa ignores this model's attn_logit_softcapping: 50.0"),
        (FalconConfig(), False, "sdpa", "FalconForCausalLM supports only its own attention implementations"),
        (GptOssConfig(), False, "eager", "transformers has no sdpa for GptOssForCausalLM"),
    ],
)
def test_the_reason_against_varlen_is_logged_or_raised(shape: Any, compiled: bool, name: str, reason: str) -> None:
    found = choose("auto", shape, compiled=compiled)
    assert not compiled or choose("auto", shape, compiled=compiled, packing=False).name == varlen_attention.LOOP, (
        "without packing, lengths do not vary"
    )
    assert found.name == name and f"attention: {name}, because {reason}" in found.remark
    with pytest.raises(UserError, match=re.escape(f"varlen cannot be used, because {reason}")):
        choose("varlen", shape, compiled=compiled)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("requested", "shape", "message"),
    [
        ("flash_attention_2", PLAIN, "flash_attention_2 needs a CUDA GPU and the package flash-attn"),
        ("flex_attention", PLAIN, "flex_attention has no backward pass without a CUDA GPU; use auto or eager"),
        ("sdpa", Gemma2Config(), "sdpa ignores this model's attn_logit_softcapping"),
        ("sdpa", GptOssConfig(), "transformers has no sdpa for GptOssForCausalLM; use auto or eager"),
    ],
)
def test_attention_that_cannot_run_here_is_refused(requested: str, shape: PretrainedConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose(requested, shape)


MIXTURE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
MIXTURES: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3MoeConfig(**MIXTURE, num_key_value_heads=2, moe_intermediate_size=48, num_experts=4, num_experts_per_tok=2, head_dim=8),
    "olmoe": OlmoeConfig(**MIXTURE, num_experts=4, num_experts_per_tok=2, eos_token_id=1),
    "mixtral": MixtralConfig(**MIXTURE, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
}


def train_with(model: Any, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    """Loss and gradients of each row."""
    found = list[torch.Tensor]()
    for ids in rows:
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        found += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    return found


@pytest.mark.skipif(is_old(version("transformers")), reason="transformers 4 computes experts in a loop")
@pytest.mark.parametrize("name", MIXTURES)
def test_grouped_experts_equal_the_loop_and_are_compiled_once(name: str) -> None:
    """Whatever the routing: so `train.compile: auto` admits them."""
    torch.manual_seed(0)
    rows = [torch.randint(64, (1, 24)) for _ in range(3)]
    found, graphs = dict[str, list[torch.Tensor]](), list[object]()
    for implementation in ("eager", "grouped_mm"):
        torch.manual_seed(1)
        settings = {"attn_implementation": "sdpa", "experts_implementation": implementation}
        model = AutoModelForCausalLM.from_config(MIXTURES[name], **settings)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)  # so that the rows go to different experts
        reason = attention_selection.explain_recompilation("sdpa", False, model.config)
        assert (reason is None) == (implementation == "grouped_mm")
        found[implementation] = train_with(model, rows)
    torch._dynamo.reset()
    compile_blocks(model, (type(model.model.layers[0]),), True, lambda graph, _: graphs.append(graph) or graph.forward)
    found["compiled"] = train_with(model, rows)
    assert len(graphs) == 1, "one for two layers and three routings"
    for implementation in ("grouped_mm", "compiled"):
        torch.testing.assert_close(found[implementation], found["eager"], rtol=1e-4, atol=1e-5)
