"""Speech tokens of Orpheus' layout by transformers' own `generate` and by our decoder, on the same checkpoint: frames per second.

Greedy, so that both choose the same tokens, which is checked first. The stock loop scores the whole vocabulary for each token, ours the
codes that can come next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from overtone.finetune.storage import files
from overtone.recipes.codec_lm.families import ORPHEUS, Family
from overtone.recipes.codec_lm.inference.decoding import SpeechTokenBatch, SpeechTokenDecoder, TokenSampler
from overtone.recipes.codec_lm.inference.exported_folder import ExportedSpeechTokens
from overtone.recipes.codec_lm.model import tiny_checkpoint
from overtone.recipes.codec_lm.model.sequence_layout import SpeechTokenIds
from overtone.recipes.tiny_checkpoints import to_safetensors
from workshop.benchmarks._stock_generation import TEXT, Codes, Ways, publish_comparison

COLUMNS = ("model", "codes of a codebook", "texts at once", "frames / s, stock", "frames / s, here", "here / stock")
NOTE = (
    "Random weights except that embeddings and head know the place in the frame, so that the stock output is well-formed and they can be "
    "compared; fp32, greedy, tokens alone; processor seconds of one process on one thread of a CPU, medians of runs in turns, {frames} "
    "frames (7 tokens each) of each text. tiny has the layers of `recipes/codec_lm/model/tiny_checkpoint.py`; 4096 codes are those "
    "of Orpheus."
)


def main() -> None:
    publish_comparison("codec_lm_generation", __doc__, COLUMNS, NOTE, [(16, 1), (16, 8), (4096, 1), (4096, 8)], 26, make_ways)


def build(folder: Path, codes: int) -> Path:
    """A tiny checkpoint whose codebooks have so many codes."""
    if folder.exists():
        return folder
    family = ORPHEUS.model_copy(update={"codebook_size": codes})
    tokenizer = tiny_checkpoint.make_tokenizer((tiny_checkpoint.BEGIN, *family.control_tokens, *family.name_codes()))
    config = {**tiny_checkpoint.make_config(tokenizer.get_vocab_size()), "tie_word_embeddings": False, "initializer_range": 0.02}
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    mark_places(model, family, tokenizer)
    contents = {
        **tiny_checkpoint.make_tokenizer_files(tokenizer),
        "config.json": files.json_bytes(config),
        "voices.json": files.json_bytes({"family": family.model_dump()}),
        "model.safetensors": to_safetensors(model.state_dict()),
    }
    for name, data in contents.items():
        files.write_bytes(folder / name, data)
    return folder


@torch.no_grad()
def mark_places(model: Any, family: Family, tokenizer: Any) -> None:
    """Give each place in the frame a dimension of its own, which is large in the embeddings of its codes and in the head of the next."""
    first, count = tokenizer.token_to_id(next(family.name_codes())), len(family.slots)
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    for slot in range(count):
        rows = slice(first + slot * family.codebook_size, first + (slot + 1) * family.codebook_size)
        embeddings[rows, slot] = head[rows, (slot - 1) % count] = 1.0
    embeddings[tokenizer.token_to_id(family.after_text[-1]), count - 1] = 1.0


def make_ways(folder: Path, codes: int, texts: int, frames: int) -> Ways:
    """The same texts as codes: by stock generation, and by the loop here."""
    model: Any = AutoModelForCausalLM.from_pretrained(build(folder, codes), dtype=torch.float32).eval()
    exported = ExportedSpeechTokens.inspect(folder)
    ids: SpeechTokenIds = exported.processor.ids
    prompt, decoder = exported.make_prompt(TEXT, "tara"), SpeechTokenDecoder(model, ids)

    def theirs() -> Codes:
        inputs = torch.tensor([prompt] * texts)
        new = {"max_new_tokens": frames * len(ids.slots), "do_sample": False, "pad_token_id": 0}
        found = model.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), **new)
        return [ids.decode_frames(one).tolist() for one in found[:, len(prompt) :]]

    def ours() -> Codes:
        batch, greedy = SpeechTokenBatch(decoder, texts), TokenSampler(greedy=True)
        return [one.codes.tolist() for one in batch.finish([batch.join(prompt, greedy, 0, frames) for _ in range(texts)])]

    return {"stock": theirs, "here": ours}


if __name__ == "__main__":
    main()
