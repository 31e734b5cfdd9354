"""silero-vad's network over blocks of frames, against the wheel's own model."""

from __future__ import annotations

import pytest
import torch

from overtone.data_prep.segmentation import silero_network
from overtone.data_prep.segmentation.silero_network import CONTEXT, FRAME, compute_probabilities, load_network


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero_network, "BLOCK", 10)


@pytest.mark.parametrize("length", [0, 1, CONTEXT, FRAME, 10 * FRAME, 10 * FRAME + 1, 25 * FRAME - 7])
def test_each_frame_has_the_probability_of_the_wheel(vad, railway, small_blocks, length: int) -> None:
    """Across blocks: the context before a block and the state of the LSTM carry over; the last frame is padded."""
    samples = torch.from_numpy(railway.samples[24_000 : 24_000 + length].copy())
    done: list[int] = []
    found = compute_probabilities(vad.network, samples, done.append)
    vad.wheel.reset_states()
    frames = [torch.nn.functional.pad(frame, (0, FRAME - len(frame))) for frame in samples.split(FRAME)] if length else []
    expected = torch.tensor([vad.wheel(frame, 16_000).item() for frame in frames])
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5, rtol=0)
    assert done[-1:] == [length][: length > 0]


class OtherWheel:
    """A release whose weights differ from what its forward pass computes with."""

    def __init__(self, wheel, **changed: torch.Tensor) -> None:
        self.wheel, self.changed = wheel, changed

    def reset_states(self) -> None:
        self.wheel.reset_states()

    def __call__(self, frame: torch.Tensor, rate: int) -> torch.Tensor:
        return self.wheel(frame, rate)

    def state_dict(self) -> dict[str, torch.Tensor]:
        known = self.wheel.state_dict()
        return {name: change(value) for name, value in known.items() if (change := self.changed.get(name, lambda same: same))}


def test_another_network_is_reported_and_not_used(vad, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_network(OtherWheel(vad.wheel)) is not None
    name = "_model.decoder.rnn.weight_hh"
    assert load_network(OtherWheel(vad.wheel, **{name: lambda weight: 1.01 * weight})) is None
    assert "its own code is used, which takes ten times as long" in capsys.readouterr().err
    assert load_network(OtherWheel(vad.wheel, **{name: lambda weight: weight[:, 1:]})) is None
    assert load_network(OtherWheel(vad.wheel, **{name: None})) is None
    assert "KeyError: 'decoder.rnn.weight_hh'" in capsys.readouterr().err
