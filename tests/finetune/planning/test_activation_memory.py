"""The traced memory of the backward pass is that of a real step, counted by other means, and that of known formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from overtone.finetune.config import Lora
from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.modeling import loading, lora_adapters
from overtone.finetune.planning import activation_memory
from overtone.finetune.planning.activation_memory import Activations, Recomputing, trace_step, trim_stacks
from overtone.finetune.recipe import Batch, Term
from overtone.recipes.language.causal_lm_loss import compute_terms
from overtone.recipes.language.collation import collate, make_filler, pack
from overtone.recipes.language.modeling.causal_model import CausalModel, find_block_classes

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=8, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SMALL),
    "mistral": MistralConfig(**SMALL),
    "gemma2": Gemma2Config(**SMALL, head_dim=8, sliding_window=16),
    "phi3": Phi3Config(**SMALL),
    "olmo2": Olmo2Config(**SMALL),
    "gpt_neox": GPTNeoXConfig(**{name: value for name, value in SMALL.items() if "key_value" not in name}),
    "gpt2": GPT2Config(vocab_size=96, n_embd=32, n_layer=4, n_head=4),
}
BATCHES: dict[str, Callable[[], Batch]] = {
    "padded": lambda: collate([make_filler(40), make_filler(40), make_filler(25)]),
    "packed": lambda: pack([make_filler(40), make_filler(60)]),
}
WAYS: list[tuple[torch.dtype, bool, Recomputing]] = [
    (dtype, lora, how) for dtype in (torch.float32, torch.bfloat16) for lora in (False, True) for how in ("none", "full")
]
HALVES = [[WAYS[number] for number in numbers] for numbers in ((0, 3, 5, 6), (1, 2, 4, 7))]
"""Each with every value of every column twice."""
CASES = [
    (family, batch, *way)
    for number, family in enumerate(FAMILIES)
    for batch in BATCHES
    for way in HALVES[number % 2]
    if not (family == "gpt2" and way[1])  # it has no linear layers to adapt, but a kind of its own
]
QUICK = {("llama", "padded", torch.float32), ("qwen3", "packed", torch.bfloat16)}


def prepared(config: PretrainedConfig, lora: bool, dtype: torch.dtype) -> CausalModel:
    whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_dict()), attn_implementation="sdpa")
    model = CausalModel(whole)
    if lora:
        lora_adapters.inject_adapters(model, Lora(rank=2), "all-linear")
        loading.freeze(model, lora_adapters.is_adapter, dtype)
    return model


def predicted(config: PretrainedConfig, batch: Batch, dtype: torch.dtype, lora: bool, how: Recomputing) -> Activations:
    on_meta = prepared(config, lora, dtype)._apply(lambda tensor: tensor.to("meta") if isinstance(tensor, nn.Parameter) else tensor)
    blocks = find_block_classes(on_meta)
    return trace_step(on_meta, trim_stacks(on_meta, blocks), blocks, compute_terms, batch, 1, dtype, how)


def really_kept(config: PretrainedConfig, batch: Batch, dtype: torch.dtype, lora: bool, how: Recomputing) -> int:
    """Bytes that torch packs away for the backward pass in a real step, once for each storage; of recomputed blocks, their inputs."""
    model = prepared(config, lora, dtype)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    given = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers(), *batch.tensors.values())}
    held: dict[int, Tensor] = {}  # alive, or an address would be given out again

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in given:
            held.setdefault(tensor.untyped_storage().data_ptr(), tensor.detach())
        return tensor

    if how == "full":
        for block in [module for module in model.modules() if isinstance(module, find_block_classes(model))]:
            block.register_forward_pre_hook(keep_arguments(keep), with_kwargs=True)
    activation_checkpointing.wrap_blocks(model, find_block_classes(model), how)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = compute_terms(model.train(), batch)
    assert terms["nll"].sum.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def keep_arguments(keep: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    def hook(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        for value in torch.utils._pytree.tree_leaves((arguments, options)):
            if isinstance(value, Tensor):
                keep(value)

    return hook


@pytest.mark.parametrize(
    ("family", "batch", "dtype", "lora", "how"),
    [pytest.param(*case, marks=[] if case[:3] in QUICK else [pytest.mark.slow]) for case in CASES],
)
def test_the_traced_memory_is_that_of_a_real_step(family: str, batch: str, dtype: torch.dtype, lora: bool, how: Recomputing) -> None:
    tensors = BATCHES[batch]()
    estimate = predicted(FAMILIES[family], tensors, dtype, lora, how)
    assert estimate.kept == pytest.approx(really_kept(FAMILIES[family], tensors, dtype, lora, how), rel=0.10)
    assert estimate.flops > 0 and estimate.peak >= estimate.blocks > 0


def test_the_number_of_cases_is_known() -> None:
    assert len(CASES) == 68 and {case[0] for case in CASES} == set(FAMILIES)


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 20}


def test_experts_are_traced_with_equally_many_positions_each() -> None:
    """Four experts of 20 compute what one layer of 80 does, besides the router."""
    batch, how = BATCHES["packed"](), "none"
    sparse = predicted(Qwen3MoeConfig(**SMALL, head_dim=8, **EXPERTS), batch, torch.float32, False, how)  # type: ignore[arg-type]
    dense = predicted(Qwen3Config(**SMALL, head_dim=8), batch, torch.float32, False, how)  # type: ignore[arg-type]
    router = 3 * 2 * 100 * 32 * 8 * 4  # forward and backward, positions, hidden size, experts, layers
    assert sparse.flops - router == pytest.approx(dense.flops, rel=0.02)


def test_a_large_mask_is_counted_but_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 65,536 positions has a mask of 4 GB, which sdpa's backward pass keeps."""
    made = predicted(FAMILIES["llama"], BATCHES["packed"](), torch.float32, False, "none")
    monkeypatch.setattr(activation_memory, "LARGEST_REAL", 2000)
    assert predicted(FAMILIES["llama"], BATCHES["packed"](), torch.float32, False, "none") == made
    monkeypatch.setattr(activation_memory, "LARGEST_REAL", 2**20)
    long = predicted(FAMILIES["llama"], pack([make_filler(2**15)] * 2), torch.float32, False, "none")
    assert long.kept > 2**32


# --- the formulas of Korthikanti et al. 2022 ("Reducing activation recomputation in large transformer models"), at the size of an 8B model

LENGTH, HIDDEN, HEADS, LAYERS = 8192, 4096, 32, 32
SBH, AS2B = LENGTH * HIDDEN, HEADS * LENGTH**2


class PaperLayer(nn.Module):
    """The paper's layer, operation by operation: dropout with masks of a byte, GELU, four times the width in the MLP."""

    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.flash = flash
        self.before, self.between = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, states: Tensor) -> Tensor:
        """[s, 1, h] to the same."""
        normed = self.before(states)
        query, key, value = (self.heads(part(normed)) for part in (self.query, self.key, self.value))
        states = states + dropped(self.out(self.attended(query, key, value).transpose(0, 1).reshape(LENGTH, 1, HIDDEN)))
        return states + dropped(self.down(nn.functional.gelu(self.up(self.between(states)))))

    def heads(self, states: Tensor) -> Tensor:
        return states.view(LENGTH, HEADS, HIDDEN // HEADS).transpose(0, 1)

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.flash:
            return nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
        scores = torch.bmm(query * (HIDDEN // HEADS) ** -0.5, key.transpose(1, 2))
        return torch.bmm(dropped(scores.softmax(-1)), value)


def dropped(states: Tensor) -> Tensor:
    return torch.native_dropout(states, 0.1, True)[0]


class PaperModel(nn.Module):
    def __init__(self, flash: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, HIDDEN)
        self.layers = nn.ModuleList(PaperLayer(flash) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        states = self.embedding(ids)
        for layer in self.layers:
            states = layer(states)
        return states.float().sum()


@pytest.mark.parametrize(
    ("flash", "how", "expected"),
    [
        (False, "none", 34 * SBH + 5 * AS2B),
        (True, "none", 34 * SBH),  # the paper's selective recomputation, which attention without a matrix of scores made needless
        (False, "full", 2 * SBH),
        # What is kept here under `selective`: the layer's input, and what matrix products and attention give.
        (True, "selective", (2 + 6 + 2 + 2 + 8 + 2) * SBH),
    ],
)
def test_the_formulas_of_the_paper_at_8_b(flash: bool, how: Recomputing, expected: int) -> None:
    with torch.device("meta"):
        model = PaperModel(flash)
    ids = Batch({"ids": torch.zeros(LENGTH, 1, dtype=torch.long)}, {})

    def of(model: nn.Module, batch: Batch) -> dict[str, Term]:
        return {"nll": Term(model(batch.tensors["ids"]), 1.0)}

    found = trace_step(model, trim_stacks(model, (PaperLayer,)), (PaperLayer,), of, ids, LENGTH, torch.bfloat16, how)
    leaving = 2 * SBH  # the states after the last layer
    assert (found.blocks - leaving) / LAYERS == pytest.approx(expected, rel=0.003)
