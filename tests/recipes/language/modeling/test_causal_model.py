"""Tests of `causal_model`: names, loss and gradients of the stock model; other kinds of models are refused."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from overtone.finetune.errors import UserError
from overtone.recipes.language.collation import IGNORE, make_filler, pack, pad
from overtone.recipes.language.modeling import causal_model
from tests.causal_lm.recipe import write_base


@pytest.mark.parametrize(("kind", "tied"), [("llama", False), ("qwen3", True)])
def test_a_model_on_meta_has_the_names_and_the_tie_of_its_base_and_real_buffers(tmp_path: Path, kind: str, tied: bool) -> None:
    base = write_base(tmp_path / "base", kind)  # type: ignore[arg-type]
    model = causal_model.build_on_meta(base, None)
    stored = load_file(base / "model.safetensors")
    assert dict(model.named_parameters()).keys() == stored.keys() and ("lm_head.weight" in stored) != tied
    assert all(parameter.is_meta and parameter.shape == stored[name].shape for name, parameter in model.named_parameters())
    assert (model.get_submodule("lm_head").weight is model.get_submodule("model.embed_tokens").weight) == tied
    assert not any(buffer.is_meta for buffer in model.buffers()) and len(list(model.buffers())) >= 1
    assert [each.__name__ for each in causal_model.find_block_classes(model)] == [f"{kind.capitalize()}DecoderLayer"]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_loss_and_gradients_equal_those_of_the_stock_model(tmp_path: Path, kind: str) -> None:
    base = write_base(tmp_path / "base", kind)  # type: ignore[arg-type]
    stock = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    own = causal_model.CausalModel(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32))
    ids = torch.randint(0, 257, (3, 9), generator=torch.Generator().manual_seed(0))
    learned = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.6
    labels = ids.where(learned, IGNORE)
    targets = torch.cat([labels[:, 1:], torch.full((3, 1), IGNORE)], dim=1)
    nll, hits = own({"ids": ids, "targets": targets, "supervised": (targets != IGNORE).flatten().nonzero()[:, 0]})
    expected = stock(input_ids=ids, labels=labels).loss
    count = int((targets != IGNORE).sum())
    assert count > 5 and torch.allclose(nll / count, expected, rtol=1e-6) and 0 <= hits <= count
    (nll / count).backward()
    expected.backward()
    expected_parameters = dict(stock.named_parameters())
    for name, parameter in own.named_parameters():
        assert (parameter.grad - expected_parameters[name].grad).norm() <= 1e-5 * expected_parameters[name].grad.norm(), name


SCALING = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
SMALL = {"vocab_size": 9, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 8}


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1),
        LlamaConfig(**SMALL, intermediate_size=8, initializer_range=1.0, rope_scaling=SCALING),
    ],
    ids=["a table of positions", "a rotary embedding that scales with the highest position"],
)
def test_padding_adds_no_higher_position_to_a_packed_row(config: PretrainedConfig) -> None:
    torch.manual_seed(0)
    model = causal_model.CausalModel(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")).eval()
    rows = pack([{**make_filler(size), "ids": torch.arange(size)} for size in (8, 5)])
    likelihoods = [model(row.tensors, row.lengths)[0].item() for row in (rows, pad(rows, 40))]
    assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "home_made", "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}},
            "is not a causal .*; the folder contains its own code for it, which is never run",
        ),
        ({"model_type": "vit"}, "model_type 'vit' is not a causal language model of transformers"),
    ],
)
def test_another_kind_of_model_is_refused_before_its_code_runs(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    base = write_base(tmp_path / "base", "llama")
    (base / "config.json").write_text(json.dumps({**json.loads((base / "config.json").read_text()), **changes}))
    (base / "modeling.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    with pytest.raises(UserError, match=message):
        causal_model.build_on_meta(base, None)
    assert not (tmp_path / "canary").exists()


def test_types_composed_of_other_models_are_excluded() -> None:
    """In the installed transformers, these are the types whose config class loads or builds other configs."""
    kinds = causal_model.causal_language_model().types
    assert len(kinds) > 100 and {"qwen3", "llama", "phi3", "gemma3"} <= set(kinds)
    assert [kind for kind in kinds if _opens_others(CONFIG_MAPPING[kind])] == []


def _opens_others(config: type) -> bool:
    tree = ast.parse(textwrap.dedent(inspect.getsource(config)))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(call in ("AutoConfig.from_pretrained", "AutoConfig.for_model") for call in calls)
