"""Tensor-parallel plans of decoder blocks: how the ranks of a group share the modules of each (`finetune/distributed/tensor_parallel.py`).

They are the plans of transformers (`base_model_tp_plan`), with the norms of attention heads added, which those do not contain.
"""

from __future__ import annotations

from overtone.finetune.distributed.tensor_parallel import Cut

LLAMA: dict[str, Cut] = {
    "self_attn.q_proj": "outputs",
    "self_attn.k_proj": "outputs",
    "self_attn.v_proj": "outputs",
    "self_attn.o_proj": "inputs",
    "mlp.gate_proj": "outputs",
    "mlp.up_proj": "outputs",
    "mlp.down_proj": "inputs",
}
# Without the norms, each rank would apply only its own heads' gradient to its copy of them, and the copies would diverge silently.
QWEN3: dict[str, Cut] = {**LLAMA, "self_attn.q_norm": "heads", "self_attn.k_norm": "heads"}

PLANS: dict[str, dict[str, Cut]] = {
    "transformers.models.llama.modeling_llama.LlamaDecoderLayer": LLAMA,
    "transformers.models.qwen3.modeling_qwen3.Qwen3DecoderLayer": QWEN3,
}
"""Class of the block → plan. Add a plan together with its cases in tests/launch/test_covering.py, which check its gradients."""
