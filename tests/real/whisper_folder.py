"""Whisper tiny.en from CTranslate2's folder to the folder that transformers loads, with its tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

from overtone.data_prep.transcription.whisper_conversion import translate_name
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.whisper.model.sequence_layout import RecognizerProcessor, load_tokenizer
from overtone.recipes.whisper.model.vocabulary_check import check_vocabulary
from overtone.recipes.whisper.options import Options
from overtone.recipes.whisper.released_models import PROCESSOR, describe_whisper
from tests.real.openai_whisper_file import measure, name_tensors, read_variables

PROCESSING = RecognizerProcessor(multilingual=False, languages=0, mels=80, positions=448, options=Options())
END = "<|endoftext|>"
TEXTS = (
    " Welcome to the Asterisk Open Source PBX.",
    "The number is 1-800-555-0199, extension 4242; that's $12.50 (or 3 1/2 %)!",
    "  two  spaces\nand a line\t",
    "naïve café — “quoted” … 東京 😀 ½",
    "don't I'll we're THEY'VE he'd",
)


def write_whisper_folder(source: Path, target: Path) -> None:
    """Write `target` from `source`, CTranslate2's folder. Raises `UserError` if a tensor is missing, or the tokenizer is another one than
    openai-whisper's."""
    variables = read_variables(source / "model.bin")
    state = dict(name_tensors(variables))
    dims = measure(variables, state)
    config = describe_whisper(
        dims.n_audio_state, dims.n_audio_layer, dims.n_text_layer, dims.n_audio_head, dims.n_vocab > 51864, dims.n_mels
    )
    with torch.device("meta"):
        wanted = dict(WhisperForConditionalGeneration(WhisperConfig(**config)).named_parameters())
    if missing := [name for name in wanted if translate_name(name) not in state]:
        raise UserError(f"{source} has no {translate_name(missing[0])}")
    files.make_folder(target)
    save_file({name: state[translate_name(name)].contiguous() for name in wanted}, target / "model.safetensors", {"format": "pt"})
    files.write_json(target / "config.json", config)
    files.write_json(
        target / "generation_config.json", _describe_generation(json.loads((source / "config.json").read_text("utf-8")), config)
    )
    files.write_json(target / "preprocessor_config.json", PROCESSOR)
    shutil.copy(source / "tokenizer.json", target)
    tokens = {f"{name}_token": END for name in ("bos", "eos", "pad", "unk")}
    files.write_json(target / "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", "model_max_length": 448, **tokens})
    check_tokenizer(target)


def _describe_generation(known: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    tokens = load_tokenizer(PROCESSING, "en", "transcribe")
    return {
        **{name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")},
        **{"alignment_heads": known["alignment_heads"], "suppress_tokens": known["suppress_ids"]},
        **{"begin_suppress_tokens": known["suppress_ids_begin"], "no_timestamps_token_id": tokens.no_timestamps},
        **{"max_length": 448, "is_multilingual": False, "return_timestamps": False, "prev_sot_token_id": tokens.sot_prev},
    }


def check_tokenizer(folder: Path) -> None:
    """Raises `UserError` unless the tokenizer of a folder gives the ids of openai-whisper."""
    from tokenizers import Tokenizer

    check_vocabulary(folder, PROCESSING)
    theirs, ours = Tokenizer.from_file(str(folder / "tokenizer.json")), load_tokenizer(PROCESSING, "en", "transcribe")
    for text in TEXTS:
        if theirs.encode(text, add_special_tokens=False).ids != ours.encode(text):
            raise UserError(f"{folder}: the tokenizer encodes {text!r} in another way than openai-whisper")
    for name, number in (("<|startoftranscript|>", ours.sot), ("<|notimestamps|>", ours.no_timestamps), (END, ours.eot)):
        if theirs.token_to_id(name) != number:
            raise UserError(f"{folder}: {name} is {theirs.token_to_id(name)}, expected {number}")
