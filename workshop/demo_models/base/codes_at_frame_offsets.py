"""Codes of training clips at random places of the frame grid, for the base's last training.

    python -m workshop.demo_models.base.codes_at_frame_offsets [--corpus runs/studio/corpus] [--clips 24000] [--workers 2]

Reads `base-train.jsonl` and `base-val.jsonl` (`prepare_base_training`); they need no codes. Writes `base-train-shifted.jsonl`, a random
choice of the training clips, and `base-val-shifted.jsonl`: each clip with the codes that it has after silence of a random part of a frame.
A synthesizer starts every clip at the same place of the first frame, but the clips of a recording start anywhere: a base that has seen
only that one place does not know the codes that it is fine-tuned on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import soundfile
import torch

from overtone.data_prep.audio_codecs import qwen3_tts_codec
from overtone.data_prep.audio_codecs.qwen3_tts_codec import SAMPLES_PER_FRAME, LoadedQwenCodec
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.storage import files, strict_json
from overtone.finetune.storage.text_lines import read_lines
from overtone.finetune.terminal import print_diagnostic
from workshop.demo_models.base import prepare_base_training
from workshop.demo_models.corpus import make_corpus

CLIPS = 24_000
TASK, BATCH = 512, 8
"""Clips that a worker gets at a time; it encodes those of similar length together, a batch at a time, which fits into a CPU's caches."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="codes_at_frame_offsets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--codec", default=str(prepare_base_training.CODEC), help="name or folder (default %(default)s)")
    parser.add_argument("--clips", type=int, default=CLIPS, help="training clips to choose (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rows = {part: read_rows(options.corpus / f"base-{part}.jsonl") for part in ("val", "train")}
    qwen3_tts_codec.find_codec(options.codec)  # before any worker starts
    for part, given in rows.items():
        chosen = choose_shifts(given, options.clips, options.seed)
        encoded = encode_rows(chosen, options.corpus, options.codec, options.workers)
        files.write_jsonl(options.corpus / f"base-{part}-shifted.jsonl", encoded)
    return 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file. Raises `UserError` if it does not exist."""
    if not path.exists():
        raise UserError(f"{path} is missing; create it: python -m workshop.demo_models.base.prepare_base_training")
    return [strict_json.loads_object(line) for line in read_lines(path)]


def choose_shifts(rows: Sequence[dict[str, Any]], count: int, seed: int) -> list[tuple[dict[str, Any], int]]:
    """`count` of the rows in random order, or all, each with a number of samples of silence before it: less than a frame."""
    random = Random(seed)
    return [(row, random.randrange(SAMPLES_PER_FRAME)) for row in random.sample(rows, min(count, len(rows)))]


def encode_rows(chosen: Sequence[tuple[dict[str, Any], int]], corpus: Path, codec: str, workers: int) -> Iterator[dict[str, Any]]:
    """The rows with `audio_codes` [frames, 16], in the same order."""
    parts = [chosen[start : start + TASK] for start in range(0, len(chosen), TASK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for number, encoded in enumerate(pool.map(encode_part, parts, [corpus] * len(parts), [codec] * len(parts)), start=1):
            print_diagnostic(f"{number} of {len(parts)} parts encoded")
            yield from encoded


def encode_part(part: Sequence[tuple[dict[str, Any], int]], corpus: Path, codec: str) -> list[dict[str, Any]]:
    """The rows of one part with codes; runs in a worker."""
    loaded = _load_codec(codec)
    waves = [_read_shifted(corpus / row["audio"], shift) for row, shift in part]
    order = sorted(range(len(waves)), key=lambda at: len(waves[at]))
    codes: dict[int, Any] = {}
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        encoded = qwen3_tts_codec.encode_clips(loaded, [waves[at] for at in batch])
        codes.update(zip(batch, encoded, strict=True))
    return [{**row, "audio_codes": np.asarray(codes[at]).tolist()} for at, (row, _) in enumerate(part)]


@cache
def _load_codec(codec: str) -> LoadedQwenCodec:
    torch.set_num_threads(1)
    return qwen3_tts_codec.load_codec(qwen3_tts_codec.find_codec(codec), "cpu")


def _read_shifted(path: Path, shift: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Samples [shift + n] at 24 kHz."""
    samples = soundfile.read(path, dtype="float32")[0]
    return np.concatenate([np.zeros(shift, np.float32), samples])


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
