"""Speech of CSM by transformers' own class and by our decoder, on the same checkpoint: frames per second.

Greedy, so that both say the same codes, which is checked first. The stock class calls a complete `generate` for the depth decoder in every
frame.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from transformers import CsmForConditionalGeneration

from benchmarks import _table
from benchmarks._stock_generation import TEXT, Codes, compare
from recipes.csm.inference.exported_metadata import ExportedCsm
from recipes.csm.inference.frame_decoding import CsmDecoder, CsmSession
from recipes.csm.model import tiny_checkpoint
from recipes.speech.decoding.token_sampling import GREEDY

COLUMNS = ("model", "codebooks", "texts at once", "frames / s, stock", "frames / s, here", "here / stock")
NOTE = (
    "Random weights, fp32, greedy, codes alone; processor seconds of one process on one thread of a CPU, medians of runs in turns, "
    "{frames} frames of each text. tiny is the checkpoint of the tests; with 32 codebooks, it has as many steps in a frame as CSM-1B."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    frames, rounds = (4, 1) if flags.quick else (25, 5)
    sizes = [(4, 1)] if flags.quick else [(4, 1), (4, 8), (32, 1), (32, 8)]
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            ["tiny", books, texts, *compare(codes_of(build(Path(folder) / str(books), books), texts, frames), texts * frames, rounds)]
            for books, texts in sizes
        ]
    _table.publish("csm_generation", flags, COLUMNS, rows, NOTE.format(frames=frames))


def build(folder: Path, codebooks: int) -> Path:
    """The tiny checkpoint with so many codebooks."""
    if not folder.exists():
        tiny_checkpoint.build(folder, codebooks=codebooks)
    return folder


def codes_of(folder: Path, texts: int, frames: int) -> dict[str, Callable[[], Codes]]:
    """The same texts as codes: by the stock class, and by the loop here."""
    model: Any = CsmForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    exported = ExportedCsm.inspect(folder)
    prompt, decoder = exported.tokenize(TEXT, 0), CsmDecoder(model, exported.processor.tokens)

    def theirs() -> Codes:
        inputs = torch.tensor([prompt] * texts)
        greedy: dict[str, Any] = {"do_sample": False, "depth_decoder_do_sample": False}
        found = model.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=frames, **greedy)
        return [one.tolist() for one in found]

    @torch.inference_mode()
    def ours() -> Codes:
        session = CsmSession(decoder, [decoder.embed_text(prompt)] * texts, GREEDY, [0] * texts, frames)
        for _ in session.frames():
            pass
        return [one.codes.tolist() for one in session.results()]

    return {"stock": theirs, "here": ours}


if __name__ == "__main__":
    main()
