"""Speech of CSM by transformers' own class and by our decoder, on the same checkpoint: frames per second.

Greedy, so that both say the same codes, which is checked first. The stock class calls a complete `generate` for the depth decoder in every
frame.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import CsmForConditionalGeneration

from overtone.recipes.csm.inference.decoding import CsmBatch, CsmDecoder
from overtone.recipes.csm.inference.exported_folder import ExportedCsm
from overtone.recipes.csm.model import tiny_checkpoint
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler
from workshop.benchmarks._stock_generation import TEXT, Codes, Ways, publish_comparison

GREEDY = FrameSampler(CodeSampler(greedy=True), CodeSampler(greedy=True))
COLUMNS = ("model", "codebooks", "texts at once", "frames / s, stock", "frames / s, here", "here / stock")
NOTE = (
    "Random weights, fp32, greedy, codes alone; processor seconds of one process on one thread of a CPU, medians of runs in turns, "
    "{frames} frames of each text. tiny is the checkpoint of the tests; with 32 codebooks, it has as many steps in a frame as CSM-1B."
)


def main() -> None:
    publish_comparison("csm_generation", __doc__, COLUMNS, NOTE, [(4, 1), (4, 8), (32, 1), (32, 8)], 25, make_ways)


def make_ways(folder: Path, codebooks: int, texts: int, frames: int) -> Ways:
    """The same texts as codes: by the stock class, and by the loop here."""
    if not folder.exists():
        tiny_checkpoint.build(folder, codebooks=codebooks)
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
        batch, embedded = CsmBatch(decoder, texts), decoder.embed_text(prompt)
        return [one.codes.tolist() for one in batch.finish([batch.join(embedded, GREEDY, 0, frames) for _ in range(texts)])]

    return {"stock": theirs, "here": ours}


if __name__ == "__main__":
    main()
