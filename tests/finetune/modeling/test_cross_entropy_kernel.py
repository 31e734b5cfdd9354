"""The kernel gives the loss, the hits and the gradients of the operations that it takes the place of, where Triton interprets it; and it
compiles for GPUs. Only a GPU shows what it computes once it is compiled, and how fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from torch.torch_version import TorchVersion
from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from overtone.finetune.modeling import cross_entropy_kernel

ROOT = Path(__file__).parents[3]
OLD_INTERPRETER = TorchVersion(triton.__version__) < (3, 7)


@pytest.mark.skipif(OLD_INTERPRETER, reason="the interpreter of Triton 3.6 fails on loops with numpy 2.4 or later")
def test_a_chunk_by_the_kernel_is_as_near_to_fp64_as_by_operations() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.finetune.cross_entropy_interpreted"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["heads"]) == 8
    for each in found["heads"]:
        kernel, operations, exactly = each["kernel"], each["operations"], each["dtype"] == "torch.float32"
        assert kernel["hits"] == operations["hits"] >= 7, each
        assert kernel["nll"] == pytest.approx(operations["nll"], rel=3e-7), each
        assert kernel["nll"] == pytest.approx(each["exact"], rel=3e-7 if exactly else 1e-4), each
        # The interpreter cuts bf16 off, where a GPU rounds to the nearest (see below).
        assert kernel["apart"] <= (1e-6 if exactly else 2 * operations["apart"]), each
        assert operations["apart"] <= (1e-6 if exactly else 0.005), each
    assert str(found["not finite"]) == "[nan, inf]"


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernel_compiles_for_gpus_and_rounds_to_the_nearest(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For logits in bf16 and a cap, with memory as torch aligns it; the assembler comes with Triton."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"logits": "*bf16", "stride": "i32", "targets": "*i64", "losses": "*fp32", "hits": "*fp32", "words": "i32"}
    source = ASTSource(
        cross_entropy_kernel._predict,
        {**types, "scale": "fp32", "cap": "fp32", "CAPPED": "constexpr", "BLOCK": "constexpr"},
        constexprs={"CAPPED": True, "BLOCK": cross_entropy_kernel.LARGEST_BLOCK},
        attrs={(place,): [["tt.divisibility", 16]] for place in range(6)},
    )
    found = compiled(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
    assert len(found.asm["cubin"]) > 10_000 and "cvt.rn.bf16x2.f32" in found.asm["ptx"]
    assert "ld.global.v4.b32" in found.asm["ptx"], "eight logits at once"
