"""The formats `openai-whisper` and `ctranslate2`: converts an exported folder, and compares the files with what was trained."""

from __future__ import annotations

import base64
import gzip
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overtone.data_prep.transcription import whisper_conversion, whisper_engine
from overtone.data_prep.transcription.faster_whisper_engine import PREFIX
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Conversion
from overtone.finetune.storage import files
from overtone.finetune.storage.model_security import DOCUMENTS, admit
from overtone.finetune.storage.strict_json import one_line
from overtone.finetune.terminal import print_line
from overtone.recipes.language.causal_lm_export_files import GENERATION

OPENAI, CTRANSLATE2 = "openai-whisper", "ctranslate2"
CONVERTED = (OPENAI, CTRANSLATE2)
NUMBER_TYPES = {OPENAI: ("f16", "f32"), CTRANSLATE2: ("float16", "float32", "bfloat16", "int8", "int8_float16", "int8_float32")}
"""Format → values of --quantize, the default first; CTranslate2's are its own names."""
TYPES = {"f16": torch.float16, "f32": torch.float32}
FILE = "model.pt"
NEEDED = ("tokenizer.json", "preprocessor_config.json")
"""Files of the base without which faster-whisper would download the tokenizer of another model, or compute another spectrogram."""
TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest difference of the encoder's output and of logits that rounding explains, relative to the largest value."""
COARSE = 0.5
"""The same for 8 bits."""


def make_conversion(form: str, base: Path) -> Conversion:
    """The conversion of a format. Raises `UserError` before anything is exported if the base lacks a file that the format needs."""
    if form == CTRANSLATE2:
        require_converter()
        if missing := [name for name in NEEDED if not (base / name).is_file()]:
            raise UserError(
                f"--format {form}: {base} has no {missing[0]}, which faster-whisper reads; add the file of the released model to the base"
            )
    name = f"EXPORT/{FILE}" if form == OPENAI else f"{PREFIX}EXPORT"
    return Conversion(
        choose_type=partial(choose_type, form),
        convert=convert_to_openai if form == OPENAI else convert_to_ctranslate2,
        describe_use=lambda _: [f"note: transcribe with it: overtone voice recordings/ --out data/mine --whisper {name}"],
    )


def require_converter() -> Any:
    """CTranslate2's package. Raises `UserError` if it is not installed."""
    try:
        import ctranslate2
    except ImportError:
        raise UserError(f"--format {CTRANSLATE2} needs the package ctranslate2: pip install 'overtone[faster-whisper]'") from None
    return ctranslate2


def choose_type(form: str, given: str | None) -> str:
    """The type of the numbers. Raises `UserError` for an unknown one."""
    known = NUMBER_TYPES[form]
    if given is None or given in known:
        return given or known[0]
    raise UserError(f"--quantize {given}: expected {', '.join(known)} for --format {form}")


def convert_to_openai(folder: Path, target: Path, number_type: str) -> dict[str, str]:
    """Write the file that `whisper.load_model` reads; returns its name → SHA-256. Raises `UserError` if it does not read back equal."""
    found = whisper_conversion.read_checkpoint(str(folder))
    state = {name: value.to(TYPES[number_type]) for name, value in found["model_state_dict"].items()}
    buffer = io.BytesIO()
    torch.save({**found, "model_state_dict": state}, buffer)
    files.write_in_place(target / FILE, buffer.getvalue())
    model = whisper_engine.load_whisper(str(target / FILE), "cpu")
    loaded = model.state_dict()
    if wrong := [name for name, value in state.items() if not value.isfinite().all()]:
        raise UserError(f"{wrong[0]} has values that {number_type} cannot hold. Nothing was exported; add --quantize f32")
    if wrong := [name for name, value in state.items() if not torch.equal(loaded[name], value.float())]:
        raise UserError(f"{FILE}: {wrong[0]} does not read back as it was trained. Nothing was exported; check the disk and try again")
    if found["alignment_heads"] is not None:
        heads = base64.b85encode(gzip.compress(model.alignment_heads.to_dense().numpy().tobytes(), mtime=0))
        print_line(
            f"note: openai-whisper does not read from a file which attention heads give the times of words; after "
            f"model = whisper.load_model({FILE!r}), call model.set_alignment_heads({heads!r})"
        )
    copy_documents(folder, target)
    return {FILE: files.digest(target / FILE)}


def convert_to_ctranslate2(folder: Path, target: Path, number_type: str) -> dict[str, str]:
    """Write the folder that faster-whisper reads, by CTranslate2's own converter; returns the name of the weights → SHA-256. Raises
    `UserError` if the model that CTranslate2 loads computes something else than the trained one."""
    ctranslate2 = require_converter()
    with admit(folder, whisper_conversion.KIND) as clean:
        converter = ctranslate2.converters.TransformersConverter(str(clean), copy_files=[*NEEDED])
        try:
            converter.convert(str(target / CTRANSLATE2), quantization=number_type)
        except Exception as error:  # the converter's versions fail in many ways with those of transformers
            raise UserError(f"--format {CTRANSLATE2}: CTranslate2's converter failed ({one_line(error):.300})") from error
    compare(folder, ctranslate2.models.Whisper(str(target / CTRANSLATE2), device="cpu"), number_type)
    for path in sorted((target / CTRANSLATE2).iterdir()):
        files.copy_into(path, target / path.name)
    files.discard(target / CTRANSLATE2)
    copy_documents(folder, target)
    return {"model.bin": files.digest(target / "model.bin")}


def compare(folder: Path, converted: Any, number_type: str) -> None:
    """Raises `UserError` if the two models differ by more than rounding explains, on a spectrogram of noise."""
    ctranslate2 = require_converter()
    trained = whisper_engine.load_whisper(str(folder), "cpu")
    mel = np.random.default_rng(0).standard_normal((1, trained.dims.n_mels, 3000)).astype(np.float32) * np.float32(0.2)
    prompt = find_prompt(trained)
    with torch.no_grad():
        encoded = trained.encoder(torch.from_numpy(mel))
        logits = trained.decoder(torch.tensor([prompt]), encoded)[0, -1].numpy()
    own = converted.encode(ctranslate2.StorageView.from_array(mel))
    made = converted.generate(own, [prompt], max_length=len(prompt) + 1, beam_size=1, return_logits_vocab=True, suppress_tokens=[])
    parts = {"encoder": (encoded.numpy(), np.array(own)), "logits": (logits, np.array(made[0].logits[0][0]))}
    for name, (expected, found) in parts.items():
        difference = float(np.abs(expected - found).max() / np.abs(expected).max())
        if not difference <= TOLERANCES.get(number_type, COARSE):
            raise UserError(
                f"what CTranslate2 loads is not the trained model: its {name} differ by {difference:.2g} of the largest value. Nothing was "
                "exported; update ctranslate2, or export with --format transformers"
            )


def find_prompt(model: Any) -> list[int]:
    """The tokens with which an English text without times starts."""
    from whisper.tokenizer import get_tokenizer

    tokenizer = get_tokenizer(model.is_multilingual, num_languages=model.num_languages, language="en", task="transcribe")
    return [*tokenizer.sot_sequence_including_notimestamps]


def copy_documents(folder: Path, target: Path) -> None:
    """Copy README, licence, and the language and the task of the run."""
    for path in sorted(folder.iterdir()):
        if DOCUMENTS.fullmatch(path.name) or path.name == GENERATION:
            files.copy_into(path, target / path.name)
