"""A Whisper of transformers with random weights, its tokenizer, and the settings by which `generate` finds the prompt of a language."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration, WhisperTokenizer

SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)


def save_whisper(folder: Path) -> Path:
    """The folder, with a model that writes at most 12 tokens."""
    folder.mkdir(parents=True)
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))] + [chr(256 + n) for n in range(68)]
    (folder / "vocab.json").write_text(json.dumps({letter: at for at, letter in enumerate(letters)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = WhisperTokenizer(folder / "vocab.json", folder / "merges.txt", unk_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    ids = dict(zip(SPECIAL, tokenizer.convert_tokens_to_ids(list(SPECIAL)), strict=True))
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ends = {"eos_token_id": ids["<|endoftext|>"], "pad_token_id": ids["<|endoftext|>"], "bos_token_id": ids["<|endoftext|>"]}
    start = {"decoder_start_token_id": ids["<|startoftranscript|>"], **ends}
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_source_positions=1500,
        max_target_positions=16,
        **sizes,
        **start,
    )
    model = WhisperForConditionalGeneration(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.generation_config = GenerationConfig(
        max_length=16,
        is_multilingual=True,
        lang_to_id={name: ids[name] for name in ("<|en|>", "<|de|>")},
        task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        suppress_tokens=[],
        begin_suppress_tokens=[],
        **start,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    return folder
