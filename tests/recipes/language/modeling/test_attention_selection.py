"""`attention_selection`: the configured implementation is used, `auto` logs its choice, unsupported ones are
refused."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import FalconConfig, Gemma2Config, GptOssConfig, LlamaConfig, MistralConfig, MptConfig, PretrainedConfig

from overtone.finetune.errors import UserError
from overtone.recipes.language.modeling import attention_selection, varlen_attention

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
