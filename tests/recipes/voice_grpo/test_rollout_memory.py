"""The memory of the rollouts is that of the modules which a run loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overtone.data_prep.audio_codecs.qwen3_tts_codec import QwenCodec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.data_prep.transcription import whisper_engine, whisper_memory
from overtone.recipes.qwen3_tts.model.base_voices import read_base_voices
from overtone.recipes.voice_grpo import recipe
from overtone.recipes.voice_grpo.clip_generation import ClipGenerator, ClipRequest
from overtone.recipes.voice_grpo.options import ClipJudge, Options
from overtone.recipes.voice_grpo.rollout_memory import build_codec_on_meta, count_rollout_bytes, describe_rollouts
from tests.recipes.voice_clone.conftest import Ready, write_babbler


def test_it_is_that_of_the_loaded_modules(exported: Path, fresh: Ready, tmp_path: Path) -> None:
    asr, vectors = write_babbler(tmp_path / "babbler.pt"), fresh.loaded.buffers["speaker_vectors"]
    options = Options(group=2, rollout_batch=4, judge=ClipJudge(asr=str(asr)))
    voices = read_base_voices(exported)
    loaded = recipe.load_speaking_model(options, None, exported, voices, vectors, "")
    generator = ClipGenerator(exported, voices.config, vectors, torch.float32, torch.device("cpu"), 4)
    generator.update_weights(fresh.model.named_parameters())
    generator.generate([ClipRequest([1, 2, 3, 4], 0, None, 0)], 8)
    assert generator._batch is not None
    cache = sum(tensor.nbytes for layer in generator._batch.cache.store for tensor in layer)
    whisper = whisper_engine.load_whisper(str(asr), "cpu")
    whisper_engine.halve_products(whisper)
    modules = (generator._talker, QwenCodec(exported / CODEC_FOLDER).load("cpu").tokenizer.model, whisper)
    held = sum(tensor.nbytes for module in modules for tensor in (*module.parameters(), *module.buffers()) if not tensor.is_sparse)
    assert count_rollout_bytes(loaded, options, 4, 1000) == pytest.approx(held + cache, rel=1e-3)


def test_the_codec_takes_what_the_loaded_one_takes(exported: Path) -> None:
    loaded = QwenCodec(exported / CODEC_FOLDER).load("cpu").tokenizer.model
    assert whisper_memory.sum_bytes(build_codec_on_meta(exported / CODEC_FOLDER)) == whisper_memory.sum_bytes(loaded)


def test_the_remark_says_what_is_not_counted(tmp_path: Path) -> None:
    judge = ClipJudge(asr="small", speaker_model=str(tmp_path / "wavlm"))
    assert describe_rollouts(Options(judge=judge)).endswith("the codec, and Whisper small; on the CPU the encoder wavlm")
    faster = judge.model_copy(update={"asr": "faster-whisper:small"})
    assert "small (its memory is not counted); on" in describe_rollouts(Options(judge=faster))
