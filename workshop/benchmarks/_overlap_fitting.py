"""Fit the weights of data_prep/clips/overlapped_speech.py on two people, a woman and a man: mixtures of their prompts, and prompts alone.

Each prompt is resampled by up to a sixth, which gives other pitches and vocal tracts, and gets noise, an echo, music or a telephone's band
at random. A frame is overlapped if both voices are active in it and differ by less than 15 dB. Two fifths of the prompts stay apart: the
limit of the rule was chosen on them.

  .venv/bin/python workshop/benchmarks/_overlap_fitting.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import soxr
import torch
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.clips import overlapped_speech
from overtone.data_prep.clips.overlapped_speech import Matrix
from overtone.finetune.storage import files
from workshop.benchmarks import _prompts
from workshop.benchmarks._prompts import RATE

TUNED = ("en", "it")
FITTED_SHARE = 0.6
MIXTURES, HIDDEN, EPOCHS, BATCH = 2400, 16, 10, 512
ALONE_SHARE = 0.45
CLOSE_DB = 15.0


def main() -> None:
    if _prompts.is_missing():
        print(f"no recordings of known people here: {_prompts.INSTALL}")
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measures, labels = make_frames(np.random.default_rng(0))
    weights = fit(torch.from_numpy(measures), torch.from_numpy(labels))
    stored = {name: np.round(value.astype(np.float64), 4).tolist() for name, value in weights.items()}
    files.write_text(overlapped_speech.WEIGHTS, json.dumps(stored) + "\n")
    print(f"{len(labels)} frames, {labels.mean():.0%} overlapped; wrote {overlapped_speech.WEIGHTS}")


def take_fitted(voice: str) -> list[Samples]:
    clips = _prompts.read_voice(voice)
    return clips[: int(FITTED_SHARE * len(clips))]


def take_tuning(voice: str) -> list[Samples]:
    clips = _prompts.read_voice(voice)
    return clips[int(FITTED_SHARE * len(clips)) :]


def make_frames(chance: np.random.Generator) -> tuple[Matrix, Matrix]:
    """(measures [n, D], labels [n] 1 where two voices speak) of the loud frames of random mixtures."""
    measures, labels = [], []
    for _ in range(MIXTURES):
        wave, second = draw_mixture(chance)
        sound = spoil(wave + second, chance)
        found, levels = overlapped_speech.measure_frames(np.asarray(soxr.resample(sound, RATE, MASTER_RATE), np.float32))
        loud = levels > overlapped_speech.LOUD_DB
        measures.append(found[loud])
        labels.append(find_overlap(wave, second, len(found))[loud])
    return np.concatenate(measures), np.concatenate(labels).astype(np.float32)


def draw_mixture(chance: np.random.Generator) -> tuple[Samples, Samples]:
    """A prompt, and a second voice [the same length], which is silent in `ALONE_SHARE` of the cases."""
    speeds = chance.uniform(0.86, 1.16, 2)
    pool = take_fitted(TUNED[chance.integers(2)])
    wave = change_speed(pool[chance.integers(len(pool))], speeds[0])
    if chance.random() < ALONE_SHARE:
        return wave, np.zeros_like(wave)
    pool = take_fitted(TUNED[chance.integers(2)])
    others = [change_speed(pool[at], speeds[1]) for at in chance.integers(len(pool), size=3)]
    return wave, _prompts.make_second_voice(len(wave), others, chance.uniform(-3, 11), chance.choice([0.5, 1.0]), chance)


def change_speed(wave: Samples, factor: float) -> Samples:
    return _prompts.set_level(np.asarray(soxr.resample(wave, RATE, RATE * factor), np.float32))


def spoil(wave: Samples, chance: np.random.Generator) -> Samples:
    """The samples [n] with a random fault that other rules judge, or none."""
    wave = wave + _prompts.make_noise(len(wave), chance.uniform(30, 60), chance)
    kind = chance.integers(6)
    if kind == 0:
        wave = wave + _prompts.make_noise(len(wave), chance.uniform(-10, 30), chance)
    elif kind == 1:
        wave = _prompts.add_echo(wave, chance.uniform(0.15, 0.5), chance.uniform(2, 12), chance)
    elif kind == 2:
        wave = wave + _prompts.make_music(len(wave), chance.uniform(18, 30), chance)
    elif kind == 3:
        wave = _prompts.cut_band(wave, 300, 3400)
    return wave


def find_overlap(wave: Samples, second: Samples, frames: int) -> NDArray[np.bool_]:
    """[frames] whether both voices speak, neither much louder than the other."""
    powers = [measure_powers(one, frames) for one in (wave, second)]
    active = [power > one[one > 0].mean() / 100 if (one := power).any() else power > 0 for power in powers]
    levels = [10 * np.log10(power + 1e-12) for power in powers]
    return active[0] & active[1] & (np.abs(levels[0] - levels[1]) < CLOSE_DB)


def measure_powers(wave: Samples, frames: int) -> NDArray[np.float64]:
    """[frames] power of the frames of `overlapped_speech`."""
    size, hop = RATE * 64 // 1000, RATE * 20 // 1000
    padded = np.pad(wave, (0, size + hop))
    return np.square(np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][:frames], dtype=np.float64).mean(axis=1)


def fit(measures: torch.Tensor, labels: torch.Tensor) -> dict[str, NDArray[np.float32]]:
    """Weights of `overlapped_speech.Network` by name."""
    mean, deviation = measures.mean(dim=0), measures.std(dim=0)
    normal = (measures - mean) / deviation
    hidden, output = torch.nn.Linear(normal.shape[1], HIDDEN), torch.nn.Linear(HIDDEN, 1)
    weights = [*hidden.parameters(), *output.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(normal)).split(BATCH):
            found = output(torch.tanh(hidden(normal[batch])))[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(found, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    tensors = {
        "mean": mean,
        "deviation": deviation,
        "hidden": hidden.weight.T,
        "hidden_bias": hidden.bias,
        "output": output.weight[0],
        "output_bias": output.bias[0],
    }
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main()
