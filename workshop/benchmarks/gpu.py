"""One GPU, in eight parts: facts, whether everything runs, training steps of a chat model and a voice, speech, serving, and saving.

    python workshop/benchmarks/gpu.py --part facts|smoke|recipes|chat|voice|speech|serving|saving [--to FOLDER]

A part takes at most nine minutes on an H100 of 80 GB and watches its own time. Each figure is printed and written to FOLDER/gpu-PART.jsonl
as soon as it is there; the same command again measures only what is missing, on the same card, driver and torch. FOLDER/gpu.md has the
tables of all parts. Without --part, one part follows the other. Without a CUDA GPU it says so and leaves the tables as they are; with --dry
it runs through all of it at the smallest sizes, on a CPU too.

    model FLOPs of a token = 6·N + 12·L·H·Q·T

N: parameters that are multiplied with (an embedding that is only looked up is none; a tied one is the head); L layers of H heads of Q
channels; T: positions of the token's own sample, as if attention were not causal (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix
B). What recomputation does besides does not count, nor padding. In Qwen3-TTS each frame is also 16 positions of the code predictor, with
the heads of 15. MFU is that over the data sheet's dense bf16; the ceiling is what one matrix product reaches in the same run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks import _gpu_figures
from workshop.benchmarks._gpu import ROOT, has_gpu
from workshop.benchmarks._table import RESULTS, SKIPPED

WORK = ROOT / "runs" / "gpu"


@dataclass(frozen=True)
class Flags:
    part: str | None
    """None: all."""
    to: Path
    """Folder for the tables and for the figures that they are made of."""
    work: Path
    """Folder for models and runs, up to 55 GB; models in it are used again."""
    dry: bool
    """The smallest sizes; the figures say nothing."""


def main() -> int:
    """Exit code 1 if a figure is missing."""
    flags = read_flags(sys.argv[1:])
    if not flags.dry and not has_gpu():
        print(f"{SKIPPED}needs a CUDA GPU; {flags.to / 'gpu.md'} stays as it is (--quick runs through the benchmark on a CPU)")
        return 0
    parts = _gpu_figures.PARTS if flags.part is None else (flags.part,)
    missing = [figure for name in parts for figure in _gpu_figures.measure_part(name, flags.to, flags.work, flags.dry)]
    print(_gpu_figures.publish(flags.to, flags.dry))
    return 1 if missing else 0


def read_flags(words: Sequence[str]) -> Flags:
    """A dry run leaves nothing behind unless it is given a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--part", choices=_gpu_figures.PARTS, help="measure this alone (default: one part after the other)")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="where gpu.md and the figures are written (default workshop/benchmarks/results)"
    )
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where models and runs are kept, up to 55 GB (default runs/gpu)")
    parser.add_argument("--dry", "--quick", action="store_true", help="the smallest sizes, to see that it runs; the figures say nothing")
    found = parser.parse_args(words)
    if not found.dry:
        return Flags(found.part, found.to or RESULTS, found.work or WORK, dry=False)
    passing = Path(tempfile.mkdtemp(prefix="gpu-dry-"))
    return Flags(found.part, found.to or passing, found.work or passing, dry=True)


if __name__ == "__main__":
    sys.exit(main())
