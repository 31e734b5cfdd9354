"""A mixture of experts whose loss balances them takes the same steps on 1, 2 and 4 processes and in any micro-batches, and reports the term
as a column of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from overtone.finetune.monitoring.run_records import read_log
from tests.launch.same_steps import ChangedCase, ChangedRuns
from tests.recipes.llm_sft import families

pytestmark = pytest.mark.slow
STEPS = 3
SHARDED: list[ChangedCase] = [
    (1, "balanced", {"parallel.strategy": "ddp", "train.micro_tokens": "60"}),
    (2, "balanced", {"parallel.strategy": "fsdp", "train.micro_tokens": "60"}),
    (2, "balanced", {"parallel.strategy": "ddp", "data.packing": "true"}),
    (2, "balanced", {"parallel.strategy": "fsdp", "train.activation_checkpointing": "full"}),
    (4, "balanced", {"parallel.strategy": "fsdp"}),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ChangedRuns:
    folder = tmp_path_factory.mktemp("balance")
    write_base(folder / "base")
    rows = [
        {"messages": [{"role": "user", "content": f"Number {count}?"}, {"role": "assistant", "content": "yes " * count}]}
        for count in range(1, 13)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def given(name: str) -> dict[str, object]:
        keys = {
            **{"data.train": folder / "chats.jsonl", "data.val": folder / "chats.jsonl", "model.source": folder / "base"},
            **{
                "eval.every": STEPS,
                "train.steps": STEPS,
                "train.global_batch_tokens": 10**6,
                "train.micro_tokens": 400,
                "train.lr": "1e-3",
            },
            **{"train.precision": "fp32", "log.trackers": "[]", "parallel.strategy": "ddp"},
        }
        return keys if name == "balanced" else {**keys, "options.router_aux_loss_coef": 0}

    return ChangedRuns(folder, "llm_sft", ["balanced", "omitted"], SHARDED, given)


def write_base(folder: Path) -> None:
    tokenizer = families.tokenizer("chatml")
    sizes = {"hidden_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.5}
    config = Qwen3MoeConfig(vocab_size=len(tokenizer), head_dim=8, max_position_embeddings=96, initializer_range=0.1, **sizes, **experts)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)  # the names of released files, whatever the release of transformers computes with
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["Qwen3MoeForCausalLM"]}))


@pytest.mark.parametrize(("world", "name", "changes"), SHARDED)
def test_sharded_runs_match_one_process(runs: ChangedRuns, world: int, name: str, changes: dict[str, str]) -> None:
    found, expected = runs(world, name, changes), runs(1, name, {})
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(one["nll"] + 0.5 * one["expert_balance"], rel=1e-5)
        for key in ("nll", "expert_balance", "grad_norm"):
            assert one[key] == pytest.approx(other[key], rel=1e-4), key


def test_the_term_is_no_part_of_the_validation_loss(runs: ChangedRuns) -> None:
    runs(1, "balanced", {})
    (line,) = (line for line in read_log(runs.place(1, "balanced", {}) / "log.jsonl") if line["event"] == "evaluation")
    assert line["val/loss"] == line["val/nll"] and line["val/expert_balance"] > 1.5


def test_a_weight_of_0_omits_it(runs: ChangedRuns) -> None:
    for one, other in zip(runs(1, "omitted", {}), runs(1, "balanced", {}), strict=True):
        assert "expert_balance" not in one and one["loss"] == one["nll"] != other["loss"]
