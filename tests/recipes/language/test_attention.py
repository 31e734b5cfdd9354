"""What is asked for is what is used, what is chosen is told, and what would leave something out is refused."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import FalconConfig, Gemma2Config, GptOssConfig, LlamaConfig, MistralConfig, MptConfig, PretrainedConfig

from finetune.errors import UserError
from recipes.language import attention, varlen_attention

PLAIN = LlamaConfig()


def choose(
    asked: str, shape: PretrainedConfig = PLAIN, precision: str = "fp32", compiled: bool | str = "auto", packing: bool = True
) -> attention.Attention:
    train, data = SimpleNamespace(precision=precision, compile=compiled), SimpleNamespace(packing=packing)
    config: Any = SimpleNamespace(options=SimpleNamespace(attention=asked), train=train, data=data)
    return attention.choose(config, shape)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that says it has one, without the package flash-attn."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    return monkeypatch


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("shape", [PLAIN, MistralConfig(sliding_window=32)])
@pytest.mark.parametrize("asked", ["auto", "varlen"])
def test_samples_are_computed_apart_unless_something_else_is_asked(asked: str, shape: PretrainedConfig) -> None:
    assert choose(asked, shape) == (varlen_attention.LOOP, "attention: varlen, samples of a packed row one by one through sdpa")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("asked", ["sdpa", "eager"])
def test_what_is_asked_is_used(asked: str) -> None:
    name, remark = choose(asked)
    assert name == asked and remark.startswith(f"attention: {asked}, as asked; a packed row is computed as the square")


@pytest.mark.parametrize("compiled", [True, False, "auto"])
def test_a_gpu_takes_the_kernel_in_bf16_compiled_or_not_and_then_the_package(gpu: pytest.MonkeyPatch, compiled: bool | str) -> None:
    assert choose("auto", precision="bf16", compiled=compiled).name == varlen_attention.KERNEL
    assert choose("auto").name == varlen_attention.LOOP and choose("auto", compiled=True).name == "sdpa"
    assert choose("flex_attention").name == "flex_attention"
    gpu.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    assert choose("auto", MptConfig()).name == "eager", "of which transformers has no other"
    assert choose("auto", precision="bf16", compiled=compiled).name == varlen_attention.KERNEL, "which asks the GPU nothing in each layer"
    assert choose("varlen", precision="bf16", compiled=compiled).name == varlen_attention.KERNEL
    wide = LlamaConfig(head_dim=512)
    assert choose("auto", wide, precision="bf16").name == choose("flash_attention_2").name == "flash_attention_2"
    assert choose("auto", wide).name == varlen_attention.LOOP, "the package computes no fp32"


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("shape", "compiled", "name", "told"),
    [
        (PLAIN, True, "sdpa", "train.compile would compile a block anew"),
        (Gemma2Config(), False, "eager", "sdpa leaves out this model's attn_logit_softcapping: 50.0"),
        (FalconConfig(), False, "sdpa", "FalconForCausalLM takes no attention but those it brings"),
        (GptOssConfig(), False, "eager", "transformers has no sdpa for GptOssForCausalLM"),
    ],
)
def test_where_samples_cannot_be_computed_apart_the_reason_is_told(shape: Any, compiled: bool, name: str, told: str) -> None:
    found = choose("auto", shape, compiled=compiled)
    assert not compiled or choose("auto", shape, compiled=compiled, packing=False).name == varlen_attention.LOOP, "no loop"
    assert found.name == name and f"attention: {name}, as {told}" in found.remark
    with pytest.raises(UserError, match=re.escape(f"varlen cannot be used, as {told}")):
        choose("varlen", shape, compiled=compiled)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("asked", "shape", "told"),
    [
        ("flash_attention_2", PLAIN, "flash_attention_2 needs a CUDA GPU and the package flash-attn"),
        ("flex_attention", PLAIN, "flex_attention has no backward pass without a CUDA GPU; take auto or eager"),
        ("sdpa", Gemma2Config(), "sdpa leaves out this model's attn_logit_softcapping"),
        ("sdpa", GptOssConfig(), "transformers has no sdpa for GptOssForCausalLM; take auto or eager"),
    ],
)
def test_attention_that_cannot_run_here_is_refused(asked: str, shape: PretrainedConfig, told: str) -> None:
    with pytest.raises(UserError, match=told):
        choose(asked, shape)
