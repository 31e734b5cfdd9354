"""Tests of `liger_loss`: loss, gradients and training equal those of the chunked head; refusals come before
loading.

Liger's kernels run in Triton's interpreter. Compilation, speed and memory on a GPU are not tested.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import nn

from overtone.finetune.config import resolve
from overtone.finetune.distributed.sharding import find_units
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loss_head import LossHead, Shaping
from overtone.recipes.language.modeling import causal_model, liger_loss
from overtone.recipes.language.modeling.liger_loss import LigerHead
from overtone.recipes.llm_sft.recipe import RECIPE
from tests.launch import launching
from tests.recipes.llm_sft import tiny_runs

ROOT = Path(__file__).parents[3]
needs_liger = pytest.mark.skipif(find_spec("liger_kernel") is None, reason="`make test` has liger-kernel; Triton under it is 700 MB")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """See `liger_interpreted.main`."""
    folder = tmp_path_factory.mktemp("liger")
    command = [sys.executable, "-m", "tests.recipes.llm_sft.liger_interpreted", str(folder)]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


@pytest.mark.ci
@pytest.mark.slow
@needs_liger
def test_loss_hits_and_gradients_equal_those_of_the_chunked_head(found: Any) -> None:
    assert len(found["heads"]) == 4
    for case in found["heads"]:
        allowed = 1e-6 if case["dtype"] == "torch.float32" else 1e-2  # bf16 has 8 bits, and the interpreter truncates instead of rounding
        assert case["nll"][0] == pytest.approx(case["nll"][1], rel=allowed), case
        assert len(case["apart"]) == 2 + case["bias"] and max(case["apart"]) <= allowed, case
        assert case["hits"][0] == case["hits"][1], case
    assert 10 < found["heads"][1]["hits"][0] < 30, "some predictions are right and some are wrong"


@pytest.mark.ci
@pytest.mark.slow
@needs_liger
def test_without_targets_loss_and_gradients_are_zero(found: Any) -> None:
    assert found["without_targets"] == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.ci
@pytest.mark.slow
@needs_liger
def test_no_gradient_is_computed_for_a_frozen_weight(found: Any) -> None:
    assert found["frozen"]["kept"] == [True, False] and found["frozen"]["hidden"]
    assert found["frozen"]["watched"] == pytest.approx(found["heads"][1]["nll"][0], rel=1e-6)


@pytest.mark.ci
@pytest.mark.slow
@needs_liger
@pytest.mark.parametrize("run", ["full", "adapted", "full, with its base", "adapted, with its base"])
def test_training_gives_the_same_losses_and_gradient_norms(found: Any, run: str) -> None:
    liger, chunked = found[run]["liger"], found[run]["chunked"]
    assert len(liger["steps"]) == 3 and liger["calls"] > 3 and chunked["calls"] == 0
    for one, other in zip(liger["steps"], chunked["steps"], strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert liger["steps"][0][3] == 0 and (liger["steps"][2][3] > 1e-4) == ("base" in run), "the distance to the base"
    assert liger["steps"][0][0] - liger["steps"][2][0] > 0.1, "something was learned"


SHARDED = {"fsdp": {}, "tensor": {"parallel.tensor": "2"}, "adapted": {"model.lora": "{rank: 4, alpha: 8}"}}


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_liger
def test_two_ranks_have_the_same_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three chats is a micro-batch, so one rank has none in the last round."""
    monkeypatch.setitem(launching.ALONE, "TRITON_INTERPRET", "1")
    tiny_runs.write_base(tmp_path / "base", tied=False)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*tiny_runs.rows(), tiny_runs.rows()[0]]))
    common = {"model.source": tmp_path / "base", "data.train": tmp_path / "chats.jsonl", "train.steps": "2", "train.precision": "fp32"}
    common |= {"data.packing": "false", "train.micro_tokens": "24", "train.global_batch_tokens": "56", "parallel.strategy": "fsdp"}
    todo = [
        {"name": f"{name}_{kind}", "overrides": {**common, **case, "options.loss_head": kind, "run.dir": tmp_path / name / kind}}
        for name, case in SHARDED.items()
        for kind in ("liger", "chunked")
    ]
    (tmp_path / "cases.json").write_text(json.dumps([{**each, "recipe": "llm_sft"} for each in todo], default=str))
    launching.launch("cpu", 2, "tests/launch/first_steps.py", tmp_path / "cases.json")
    for name in SHARDED:
        facts = [json.loads((tmp_path / f"{name}_{kind}.json").read_text()) for kind in ("liger", "chunked")]
        tensors, expected = (load_file(tmp_path / f"{name}_{kind}.safetensors") for kind in ("liger", "chunked"))
        assert len(facts[0]["losses"]) == 2 and facts[0]["losses"] == pytest.approx(facts[1]["losses"], rel=1e-5)
        assert facts[0]["turns"] == ([3, 3] if name == "tensor" else [2, 2])
        assert ("gradient.lm_head.weight" in tensors) == (name != "adapted") and len(tensors) == len(expected) > 20
        for path, tensor in tensors.items():
            assert (tensor - expected[path]).norm() <= 1e-5 * expected[path].norm(), (name, path)


def test_the_head_keeps_its_parameter_names_and_is_its_own_sharding_unit(tmp_path: Path) -> None:
    base = tiny_runs.write_base(tmp_path / "base", tied=False)
    ours, theirs = causal_model.build_on_meta(base, None), causal_model.build_on_meta(base, None, LigerHead)
    assert [type(model.get_submodule("lm_head")) for model in (ours, theirs)] == [LossHead, LigerHead]
    assert dict(ours.named_parameters()).keys() == dict(theirs.named_parameters()).keys()
    small = nn.ModuleList([theirs.get_submodule("lm_head")])
    assert find_units(small, ()) == [theirs.get_submodule("lm_head")]


@pytest.mark.parametrize("shaping", [Shaping(scale=0.5), Shaping(cap=30.0)])
def test_a_model_that_changes_its_logits_is_refused(shaping: Shaping) -> None:
    with pytest.raises(UserError, match="options.loss_head: liger needs unmodified logits.*use chunked"):
        LigerHead(nn.Linear(4, 5), shaping)


def test_without_a_gpu_it_is_refused_before_the_base_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    given = [("model.source", str(tmp_path / "nowhere")), ("options.loss_head", "liger")]
    with pytest.raises(UserError, match="options.loss_head: liger needs a CUDA GPU for its Triton kernels; use chunked"):
        RECIPE.load(resolve("llm_sft", RECIPE.Options, [], given))
    assert causal_model.choose_loss_head("chunked") is LossHead


@pytest.mark.parametrize("package", [None, SimpleNamespace(LigerFusedLinearCrossEntropyLoss=nn.CrossEntropyLoss)], ids=["missing", "older"])
def test_a_missing_or_older_package_is_refused(monkeypatch: pytest.MonkeyPatch, package: Any) -> None:
    """torch's own loss stands for an older release: it accepts `reduction` and not `return_predicted_tokens`."""
    liger_loss._liger_loss.cache_clear()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "liger_kernel", package)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package)
    with pytest.raises(UserError, match=r"liger needs liger-kernel 0.8 or later: pip install 'overtone\[liger\]'"):
        causal_model.choose_loss_head("liger")
