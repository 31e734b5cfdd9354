"""Speak with an exported folder, through the stock `qwen_tts` package and in the layout that was trained (non-streaming).

python -m finetune generate --model exports/me --speaker me --text "Hello, this is my voice." --out hello.wav
"""

from __future__ import annotations

import argparse
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep import manifest
from finetune import files
from finetune.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

FRAME_RATE = 12.5
"""Codec frames per second of speech; generation makes one at a time."""
GREEDY = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.0}
"""Always the most likely code. The penalty on repetition would push it off the codes that were learned."""


@dataclass(frozen=True)
class Exported:
    """What an exported folder says about itself."""

    folder: Path
    config: dict[str, Any]
    trained: dict[str, Any]
    """State of the run that it was exported from; empty for a model from elsewhere."""

    @classmethod
    def of(cls, folder: Path) -> Exported:
        """Read what the folder holds. Raises `UserError` if the folder is no Qwen3-TTS model that can be spoken with here."""
        from .exporting import VOICES

        try:
            config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"--model {folder}: no model ({error}); `python -m finetune export RUN --to {folder}` makes one") from None
        if config.get("model_type") != "qwen3_tts" or config.get("tts_model_type") not in ("custom_voice", "base"):
            kinds = f"model_type {config.get('model_type')!r}, tts_model_type {config.get('tts_model_type')!r}"
            raise UserError(f"--model {folder}: {kinds} is no voice to speak with; export a run of the voice_clone recipe")
        told = folder / VOICES
        return cls(folder, config, json.loads(told.read_text(encoding="utf-8")) if told.is_file() else {})

    @property
    def is_base(self) -> bool:
        return self.config["tts_model_type"] == "base"

    @property
    def speakers(self) -> dict[str, int]:
        """Lower-case name → row of the codec embedding."""
        return {name.lower(): row for name, row in (self.config["talker_config"].get("spk_id") or {}).items()}

    def speaker(self, given: str | None) -> str | None:
        """The speaker to use: the given one, or the only one. Raises `UserError` that lists what exists."""
        known = ", ".join(sorted(self.speakers)) or "none"
        if given is None:
            if len(self.speakers) > 1:
                raise UserError(f"--speaker is missing; {self.folder} has several: {known}")
            return next(iter(self.speakers), None)
        name = manifest.speaker_name(given)
        if name not in self.speakers:
            raise UserError(f"--speaker {given}: {self.folder} does not know that voice; it has {known}")
        return name

    def language(self, given: str | None, speaker: str | None) -> str:
        """The language to announce: the given one, or the one that the speaker was trained with, or `auto`."""
        from .layout import Ids, language_of

        spoken = {entry["name"]: entry["language"] for entry in self.trained.get("speakers", [])}
        wanted = given if given is not None else spoken.get(speaker or "")
        return language_of({"language": wanted}, Ids.of(self.config)) or manifest.AUTO


def generate(folder: Path, argv: list[str]) -> int:
    """Body of the verb: check the request, load, speak, write the wav. Raises `UserError` for what the model cannot do."""
    asked = parse(argv)
    exported = Exported.of(folder)
    if not asked.text.strip():
        raise UserError('--text is empty; give the words to speak, as in --text "Hello, this is my voice."')
    if asked.reference is None:
        speaker = exported.speaker(asked.speaker)
        if speaker is None:
            raise UserError(f"{folder} knows no speaker by name; give --reference clip.wav of the voice to clone")
    else:
        speaker = None
        check_reference(exported, asked)
    language = exported.language(asked.language, speaker)
    wave, rate = speak(exported, asked, speaker, language)
    files.write_bytes(asked.out, wav(wave, rate))
    seconds = len(wave) / rate
    print(f"{asked.out}: {seconds:.2f} s, {speaker or asked.reference}, language {language}")
    if seconds >= asked.max_seconds - 1 / FRAME_RATE:
        print(f"it was cut off at --max-seconds {asked.max_seconds:g}: the model did not end by itself, as a hardly trained one may not")
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(prog="python -m finetune generate --model FOLDER", description="Speak with an exported voice.")
    parser.add_argument("--text", required=True, help="what to say")
    parser.add_argument("--speaker", help="a voice of the model; may be left out if there is only one")
    parser.add_argument("--language", help="language name, ISO code or auto; by default the one that the speaker was trained with")
    parser.add_argument("--reference", type=Path, help="clip of a voice to clone instead (base exports only)")
    parser.add_argument("--reference-text", help="what the clip says; then its manner is continued too, otherwise only its voice is used")
    parser.add_argument("--out", type=Path, default=Path("speech.wav"), help="wav file to write")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely code instead of sampling")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    parser.add_argument("--max-seconds", type=float, default=60.0, help="stop there if the model does not end by itself")
    return parser.parse_args(argv)


def check_reference(exported: Exported, asked: argparse.Namespace) -> None:
    """A clip to clone needs a base export, a file, and no second voice."""
    if not exported.is_base:
        raise UserError(f"--reference: {exported.folder} is a custom_voice export, which has no speaker encoder; export with --format base")
    if asked.speaker is not None:
        raise UserError("--speaker and --reference each choose a voice; give one of them")
    if not asked.reference.is_file():
        raise UserError(f"--reference {asked.reference}: no such file")


def speak(exported: Exported, asked: argparse.Namespace, speaker: str | None, language: str) -> tuple[np.ndarray, int]:
    """(wave [samples] float32, rate in Hz)."""
    import torch

    tts = load(exported.folder)
    torch.manual_seed(asked.seed)
    settings: dict[str, Any] = {"max_new_tokens": math.ceil(asked.max_seconds * FRAME_RATE), **(GREEDY if asked.greedy else {})}
    common = {"text": asked.text, "language": language, "non_streaming_mode": True, **settings}
    if not exported.is_base:
        waves, rate = tts.generate_custom_voice(speaker=speaker, **common)
    elif speaker is not None:
        waves, rate = tts.generate_voice_clone(voice_clone_prompt=[stored_voice(tts, exported.speakers[speaker])], **common)
    else:
        clip = audio_of(asked.reference)
        only_voice = asked.reference_text is None
        waves, rate = tts.generate_voice_clone(ref_audio=clip, ref_text=asked.reference_text, x_vector_only_mode=only_voice, **common)
    return waves[0], rate


def load(folder: Path) -> Any:
    """The stock package's model, on the GPU in bf16 if there is one."""
    import torch
    import transformers

    from data_prep.qwen import import_qwen_tts

    qwen_tts = import_qwen_tts()
    transformers.logging.set_verbosity_error()  # it would remark on every default that generation takes
    device, dtype = ("cuda:0", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    return qwen_tts.Qwen3TTSModel.from_pretrained(str(folder), device_map=device, dtype=dtype, attn_implementation="sdpa")


def stored_voice(tts: Any, row: int) -> Any:
    """A prompt for `generate_voice_clone` that is a speaker's stored vector."""
    from qwen_tts.inference.qwen3_tts_model import VoiceClonePromptItem

    vector = tts.model.talker.model.codec_embedding.weight[row].detach()
    return VoiceClonePromptItem(ref_code=None, ref_spk_embedding=vector, x_vector_only_mode=True, icl_mode=False)


def greedy_codes(tts: Any, text: str, speaker: str, language: str, most: int) -> Tensor:
    """The codes [T, 16] that a loaded export, of either format, speaks; T ≤ `most`. A clip that was learned comes back exactly."""
    request: dict[str, Any] = {"speakers": [speaker]}
    if tts.model.tts_model_type == "base":
        row = tts.model.config.talker_config.spk_id[speaker]
        request = {"voice_clone_prompt": tts._prompt_items_to_voice_clone_prompt([stored_voice(tts, row)])}
    tokens = tts._tokenize_texts([tts._build_assistant_text(text)])
    codes, _ = tts.model.generate(
        input_ids=tokens,
        languages=[language],
        non_streaming_mode=True,
        max_new_tokens=most + 1,  # the end of speech is one too
        **GREEDY,
        **request,
    )
    return codes[0]


def audio_of(path: Path) -> tuple[np.ndarray, int]:
    """(mono float32 samples, rate) of a reference clip."""
    from .speakers import SAMPLE_RATE, read_clip

    return read_clip(path), SAMPLE_RATE


def wav(wave: np.ndarray, rate: int) -> bytes:
    """16-bit PCM."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, wave, rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()
