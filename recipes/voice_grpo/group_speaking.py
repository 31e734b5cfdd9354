"""Speaks the texts of a step several times each, judges the clips, and makes samples to train on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from overtone.data_prep.audio_codecs.qwen3_tts_codec import CODEBOOKS, QwenCodec
from overtone.data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from overtone.finetune.data.keyed_permutation import derive_key
from overtone.finetune.recipe import AnswerRecord, Loaded, PromptRow, Rollout, RolloutSettings, Sample
from overtone.recipes.policy.policy_objectives import find_advantages, has_variance
from overtone.recipes.policy.rollout_samples import REWARD, make_lesson, name_metrics
from overtone.recipes.qwen3_tts.model.base_voices import read_base_voices
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.preferences.reward_weights import RewardWeights
from overtone.recipes.speech.preferences.speech_judge import SpeechMeasures, compute_reward, rate_penalties, rate_scores

from .clip_generation import ClipGenerator, ClipRequest, GeneratedClip
from .clip_judge import check_text, open_judge
from .options import Options
from .state import VoicePolicyState
from .text_rows import AUTOMATIC, TextProcessor, lay_out_clip, make_item


class GroupSpeaking:
    """Implements `RolloutWorker`. Owns a copy of the model, the codec, and the models of the judge."""

    def __init__(self, loaded: Loaded[TextProcessor], options: Options, settings: RolloutSettings) -> None:
        """Raises `UserError` for a judge that cannot be loaded."""
        self.slots = options.rollout_batch
        """Implements `RolloutWorker`."""
        self._processor, self._options, self._seed = loaded.processor, options, settings.seed
        config, vectors = read_base_voices(loaded.base).config, loaded.buffers["speaker_vectors"]
        self._generator = ClipGenerator(loaded.base, config, vectors, settings.dtype, settings.device, options.rollout_batch)
        # A launched process trains on cpu:0, with which safetensors would ask for an accelerator.
        device = "cpu" if settings.device.type == "cpu" else str(settings.device)
        self._codec = QwenCodec(loaded.base / CODEC_FOLDER).load(device)
        assert isinstance(loaded.state, VoicePolicyState)
        texts = loaded.state.texts
        self._judge = open_judge(options.judge, [*texts.texts], texts.languages)
        self._longest = options.longest_clip * CODEBOOKS + 1
        """Tokens of the longest clip, with its end."""

    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Implements `RolloutWorker`."""
        self._generator.update_weights(weights)

    def answer(self, prompts: Sequence[PromptRow], step: int | None) -> list[Rollout]:
        """Implements `RolloutWorker`: a group of clips of each text, or in an evaluation one, drawn in the same way."""
        size = 1 if step is None else self._options.group
        items = [make_item(prompt.sample, prompt.where, self._processor) for prompt in prompts]
        for prompt, item in zip(prompts, items, strict=True):
            check_text(self._judge, item, prompt.where)
        requests = [
            make_request(prompt.sample, derive_key(self._seed, step or 0, prompt.row, prompt.earlier * size + number, *prompt.replaces))
            for prompt in prompts
            for number in range(size)
        ]
        clips = self._generator.generate(requests, self._options.longest_clip)
        groups = (clips[start : start + size] for start in range(0, len(clips), size))
        return [
            self._make_rollout(prompt.sample, item, group, step is not None)
            for prompt, item, group in zip(prompts, items, groups, strict=True)
        ]

    def make_filler(self, prompt: Sample, step: int | None) -> list[Sample]:
        """Implements `RolloutWorker`."""
        metrics = dict.fromkeys((REWARD, *(f"{REWARD}_{name}" for name in RewardWeights.model_fields), "seconds", "unfinished"), 0.0)
        sample = lay_out_clip(prompt, torch.zeros(1, CODEBOOKS, dtype=torch.int64), True, self._processor)
        if step is not None:
            metrics["flat_groups"] = 0.0
            sample |= make_lesson(self._options.objective, [0.0] * (CODEBOOKS + 1), 0.0, self._longest)
        return [sample | name_metrics(metrics)]

    def close(self) -> None:
        """Implements `RolloutWorker`: nothing runs besides it."""

    def _make_rollout(self, text: Sample, item: Item, clips: Sequence[GeneratedClip], trains: bool) -> Rollout:
        # The clips of a text are always judged together, on whatever number of ranks.
        takes = [(self._codec.decode(clip.codes.numpy().astype(np.uint16)), clip.ended) for clip in clips]
        measured = self._judge.measure_takes(takes, item)
        rewards = [compute_reward(one, self._options.rewards) for one in measured]
        advantages, flat = find_advantages(self._options.objective, rewards), not has_variance(rewards)
        samples, records = list[Sample](), list[AnswerRecord]()
        for clip, measures, reward, advantage in zip(clips, measured, rewards, advantages, strict=True):
            parts = list_parts(measures)
            metrics = {REWARD: reward, **{f"{REWARD}_{name}": value for name, value in parts.items()}}
            metrics |= {"seconds": measures.sound.seconds, "unfinished": float(not clip.ended)}
            sample = lay_out_clip(text, clip.codes, clip.ended, self._processor)
            if trains:
                metrics["flat_groups"] = float(flat)
                sample |= make_lesson(self._options.objective, clip.scores, advantage, self._longest)
            samples.append(sample | name_metrics(metrics))
            records.append(make_record(clip, measures, reward, advantage))
        return Rollout(samples, {"prompt": item.text, "flat": flat, "answers": records})


def make_request(text: Sample, seed: int) -> ClipRequest:
    """Return the request for a clip of a text."""
    language = int(text["language"])
    return ClipRequest(text["prompt"].tolist(), int(text["speaker"]), None if language == AUTOMATIC else language, seed)


def list_parts(measures: SpeechMeasures) -> dict[str, float]:
    """Return the parts of a reward by the names of their weights: scores, and penalties below 0."""
    return {**rate_scores(measures), **{name: 0.0 - penalty for name, penalty in rate_penalties(measures).items()}}


def make_record(clip: GeneratedClip, measures: SpeechMeasures, reward: float, advantage: float) -> AnswerRecord:
    """Return the record of a clip in rollouts.jsonl; its text is the transcript."""
    failures = [] if measures.transcript is not None else ["intelligibility: the recognizer failed, so every word counts as wrong"]
    return {
        "text": measures.transcript or "",
        "tokens": len(clip.scores),
        "ended": clip.ended,
        "reward": reward,
        "rewards": list_parts(measures),
        "failures": failures,
        "advantage": advantage,
    }
