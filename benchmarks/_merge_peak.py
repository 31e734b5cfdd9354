"""Merge weights as `accelerate merge-weights` does, and tell what memory and time it takes beyond the imports. Run by export_memory.py.

usage: _merge_peak.py FOLDER, whose base/ has weights; makes FOLDER/sharded of them if it is not there; prints one line of JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed.checkpoint
from accelerate import PartialState
from accelerate.utils import merge_fsdp_weights
from safetensors.torch import load_file

from benchmarks import _watched


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    sharded = folder / "sharded"
    PartialState(cpu=True)
    if not sharded.exists():
        torch.distributed.checkpoint.save({"model": load_file(folder / "base" / "model.safetensors")}, checkpoint_id=sharded)
    else:
        _watched.tell(lambda: merge_fsdp_weights(str(sharded), str(folder / "merged")))


if __name__ == "__main__":
    main()
