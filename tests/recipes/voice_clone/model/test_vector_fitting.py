"""Fitted speaker vectors predict the speaker's clips better with the base unchanged, and depend on nothing but those clips and the base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from overtone.finetune.config import Config
from overtone.finetune.errors import UserError
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.voice_clone.model import speaker_vectors, vector_fitting
from overtone.recipes.voice_clone.recipe import RECIPE

STEPS = 40


def prepare_vectors(config: Config) -> torch.Tensor:
    RECIPE.prepare(config)
    return speaker_vectors.load_speaker_vectors(config.run.dir).vectors


@pytest.fixture(scope="module")
def wrong_rows(two_voices: Any) -> list[dict[str, Any]]:
    """What the base of `two_voices` has memorized, but Anna's reference clip is Bert's."""
    return [{**row, "audio": "low.flac"} for row in two_voices.rows]


def test_fitting_repairs_the_vector_of_a_bad_clip(
    two_voices: Any, wrong_rows: list[dict[str, Any]], tmp_path: Path, corpus: Any, ready: Any, export: Any, capsys: Any
) -> None:
    def mean_losses(steps: int) -> tuple[Any, list[float]]:
        made = corpus(tmp_path / f"data{steps}", wrong_rows)
        model = ready(made.config(two_voices.base, ("options.vector_steps", str(steps))), wrong_rows)
        with torch.no_grad():
            sums = [(RECIPE.loss(model.model.eval(), batch), batch) for batch in (RECIPE.collate([one]) for one in model.samples)]
        return model, [float(terms["main"].sum) / batch.targets["main"] for terms, batch in sums]

    wrong, before = mean_losses(0)
    fitted, after = mean_losses(STEPS)
    anna = [number for number, row in enumerate(wrong_rows) if row["speaker"] == "Anna"]
    assert min(before[number] for number in anna) > 0.5 and max(after) < 0.1
    assert "speaker 'anna': the vector was fitted in 40 steps; first codebook" in capsys.readouterr().err
    for (name, own), other in zip(fitted.model.named_parameters(), wrong.model.parameters(), strict=True):
        assert torch.equal(own, other), f"{name} is not the base's"
    stock = stock_qwen_tts.load(export(fitted, "custom_voice", tmp_path / "export")).model
    rows = [stock.config.talker_config.spk_id[name] for name in ("anna", "bert")]
    assert torch.equal(stock.talker.model.codec_embedding.weight[rows].float().cpu(), fitted.loaded.buffers["speaker_vectors"])


def test_a_vector_depends_on_the_own_clips_alone(two_voices: Any, wrong_rows: list[dict[str, Any]], tmp_path: Path, corpus: Any) -> None:
    steps = ("options.vector_steps", "3")
    both = prepare_vectors(corpus(tmp_path / "both", wrong_rows).config(two_voices.base, steps))
    backwards = corpus(tmp_path / "backwards", wrong_rows[::-1]).config(two_voices.base, steps)
    assert torch.equal(prepare_vectors(backwards), both)
    bert = corpus(tmp_path / "bert", [row for row in wrong_rows if row["speaker"] == "Bert"])
    assert torch.equal(prepare_vectors(bert.config(two_voices.base, steps))[0], both[1])
    lora = bert.config(two_voices.base, steps, ("model.lora.rank", "4"), ("run.dir", json.dumps(str(tmp_path / "lora"))))
    assert torch.equal(prepare_vectors(lora)[0], both[1])


def test_vectors_are_fitted_once_and_again_after_a_change(
    nano: Path, tmp_path: Path, corpus: Any, rows_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[Any] = []
    fit = vector_fitting.fit_vectors

    def record(*given: Any) -> list[torch.Tensor]:
        fits.append(given)
        return fit(*given)

    monkeypatch.setattr(vector_fitting, "fit_vectors", record)
    base = Path(shutil.copytree(nano, tmp_path / "base"))
    rows = rows_of({"Anna": "high.flac"})

    def count_fits(rows: list[dict[str, Any]], steps: int) -> int:
        fits.clear()
        RECIPE.prepare(corpus(tmp_path / "data", rows).config(base, ("options.vector_steps", str(steps))))
        return len(fits)

    assert [count_fits(rows, steps) for steps in (0, 2, 2, 3, 0, 3)] == [0, 1, 0, 1, 0, 1]
    other_codes = [{**row, "audio_codes": row["audio_codes"][::-1]} for row in rows]
    assert [count_fits(other_codes, 3), count_fits(other_codes[::-1], 3)] == [1, 0]
    tensors = load_file(base / "model.safetensors")
    tensors["talker.codec_head.weight"] += 0.1
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    assert [count_fits(other_codes, 3), count_fits(other_codes, 3)] == [1, 0]


def test_the_clips_with_the_lowest_digests_are_chosen() -> None:
    samples = [{"text": torch.tensor([number])} for number in range(50)]
    lowest = sorted(map(vector_fitting.digest_sample, samples))[:7]
    for order in (samples, samples[::-1]):
        clips = vector_fitting.FittingClips(7)
        for sample in order:
            clips.add(sample)
        assert [digest for digest, _ in clips.ordered()] == lowest


def test_batches_keep_within_clips_and_positions() -> None:
    samples = [{"text": torch.zeros(length)} for length in (10, 10, 30, 5, *[1] * 8)]
    batches = vector_fitting.cut_batches(samples, 40)
    assert [len(one["text"]) for batch in batches for one in batch] == [10, 10, 30, 5, *[1] * 8]
    assert [len(batch) for batch in batches] == [2, 1, 6, 3]


def test_clips_that_cannot_be_used_are_named(nano: Path, tmp_path: Path, corpus: Any, rows_of: Any) -> None:
    rows = rows_of({"Anna": "high.flac"})
    long = corpus(tmp_path / "long", rows).config(nano, ("options.vector_steps", "2"), ("train.micro_tokens", "8"))
    with pytest.raises(UserError, match=r"speaker 'anna' has no clip of at most 8 positions.*raise train\.micro_tokens"):
        RECIPE.prepare(long)
    rows[1]["audio_codes"][3] = [1, 2]
    with pytest.raises(UserError, match=r"(?s)train\.jsonl:2.*frame 3"):
        RECIPE.prepare(corpus(tmp_path / "bad", rows).config(nano, ("options.vector_steps", "2")))
