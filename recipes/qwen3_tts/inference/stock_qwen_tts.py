"""The unmodified stock `qwen_tts` package: the reference that exports and the decoding here are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from pydantic import JsonValue
from torch import Tensor

from overtone.data_prep.audio_codecs.qwen_tts_import import VOICE_MODEL, import_qwen_tts
from overtone.finetune.storage.model_security import admit, require_safetensors

if TYPE_CHECKING:
    from qwen_tts import Qwen3TTSModel

GREEDY = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.0}
"""Always the most likely code. The repetition penalty would move it away from learned codes."""


def load(folder: Path) -> Qwen3TTSModel:
    """The stock package's model, on the GPU in bf16 if there is one, else on the CPU in fp32."""
    qwen_tts = import_qwen_tts()
    transformers.logging.set_verbosity_error()  # otherwise it warns about every default of the generation
    device, dtype = ("cuda:0", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    require_safetensors(folder, "--model")
    with admit(folder, VOICE_MODEL) as clean:
        return qwen_tts.Qwen3TTSModel.from_pretrained(
            clean, trust_remote_code=False, use_safetensors=True, device_map=device, dtype=dtype, attn_implementation="sdpa"
        )


def make_stored_voice_prompt(tts: Qwen3TTSModel, row: int) -> Any:
    """A prompt for `generate_voice_clone` with the stored vector of a speaker."""
    from qwen_tts.inference.qwen3_tts_model import VoiceClonePromptItem

    vector = tts.model.talker.model.codec_embedding.weight[row].detach()
    return VoiceClonePromptItem(ref_code=None, ref_spk_embedding=vector, x_vector_only_mode=True, icl_mode=False)


def generate_greedy_codes(tts: Qwen3TTSModel, text: str, speaker: str, language: str, max_frames: int) -> Tensor:
    """The codes [T, 16], T ≤ `max_frames`, that a loaded export of either format generates. A memorized clip is reproduced exactly."""
    request: dict[str, JsonValue] = {"speakers": [speaker]}
    if tts.model.tts_model_type == "base":
        row = tts.model.config.talker_config.spk_id[speaker]
        request = {"voice_clone_prompt": tts._prompt_items_to_voice_clone_prompt([make_stored_voice_prompt(tts, row)])}
    tokens = tts._tokenize_texts([tts._build_assistant_text(text)])
    codes, _ = tts.model.generate(
        input_ids=tokens,
        languages=[language],
        non_streaming_mode=True,
        max_new_tokens=max_frames + 1,  # end of speech counts too
        **GREEDY,
        **request,
    )
    return codes[0]
