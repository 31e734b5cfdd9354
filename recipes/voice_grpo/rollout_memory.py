"""Memory of the rollouts, from configs alone: weights are neither downloaded nor read."""

from __future__ import annotations

from pathlib import Path

from accelerate import init_empty_weights
from torch import nn

from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC, CODEC_FOLDER, import_qwen_tts
from overtone.data_prep.transcription import faster_whisper_engine, whisper_memory
from overtone.finetune.modeling.lora_adapters import is_adapter
from overtone.finetune.recipe import Loaded
from overtone.finetune.storage.construction_limits import limit_construction
from overtone.finetune.storage.model_security import check_config
from overtone.recipes.qwen3_tts.model.modeling import SpeechModel
from overtone.recipes.speech.decoding.ragged_kv_cache import count_generation_bytes

from .options import Options


def count_rollout_bytes(loaded: Loaded, options: Options, itemsize: int, micro_tokens: int) -> int:
    """Return the memory on the GPU of each rank: the copy and its running batch, and the weights of the codec and of Whisper. The longest
    clip with its text is that of the longest group that fits. Not counted: a Whisper of faster-whisper, the encoder of the similarity,
    which runs on the CPU, and activations of codec and Whisper, which are gone when the step's own come."""
    assert isinstance(loaded.model, SpeechModel)
    talker = loaded.model.talker
    parameters = sum(each.numel() for name, each in loaded.model.named_parameters() if not is_adapter(name))
    copy = count_generation_bytes(parameters, talker.config, itemsize, options.rollout_batch, micro_tokens // options.group)
    whisper = whisper_memory.count_gpu_bytes(options.judge.asr, "options.judge.asr") or 0
    return copy + whisper_memory.sum_bytes(build_codec_on_meta(loaded.base / CODEC_FOLDER)) + whisper


def build_codec_on_meta(folder: Path) -> nn.Module:
    """Return the codec in a folder with parameters on the meta device, in the precision in which `QwenCodec` loads it."""
    import_qwen_tts()
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model

    with init_empty_weights(include_buffers=False), limit_construction(folder):
        return Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**check_config(folder, CODEC)))


def describe_rollouts(options: Options) -> str:
    """Return the remark on what each rank holds beside the model that trains."""
    judge = options.judge
    uncounted = " (its memory is not counted)" if faster_whisper_engine.is_faster_whisper(judge.asr, "options.judge.asr") else ""
    return (
        f"rollouts: a copy of the model in the compute type on each rank, with the keys and values of {options.rollout_batch} clips, the "
        f"codec, and Whisper {Path(judge.asr).name}{uncounted}; on the CPU the encoder {Path(judge.speaker_model).name}"
    )
