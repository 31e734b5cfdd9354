"""Peak memory of published training runs, compared with the planner's estimate.

Each row is a run of another framework: its model by shape, its way of training as published. States are counted by what that framework
keeps for a parameter; activations and loss are those of transformers' model of the same shape, traced as `overtone plan` traces ours.
Every second row, in the order of the table, fits one factor on the traced part and one constant; the others are held out.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, FalconConfig, GPTNeoXConfig, LlamaConfig, MistralConfig, PhiConfig, PretrainedConfig

from overtone.finetune.config import Lora
from overtone.finetune.distributed.tensor_parallel import blocks_of
from overtone.finetune.modeling import loading, lora_adapters
from overtone.finetune.modeling.loss_head import LossHead
from overtone.finetune.planning.activation_memory import Recomputing, trace_step, trim_stacks
from overtone.finetune.planning.memory import Arrangement, estimate_memory, outline_model
from overtone.finetune.recipe import Batch
from overtone.recipes.language.causal_lm_loss import compute_terms
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import CausalModel, find_block_classes
from workshop.benchmarks import _table
from workshop.benchmarks._heads import WholeLogits

COLUMNS = ("run", "source", "published, GB", "states, GB", "traced, GB", "sum / published", "use", "fitted / published")
LITGPT = "litgpt tutorials/resource-tables.md"
HUB = "litgpt config_hub/finetune"
TITAN = "torchtitan benchmarks/llama3_h100_202412"
AUTOMODEL = "NeMo AutoModel gradient-checkpointing guide"
MIXED, PURE = 16, 8
"""Bytes that last of a trained parameter: fp32 master, gradient and moments; or all of them in bf16."""
NF4, TWICE = 0.5 + 4 / 64, 0.5 + 1 / 64
"""Bytes of a parameter in 4 bits with an fp32 scale for each 64, or with scales that are quantized too."""


def llama(layers: int, hidden: int, mlp: int, heads: int, keys: int, words: int, tied: bool = False) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=words, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=keys, tie_word_embeddings=tied,
    )  # fmt: skip


SHAPES: dict[str, PretrainedConfig] = {
    "Llama-2-7B": llama(32, 4096, 11008, 32, 32, 32000),
    "Llama-2-13B": llama(40, 5120, 13824, 40, 40, 32000),
    "Llama-3-8B": llama(32, 4096, 14336, 32, 8, 128256),
    "Llama-3.2-1B": llama(16, 2048, 8192, 32, 8, 128256, tied=True),
    "TinyLlama-1.1B": llama(22, 2048, 5632, 32, 4, 32000),
    "Mistral-7B": MistralConfig(vocab_size=32000, sliding_window=None),
    "phi-1.5": PhiConfig(vocab_size=51200, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32),
    "StableLM-alpha-3B": GPTNeoXConfig(
        vocab_size=50688, hidden_size=4096, intermediate_size=16384, num_hidden_layers=16, num_attention_heads=32, rotary_pct=0.25
    ),
    "Falcon-7B": FalconConfig(vocab_size=65024, hidden_size=4544, num_hidden_layers=32, num_attention_heads=71),
}
QUERY_VALUE = r".*\.(q_proj|v_proj|query_key_value)"


@dataclass(frozen=True)
class Published:
    """A run and the peak that was published for it."""

    model: str
    positions: int
    gigabytes: float
    source: str
    rank: int | None = None
    """Rank of LoRA on queries and values; None: all is trained."""
    frozen: float = 2
    """Bytes of a frozen parameter."""
    state: int = PURE
    ranks: int = 1
    """Under FSDP."""
    recomputing: Recomputing = "none"
    logits: bool = True
    """True if full logits are made, with an fp32 copy."""

    @property
    def name(self) -> str:
        how = "full" if self.rank is None else f"LoRA {self.rank}"
        stored = {NF4: ", nf4", TWICE: ", nf4-dq"}.get(self.frozen, "")
        more = f", FSDP {self.ranks}" if self.ranks > 1 else ""
        return f"{self.model} {how}{stored}, {self.positions} positions{more}, recompute {self.recomputing}"


GIB = 1.073741824
ROWS = [
    *(Published("phi-1.5", 1044 * size, peak, LITGPT, 8) for size, peak in ((1, 4.82), (2, 6.76), (4, 10.68))),
    *(Published("phi-1.5", 1044, peak, LITGPT, 8, width) for width, peak in ((NF4, 3.78), (TWICE, 3.72))),
    *(Published("StableLM-alpha-3B", 1034 * size, peak, LITGPT, 8) for size, peak in ((1, 9.69), (2, 12.10), (4, 16.92))),
    *(Published("StableLM-alpha-3B", 1034, peak, LITGPT, 8, width) for width, peak in ((NF4, 6.35), (TWICE, 6.19))),
    *(Published("Llama-2-7B", 1304 * size, peak, LITGPT, 8) for size, peak in ((1, 21.30), (2, 29.07))),
    *(Published("Llama-2-7B", 1304, peak, LITGPT, 8, width) for width, peak in ((NF4, 14.14), (TWICE, 13.84))),
    *(Published("Llama-2-13B", 1304, peak, LITGPT, 8, width) for width, peak in ((2, 38.12), (NF4, 23.14), (TWICE, 22.55))),
    Published("Llama-2-7B", 2 * 512, 19.77, HUB, 32),
    Published("Llama-3-8B", 512, 19.73, HUB, 32),
    Published("Mistral-7B", 2 * 512, 20.66, HUB, 32),
    Published("Falcon-7B", 512, 16.69, HUB, 32),
    Published("TinyLlama-1.1B", 4 * 512, 14.10, HUB),
    Published("Llama-3-8B", 2 * 8192, 82.4 * GIB, TITAN, state=MIXED, ranks=8, recomputing="selective"),
    Published("Llama-3-8B", 2 * 8192, 67.0 * GIB, TITAN, state=MIXED, ranks=128, recomputing="selective"),
    Published("Llama-3.2-1B", 8 * 2048, 53.03, AUTOMODEL),
    Published("Llama-3.2-1B", 8 * 2048, 47.59, AUTOMODEL, ranks=8),
    Published("Llama-3.2-1B", 8 * 2048, 33.06, AUTOMODEL, ranks=8, recomputing="full"),
    Published("Llama-3.2-1B", 8 * 2048, 7.30, AUTOMODEL, ranks=8, recomputing="full", logits=False),
]


class Kept(torch.autograd.Function):
    """Keeps what passes for the backward pass, which has no use for it: so did bitsandbytes with the input of each 4-bit product until its
    pull request 1270 of July 2024, and the runs in 4 bits are of 2023."""

    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        ctx.save_for_backward(states)
        return states.view_as(states)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def predict_peaks(row: Published) -> tuple[float, float]:
    """(states with what is gathered, traced activations and loss) in GB."""
    model, dtype = build_model(row), torch.bfloat16
    blocks = find_block_classes(model)
    of = outline_model(model, blocks, dtype)
    frozen = sum(weight.size for weight in of.weights if not weight.trained and weight.in_block) * row.frozen
    outside = sum(weight.size for weight in of.weights if not weight.trained and not weight.in_block) * 2
    lasting = (frozen + outside + row.state * of.trained) / row.ranks
    ids = torch.zeros(1, row.positions, dtype=torch.int64)
    tensors = {"ids": ids, "targets": ids, "supervised": torch.arange(row.positions)}
    batch = Batch(tensors, {"nll": row.positions, "accuracy": row.positions})
    work = trace_step(model, trim_stacks(model, blocks), blocks, compute_terms, batch, row.positions, dtype, row.recomputing)
    passing = estimate_memory(of, Arrangement("fsdp", row.ranks), work, dtype.itemsize).passing if row.ranks > 1 else 0
    return (lasting + passing) / 1e9, work.peak / 1e9


def build_model(row: Published) -> CausalModel:
    varlen_attention.register()
    config = SHAPES[row.model]
    attention = varlen_attention.LOOP if config.model_type != "falcon" else "sdpa"
    with init_empty_weights(include_buffers=False):
        whole = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        model = CausalModel(whole, WholeLogits if row.logits else LossHead)
    if config.tie_word_embeddings:
        model.get_submodule(model.head_path).weight = whole.get_input_embeddings().weight
    if row.rank is not None:
        lora_adapters.inject_adapters(model, Lora(rank=row.rank), QUERY_VALUE)
        loading.freeze(model, lora_adapters.is_adapter, torch.bfloat16)
    if row.frozen < 2:
        keep_inputs(model)
    return model


def keep_inputs(model: nn.Module) -> None:
    """Keep the inputs of the products in 4 bits, which are all inside of blocks."""
    for layer in (layer for block in blocks_of(model, find_block_classes(model)) for layer in block.modules()):
        if isinstance(layer, nn.Linear) and not layer.weight.requires_grad:
            layer.register_forward_pre_hook(lambda _, given: (Kept.apply(given[0]),))


def fit_correction(rows: list[Published], predicted: list[tuple[float, float]]) -> tuple[float, float]:
    """Factor on what is traced, and constant in GB, by least squares of relative errors over every second row."""
    half = list(zip(rows, predicted, strict=True))[::2]
    left = np.array([[traced / row.gigabytes, 1 / row.gigabytes] for row, (_, traced) in half])
    right = np.array([(row.gigabytes - states) / row.gigabytes for row, (states, _) in half])
    factor, constant = np.linalg.lstsq(left, right, rcond=None)[0]
    return float(factor), float(constant)


def main() -> None:
    flags = _table.read_flags(__doc__)
    rows = ROWS[:4] if flags.quick else ROWS
    predicted = [predict_peaks(row) for row in rows]
    factor, constant = fit_correction(rows, predicted)
    lines, plain, errors = [], [], []
    for number, (row, (states, traced)) in enumerate(zip(rows, predicted, strict=True)):
        raw, fit = (states + traced) / row.gigabytes, (states + factor * traced + constant) / row.gigabytes
        use = "held out" if number % 2 else "fit"
        plain.append(abs(raw - 1))
        errors += [abs(fit - 1)] if number % 2 else []
        figures: list[Any] = [f"{row.gigabytes:.2f}", f"{states:.2f}", f"{traced:.2f}", f"{raw:.2f}", use, f"{fit:.2f}"]
        lines.append([row.name, row.source, *figures])
    note = (
        f"Mean error of the plain sum over all {len(rows)} rows: {np.mean(plain):.1%}. With the factor {factor:.2f} on what is traced and "
        f"{constant:.2f} GB, both from the other half: mean error on the {len(errors)} held-out rows {np.mean(errors):.1%}, "
        f"largest {max(errors):.1%}. The plan itself uses neither factor nor constant, but an allowance on top."
    )
    _table.publish("plan_backtest", flags, COLUMNS, lines, note)


if __name__ == "__main__":
    main()
