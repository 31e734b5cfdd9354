"""Tests of `overtone.recipes.voice_dpo.recipe`: a clip's log-probability is that with which the model generated it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from overtone.finetune.config import Config, resolve
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import materialise
from overtone.finetune.recipe import REFERENCE, Loaded
from overtone.recipes.preferences.batch_targets import KL, LOSS
from overtone.recipes.preferences.preference_terms import sum_answers
from overtone.recipes.qwen3_tts.inference.decoding import TalkerBatch
from overtone.recipes.qwen3_tts.inference.synthesizer import Synthesizer
from overtone.recipes.qwen3_tts.model.sampling_settings import SamplingSettings
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.voice_dpo.pair_rows import collate
from overtone.recipes.voice_dpo.recipe import RECIPE, score_codes
from overtone.recipes.voice_dpo.speech_registration import COMMAND

Rows = Callable[..., list[dict[str, Any]]]
TEXT = "She counted the boats."


def configure(exported: Path, folder: Path, rows: list[dict[str, Any]], **overrides: str) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"model.source": str(exported), "data.train": str(folder / "pairs.jsonl"), "run.dir": str(folder / "run"), **overrides}
    return resolve("voice_dpo", RECIPE.Options, [], [*given.items()])


def build(config: Config) -> Loaded:
    """The model with the weights of its base."""
    loaded = RECIPE.load(config)
    materialise(loaded.model, loaded.base, loaded.buffers, torch.device("cpu"), config.run.seed)
    return loaded


class RecordedSpeech:
    """Speaks one request, and records the log-probability of each code that it chooses."""

    def __init__(self, voice: Synthesizer, request: SpeechRequest, sampling: SpeechSampling) -> None:
        self.firsts: list[float] = []
        self.others: list[float] = []
        frames = voice.open_frames(1)
        self.row = 0
        self._choose_first, self._chooser = frames.choose_first, frames.others
        self._frames: TalkerBatch = frames
        frames.choose_first = self.choose_first  # type: ignore[method-assign]
        frames.others = self  # type: ignore[assignment]
        self.row = voice.join(frames, request, sampling)
        (self.result,) = frames.finish([self.row])

    def choose_first(self, count: Tensor) -> Tensor:
        chosen = self._choose_first(count)
        scores = functional.linear(self._frames._hidden, self._frames.decoder.first_head).double().log_softmax(-1)
        self.firsts.append(float(scores[self.row, chosen[self.row]]))
        return chosen

    def choose(self, scores: Tensor, random: Tensor) -> Tensor:
        chosen = self._chooser.choose(scores, random)
        self.others.append(float(scores.double().log_softmax(-1)[self.row, chosen[self.row]]))
        return chosen

    def log_probability(self) -> float:
        """The sum over the clip: its codes, and its end if the model chose it."""
        frames = len(self.result.codes)
        return sum(self.firsts[: frames + self.result.ended]) + sum(self.others[: 15 * frames])


@pytest.fixture(scope="module")
def spoken(exported: Path) -> list[RecordedSpeech]:
    """Clips of one text, some of them cut off, by sampling with the model's whole distribution."""
    voice = COMMAND.speech.inspect(exported).open()
    assert isinstance(voice, Synthesizer)
    found = []
    for seed in range(6):
        request = SpeechRequest(TEXT, "anna" if seed % 2 else "bert", "english")
        found.append(RecordedSpeech(voice, request, SamplingSettings(temperature=1.0, top_k=0, seed=seed, max_seconds=0.5 + seed / 2)))
    return found


def make_row(clips: list[RecordedSpeech], speaker: str) -> dict[str, Any]:
    row: dict[str, Any] = {"text": TEXT, "speaker": speaker, "language": "english"}
    for side, clip in zip(("chosen", "rejected"), clips, strict=True):
        row |= {f"{side}_codes": clip.result.codes.tolist(), f"{side}_ended": clip.result.ended}
    return row


@torch.no_grad()
def test_the_log_probability_of_a_clip_is_that_of_its_generation(exported: Path, spoken: list[RecordedSpeech], tmp_path: Path) -> None:
    """The clips have different lengths, so they are padded; the other path generated each of them alone, code by code."""
    assert {clip.result.ended for clip in spoken} == {True, False} and len({len(clip.result.codes) for clip in spoken}) > 2
    pairs = [([spoken[0], spoken[2]], "bert"), ([spoken[1], spoken[3]], "anna"), ([spoken[4], spoken[0]], "bert")]
    rows = [make_row(clips, speaker) for clips, speaker in pairs]
    loaded = build(configure(exported, tmp_path, rows))
    batch = collate([RECIPE.read(row, loaded.processor, Path()) for row in rows])
    found = sum_answers(score_codes(loaded.model, batch), batch.tensors["answers"])
    expected = [clip.log_probability() for clips, _ in pairs for clip in clips]
    assert found.tolist() == pytest.approx(expected, rel=2e-6)
    assert min(abs(one - other) for one, other in itertools.pairwise(expected)) > 1


def test_terms_do_not_depend_on_the_batch(exported: Path, pair_rows: Rows, tmp_path: Path) -> None:
    rows = pair_rows()
    loaded = build(configure(exported, tmp_path, rows))
    samples = [RECIPE.read(row, loaded.processor, Path()) for row in rows]

    def measure(part: list[dict[str, Tensor]]) -> dict[str, float]:
        batch = RECIPE.collate(part)
        with torch.no_grad():
            base = score_codes(loaded.model, batch) - 0.01
            terms = RECIPE.loss(loaded.model, replace(batch, tensors={**batch.tensors, REFERENCE: base}))
        assert terms.keys() == batch.targets.keys()
        return {name: float(term.sum) for name, term in terms.items()}

    whole, alone = measure(samples), [measure([sample]) for sample in samples]
    assert len(whole) == 12
    for name, value in whole.items():
        assert sum(one[name] for one in alone) == pytest.approx(value, rel=1e-5, abs=1e-4)
    assert whole[KL] == pytest.approx(0.01**2 / 2 * RECIPE.collate(samples).targets[KL], rel=1e-2)


def test_gradients_reach_every_parameter_and_prefer_the_chosen_clips(exported: Path, pair_rows: Rows, tmp_path: Path) -> None:
    rows = pair_rows()
    loaded = build(configure(exported, tmp_path, rows))
    batch = RECIPE.collate([RECIPE.read(row, loaded.processor, Path()) for row in rows])
    with torch.no_grad():
        base = score_codes(loaded.model, batch)
    batch = replace(batch, tensors={**batch.tensors, REFERENCE: base})
    optimizer, losses, margins = torch.optim.AdamW(loaded.model.parameters(), lr=1e-3), [], []
    for _ in range(4):
        terms = RECIPE.loss(loaded.model, batch)
        optimizer.zero_grad()
        terms[LOSS].sum.backward()
        optimizer.step()
        losses.append(float(terms[LOSS].sum.detach()))
        margins.append(float(terms["margin"].sum))
    assert losses[0] == pytest.approx(4 * 0.6931472) and losses[-1] < losses[0] / 2 and margins[0] == 0 < margins[-1]
    assert [name for name, each in loaded.model.named_parameters() if each.grad is None] == []


def test_a_pair_of_another_speaker_is_refused(exported: Path, pair_rows: Rows, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="speaker 'carl' of the pairs is not one of the base's voices, anna, bert"):
        RECIPE.load(configure(exported, tmp_path, pair_rows(("carl",))))


def test_voices_without_pairs_stay_and_the_recordings_are_those_of_the_base(exported: Path, pair_rows: Rows, tmp_path: Path) -> None:
    before = json.loads((exported / "voices.json").read_text())
    loaded = RECIPE.load(configure(exported, tmp_path, pair_rows(("bert",))))
    plan = RECIPE.export(loaded.base, loaded.state, loaded.buffers, "custom_voice")
    voices = json.loads(plan.files["voices.json"])
    assert (voices["speakers"], voices["data"]) == (before["speakers"], before["data"]) and len(voices["speakers"]) == 2
    assert (voices["objective"], voices["beta"], voices["base"]["name"]) == ("dpo", 0.1, "export")
    assert voices["preferences"]["pairs"] == {"bert": 2} and len(loaded.buffers["speaker_vectors"]) == 2
    card = " ".join(plan.files["README.md"].decode().split())
    assert "pairs.jsonl`, 2 pairs of clips that the base spoke (bert 2)" in card and "Objective: dpo, β 0.1." in card


def test_an_export_of_this_recipe_is_a_base(exported: Path, pair_rows: Rows, tmp_path: Path) -> None:
    loaded = RECIPE.load(configure(exported, tmp_path, pair_rows(("bert",))))
    shutil.copytree(exported, tmp_path / "preferred")
    plan = RECIPE.export(loaded.base, loaded.state, loaded.buffers, "custom_voice")
    (tmp_path / "preferred" / "voices.json").write_bytes(plan.files["voices.json"])
    again = RECIPE.load(configure(tmp_path / "preferred", tmp_path, pair_rows(("anna",))))
    assert again.state.as_json()["preferences"]["pairs"] == {"anna": 2}


def test_a_named_voice_has_no_base_format(exported: Path, pair_rows: Rows, tmp_path: Path) -> None:
    loaded = RECIPE.load(configure(exported, tmp_path, pair_rows()))
    assert "config.json" in RECIPE.export(loaded.base, loaded.state, loaded.buffers, "custom_voice").files
    with pytest.raises(UserError, match="--format base: the base .* has no speaker encoder"):
        RECIPE.export(loaded.base, loaded.state, loaded.buffers, "base")


def test_a_plan_needs_no_weights(exported: Path, pair_rows: Rows, tmp_path: Path) -> None:
    assert RECIPE.sketch is not None
    sketched = RECIPE.sketch(configure(exported, tmp_path, pair_rows(), **{"options.reference": "cached"}))
    batch = sketched.batch(2, 60)
    assert batch.tensors[REFERENCE].shape == (batch.targets[KL],) and batch.tensors["text"].shape == (4, 30)
    assert RECIPE.read(pair_rows()[0], sketched.processor(), Path())["text"].ndim == 1
    assert any("computed once" in remark for remark in sketched.loaded.remarks)
