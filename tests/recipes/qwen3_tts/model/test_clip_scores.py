"""Log-probabilities clip by clip, in a batch of clips of different lengths: those of the stock package's generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from overtone.finetune.modeling.loading import materialise
from overtone.finetune.recipe import Sample
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.qwen3_tts.model.base_voices import load_voices, make_speech_processor, read_base_voices, read_speaker_vectors
from overtone.recipes.qwen3_tts.model.clip_scores import collate_clips, score_codes
from overtone.recipes.qwen3_tts.model.sequence_layout import IGNORE, SpeechProcessor, read_row
from tests.recipes.qwen3_tts.stock_scores import generate_along
from tests.recipes.voice_clone.conftest import Ready, make_rows

ROUNDING = 1e-5
CUT_OFF = (1, 6)
"""Clips without an end of speech."""


@torch.no_grad()
def test_scores_of_a_batch_are_those_of_each_clip_alone(fresh: Ready) -> None:
    clips = [dict(sample) for sample in fresh.samples]
    clips[1] = cut_off(clips[1])
    batch, tokens = collate_clips(clips)
    frames = [int(clip["frame_mask"].sum()) for clip in clips]
    assert tokens == [16 * count + (number != 1) for number, count in enumerate(frames)]
    alone = [score_codes(fresh.model, collate_clips([clip])[0]) for clip in clips]
    torch.testing.assert_close(score_codes(fresh.model, batch), torch.cat(alone), rtol=0, atol=2e-6)
    assert len({round(float(one.sum()), 3) for one in alone}) == len(clips)


def cut_off(clip: Sample) -> Sample:
    """The clip without its end of speech, as `voice_dpo` and `voice_grpo` lay out speech that was cut off."""
    labels = clip["labels"].clone()
    labels[-1] = IGNORE
    return {**clip, "labels": labels}


@dataclass(frozen=True)
class ExportInBothPackages:
    """An exported voice twice: as the base of `voice_dpo` and `voice_grpo`, and in the stock package."""

    model: nn.Module
    processor: SpeechProcessor
    rows: list[dict[str, Any]]
    stock: list[Tensor]
    """Of each row, the log-probabilities in the order of `score_codes`."""

    @torch.no_grad()
    def measure(self, rows: list[dict[str, Any]]) -> list[Tensor]:
        """The log-probabilities of our rows [tokens], from one batch."""
        clips = [read_row(row, self.processor) for row in rows]
        batch, tokens = collate_clips([cut_off(clip) if number in CUT_OFF else clip for number, clip in enumerate(clips)])
        return list(score_codes(self.model, batch).split(tokens))

    def find_difference(self, rows: list[dict[str, Any]]) -> float:
        """The largest difference between both packages in nats."""
        return max(float((ours - stock).abs().max()) for ours, stock in zip(self.measure(rows), self.stock, strict=True))


@pytest.fixture(scope="module")
def case(exported: Path) -> ExportInBothPackages:
    """Two named speakers say two texts, with and without a language, in eight clips of different lengths."""
    names = {"Anna": "high.flac", "Bert": "low.flac"}
    rows = [*make_rows(names, ("english", "auto")), *make_rows(names, ("auto", "german"), frames=3, seed=1)]
    voices = read_base_voices(exported)
    loaded = load_voices(exported, voices, read_speaker_vectors(exported, voices.rows), None, ())
    materialise(loaded.model, loaded.base, loaded.buffers, torch.device("cpu"), seed=0)
    tts, stock = stock_qwen_tts.load(exported), list[Tensor]()
    assert type(tts).__module__ == "qwen_tts.inference.qwen3_tts_model" and tts.model.tts_model_type == "custom_voice"
    for number, row in enumerate(rows):
        found = generate_along(tts, row, row["speaker"].lower())
        stock.append(torch.cat([found.first[: -1 if number in CUT_OFF else None], found.others.flatten()]))
    return ExportInBothPackages(loaded.model, make_speech_processor(exported, voices), rows, stock)


def test_each_log_probability_is_that_of_the_stock_package(case: ExportInBothPackages) -> None:
    """Both levels of codebooks and the end of speech, from the stock package's own prompt, caches and heads."""
    frames = [len(row["audio_codes"]) for row in case.rows]
    assert [len(one) for one in case.measure(case.rows)] == [16 * count + (n not in CUT_OFF) for n, count in enumerate(frames)]
    assert len({*frames}) > 5 and case.find_difference(case.rows) <= ROUNDING
    assert min(float(one.std()) for one in case.stock) > 100 * ROUNDING, "the codes differ in their probabilities"


def change_code(book: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        first, *others = row["audio_codes"]
        return {**row, "audio_codes": [[*first[:book], (first[book] + 1) % 64, *first[book + 1 :]], *others]}

    return change


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "codebook 0": change_code(0),
    "the last codebook": change_code(15),
    "frames shifted": lambda row: {**row, "audio_codes": [*row["audio_codes"][1:], row["audio_codes"][0]]},
    "speaker": lambda row: {**row, "speaker": "Bert" if row["speaker"] == "Anna" else "Anna"},
    "language": lambda row: {**row, "language": "german" if row["language"] == "auto" else "auto"},
    "text": lambda row: {**row, "text": row["text"] + " No."},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("number", [0, 6])
def test_one_change_of_one_clip_is_seen(change: str, number: int, case: ExportInBothPackages) -> None:
    rows = [*case.rows]
    rows[number] = CHANGES[change](rows[number])
    assert case.find_difference(rows) > 10 * ROUNDING


@torch.no_grad()
def test_one_change_of_one_weight_is_seen(case: ExportInBothPackages) -> None:
    for name, parameter in case.model.named_parameters():
        before = parameter.clone()
        parameter.view(-1)[0] += 1.0
        moved = case.find_difference(case.rows)
        parameter.copy_(before)
        # Of a table, the first row is a code or a token, which need not occur.
        assert moved > ROUNDING or "embedding" in name, name
    assert case.find_difference(case.rows) <= ROUNDING
