"""The similarity network computes what the published one does, from a checkpoint with its names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation.seed_tts_eval import average_similarity, wavlm_ecapa
from overtone.recipes.speech.evaluation.seed_tts_eval.wavlm_ecapa import build_network, find_similarity_model, read_checkpoint, resample
from tests.recipes.speech.evaluation.seed_tts_eval import stand_ins

GOLDEN = stand_ins.read_golden()


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Those of the stand-in, under the published names."""
    return {name: torch.from_numpy(value) for name, value in stand_ins.make_weights(GOLDEN["shapes"]).items()}


@pytest.fixture(scope="module")
def loaded(weights: dict[str, torch.Tensor]) -> wavlm_ecapa.LoadedSimilarityModel:
    return wavlm_ecapa.LoadedSimilarityModel(build_network(weights, Path("stand-in.pth")).eval())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_similarities_are_those_of_the_public_scripts(loaded: wavlm_ecapa.LoadedSimilarityModel, language: str, tmp_path: Path) -> None:
    """float32 sums in another order differ in their last digits; what is printed agrees to its last digit."""
    golden, found = GOLDEN["languages"][language], list[float]()
    for line in golden["sim"]:
        pair, score = line.split("\t")
        clip, prompt = (name.removesuffix("_0_-1") for name in pair.split("|"))
        for name in (clip, prompt):
            stand_ins.write_wave(tmp_path / name, GOLDEN["sounds"][name])
        found.append(loaded.compare(tmp_path / clip, tmp_path / prompt))
        assert found[-1] == pytest.approx(float(score), abs=1e-4), line
    assert len(found) == {"en": 13, "zh": 5}[language]
    average = average_similarity.average_similarity(found)
    assert average is not None
    assert [f"ASV: {average.mean}", f"ASV-var: {average.variance}"] == golden["sim_printed"]


@pytest.mark.parametrize("expected", GOLDEN["resampled"], ids=lambda one: str(one["rate"]))
def test_resampling_is_that_of_torchaudio(expected: dict[str, Any]) -> None:
    wave = torch.from_numpy(stand_ins.make_wave(1, 4001)[:, 0].astype(np.float32) / 32768)
    found = resample(wave, expected["rate"], 16_000).double()
    assert len(found) == expected["samples"]
    assert float(found.square().sum()) == pytest.approx(expected["squares"], rel=1e-6)
    assert found[:3].tolist() == pytest.approx(expected["first"], abs=5e-7), "processors add float32 products in different orders"


def test_checkpoints_are_read_as_weights_only(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    small = {name: value for name, value in weights.items() if name.startswith("pooling.")}
    torch.save({"model": {**small, "loss_calculator.projection.weight": torch.zeros(2)}}, tmp_path / "a.pth")
    save_file(small, tmp_path / "a.safetensors")
    assert read_checkpoint(tmp_path / "a.pth").keys() - read_checkpoint(tmp_path / "a.safetensors").keys() == {
        "loss_calculator.projection.weight"
    }
    torch.save({"model": {"x": Path}}, tmp_path / "evil.pth")
    torch.save(small, tmp_path / "other.pth")
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    for name, message in (
        ("evil.pth", "does not contain plain weights"),
        ("other.pth", "no dictionary `model`"),
        ("bad.safetensors", "not a safetensors file"),
    ):
        with pytest.raises(UserError, match=message):
            read_checkpoint(tmp_path / name)
    with pytest.raises(UserError, match=r"--protocol-similarity .*gone.pth: no such file; .* links to wavlm_large_finetune.pth"):
        find_similarity_model(tmp_path / "gone.pth")
    assert len(find_similarity_model(tmp_path / "a.pth").digest) == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("linear.weight"), "lacks the weight 'linear.weight'"),
        (lambda weights: weights.pop("bn.running_var"), "Missing key.*bn.running_var"),
        (lambda weights: weights.pop("feature_extract.model.layer_norm.bias"), "Missing key.*feature_projection.layer_norm.bias"),
        (lambda weights: weights.update(other=torch.zeros(1)), "Unexpected key.*other"),
        (lambda weights: weights.update({"conv.weight": torch.zeros(2, 2, 1)}), "size mismatch for conv.weight"),
    ],
)
def test_no_weight_is_missing_or_left_over(
    weights: dict[str, torch.Tensor], change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    """The public script ignores both, and would score with the untrained part."""
    changed = dict(weights)
    change(changed)
    with pytest.raises(UserError, match=f"--protocol-similarity some.pth: .*{message}"):
        build_network(changed, Path("some.pth"))
