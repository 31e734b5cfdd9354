"""The loss that balances the experts is transformers' of each sample, however the samples are cut into micro-batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Ernie4_5_MoeConfig,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
)

from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import compilation
from overtone.finetune.recipe import Batch
from overtone.recipes.language import causal_lm_loss
from overtone.recipes.language.collation import EXPERT_BALANCE, collate, pack, pad
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel, find_block_classes
from overtone.recipes.language.modeling.expert_balance import decide_weight
from tests.finetune.graphs import unique_graphs
from tests.recipes.language.tiny_models import SHAPE, largest_difference, make_batches, make_model, make_samples
from tests.recipes.llm_sft.varlen_on_cpu import varlen_on_cpu

__all__ = ["varlen_on_cpu"]
EXPERTS: dict[str, Any] = {**SHAPE, "num_experts_per_tok": 2}
QWEN = Qwen3MoeConfig(**EXPERTS, head_dim=8, moe_intermediate_size=32, num_experts=8, tie_word_embeddings=True)
MIXTURES: list[PretrainedConfig] = [
    QWEN,
    MixtralConfig(**EXPERTS, num_local_experts=8),
    Ernie4_5_MoeConfig(**{**SHAPE, "moe_k": 3, "moe_num_experts": 8, "moe_intermediate_size": 32, "moe_layer_start_index": 1}),
]
WEIGHT = 0.5


def make_balanced(config: PretrainedConfig = QWEN, attention: str = "eager") -> CausalModel:
    model: CausalModel = make_model(copy.deepcopy(config), attention)
    model.balance_experts(WEIGHT)
    return model


def balance_of(model: CausalModel, batch: Batch) -> float:
    return float(causal_lm_loss.compute_terms(model, batch)[EXPERT_BALANCE].sum.detach())


def gradients(model: CausalModel, batches: list[Batch]) -> dict[str, Tensor]:
    """Gradients of the whole objective of one step."""
    model.zero_grad()
    for batch in batches:
        terms = causal_lm_loss.compute_terms(model, batch)
        counts = {name: sum(each.targets[name] for each in batches) for name in terms}
        torch.stack([term.weight * term.sum / counts[name] for name, term in terms.items() if term.weight]).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("config", MIXTURES, ids=lambda config: config.model_type)
def test_a_sample_has_the_loss_of_transformers(config: PretrainedConfig) -> None:
    model = make_balanced(config)
    stock = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    stock.load_state_dict(model.state_dict())
    for sample in make_samples():
        expected = stock(input_ids=sample["ids"][None], output_router_logits=True, use_cache=False).aux_loss
        assert balance_of(model, collate([sample])) == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.usefixtures("varlen_on_cpu")
def test_the_sum_is_that_of_the_samples_padded_packed_and_filled_up() -> None:
    model, samples = make_balanced(attention=varlen_attention.KERNEL), make_samples()
    alone = [balance_of(model, collate([sample])) for sample in samples]
    assert max(alone) > min(alone) + 0.01
    for batch in (collate(samples), pack(samples), pad(pack(samples), 96)):
        assert batch.targets[EXPERT_BALANCE] == len(samples)
        assert balance_of(model, batch) == pytest.approx(sum(alone), rel=1e-5)


def test_gradients_of_a_step_do_not_depend_on_its_micro_batches() -> None:
    model = make_balanced(attention=varlen_attention.LOOP)
    packed, alone = make_batches()
    samples = make_samples()
    expected = gradients(model, alone)
    for cut in ([packed], [collate(samples[:2]), pack(samples[2:])]):
        assert largest_difference(gradients(model, cut), expected) <= 1e-5
    plain = make_model(copy.deepcopy(QWEN), varlen_attention.LOOP)
    assert "expert_balance" not in causal_lm_loss.compute_terms(plain, packed)
    without = gradients(plain, [packed])
    routers = [name for name in expected if "gate.weight" in name]
    assert routers and all(float((without[name] - expected[name]).norm() / expected[name].norm()) > 0.05 for name in routers)


def test_an_evaluation_reports_the_loss_and_does_not_add_it() -> None:
    model, batch = make_balanced(), collate(make_samples())
    term = causal_lm_loss.compute_terms(model, batch)[EXPERT_BALANCE]
    model.eval()
    measured = causal_lm_loss.compute_terms(model, batch)[EXPERT_BALANCE]
    assert (term.weight, measured.weight) == (WEIGHT, 0.0) and float(measured.sum.detach()) == pytest.approx(float(term.sum.detach()))


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recomputed_layers_have_the_same_gradients(how: Any) -> None:
    packed, _ = make_batches()
    expected = gradients(make_balanced(), [packed])
    model = make_balanced()
    activation_checkpointing.wrap_blocks(model, find_block_classes(model), how)
    found = {name.replace("_checkpoint_wrapped_module.", ""): each for name, each in gradients(model, [packed]).items()}
    assert largest_difference(found, expected) <= 1e-6


@pytest.mark.slow
@pytest.mark.usefixtures("varlen_on_cpu")
def test_compiled_and_recomputed_layers_record_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    config = copy.deepcopy(QWEN)
    if not hasattr(make_balanced().model.layers[0].mlp.experts, "gate_up_proj"):
        pytest.skip("transformers 4 computes experts in a loop, which is not compiled as one graph")
    torch._dynamo.reset()
    samples = make_samples()
    rows = [pad(pack(samples[:3]), 64), pad(pack(samples[1:]), 64)]
    expected = gradients(make_balanced(config, varlen_attention.LOOP), [pack(samples[:3]), pack(samples[1:])])
    model, before = make_balanced(config, varlen_attention.KERNEL), unique_graphs()
    activation_checkpointing.wrap_blocks(model, find_block_classes(model), "full")
    compilation.compile_blocks(model, find_block_classes(model), True, "eager")
    found = {name.replace("_checkpoint_wrapped_module.", ""): each for name, each in gradients(model, rows).items()}
    assert largest_difference(found, expected) <= 1e-4
    assert unique_graphs() - before == 1
    torch._dynamo.reset()


def decide(config: PretrainedConfig, wanted: float | None, stated: object) -> tuple[float, str]:
    with torch.device("meta"):
        decoder = AutoModelForCausalLM.from_config(copy.deepcopy(config)).get_decoder()
    weight, line = decide_weight(config, decoder, wanted, stated)
    return weight, line or ""


def test_the_weight_is_that_of_the_base_unless_the_options_have_one() -> None:
    of_base = "expert_balance: weight 0.001 (router_aux_loss_coef of config.json; options.router_aux_loss_coef: 0 omits this term)"
    assert decide(QWEN, None, 0.001) == (0.001, of_base)
    assert decide(QWEN, 0.02, 0.001) == (0.02, "expert_balance: weight 0.02 (options.router_aux_loss_coef)")
    assert decide(QWEN, 0.0, 0.001) == (0.0, "expert_balance: weight 0 (options.router_aux_loss_coef)")
    for stated in (None, 0.0, -1, True, "0.1", float("nan"), float("inf")):
        assert decide(QWEN, None, stated) == (0.0, "")


def test_a_default_of_transformers_is_no_sign_of_how_a_model_was_trained() -> None:
    config = GptOssConfig(**EXPERTS, head_dim=8, num_local_experts=4)
    weight, line = decide(config, None, 0.9)
    assert weight == 0.0 and line.startswith("router_aux_loss_coef: 0.9 of config.json is not used: it is the default of transformers")


def test_a_model_without_routers_cannot_be_balanced() -> None:
    dense = LlamaConfig(**SHAPE)
    weight, line = decide(dense, None, 0.1)
    assert weight == 0.0 and "0.1 of config.json is not used: transformers" in line
    with pytest.raises(UserError, match=r"options.router_aux_loss_coef: 0.1, but transformers \S+ computes no such loss for llama"):
        decide(dense, 0.1, None)
    assert decide(dense, 0.0, None)[0] == 0.0
