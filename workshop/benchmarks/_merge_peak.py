"""Merge weights as `accelerate merge-weights` does, and report memory and time without those of the imports. Run by export_memory.py.

usage: _merge_peak.py CHECKPOINT FOLDER; prints one line of JSON, see `_watched.report_peak`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed.checkpoint
from accelerate import PartialState
from accelerate.utils import merge_fsdp_weights

from workshop.benchmarks import _watched


def main() -> None:
    torch.set_num_threads(1)
    PartialState(cpu=True)
    _watched.report_peak(lambda: merge_fsdp_weights(sys.argv[1], sys.argv[2]))


if __name__ == "__main__":
    main()
