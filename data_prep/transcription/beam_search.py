"""Beam search of openai-whisper for a batch of packs.

openai-whisper repeats the tokens of a pack for each beam, but not its audio: torch broadcasts the audio of a single pack, and refuses that
of several. To repeat the audio would also repeat the keys and values of the cross-attention, which are 4 GB for 16 packs of large-v3. The
beams of a pack attend to the same audio without a mask, so here they follow each other in one sequence of queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from whisper.decoding import DecodingOptions, DecodingResult, DecodingTask


def decode_beams(model: Any, features: Tensor, options: DecodingOptions) -> list[DecodingResult]:
    """The most probable text of each pack by its encoder output [packs, 1500, n_audio_state]."""
    results: list[DecodingResult] = _BatchBeamSearch(model, options).run(features)
    return results


class _BatchBeamSearch(DecodingTask):
    """A task whose audio has one row for each beam, as `DecodingTask.run` expects, except in the decoder."""

    def _get_audio_features(self, mel: Tensor) -> Tensor:
        features: Tensor = super()._get_audio_features(mel)
        return features.repeat_interleave(self.n_group, dim=0)

    def _detect_language(self, audio_features: Tensor, tokens: Tensor) -> Any:
        return super()._detect_language(audio_features[:: self.n_group], tokens)

    def _main_loop(self, audio_features: Tensor, tokens: Tensor) -> Any:
        with _join_beams(self.model.decoder, self.n_group):
            return super()._main_loop(audio_features[:: self.n_group], tokens)


@contextmanager
def _join_beams(decoder: Any, beams: int) -> Iterator[None]:
    """Make cross-attention treat [packs × beams, tokens, n_text_state] as [packs, beams × tokens, n_text_state]."""

    def join(_module: nn.Module, args: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        queries, audio = args
        return queries.reshape(len(audio), -1, queries.shape[-1]), audio

    def divide(_module: nn.Module, args: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
        _, audio = args
        return output[0].reshape(beams * len(audio), -1, output[0].shape[-1]), output[1]

    with ExitStack() as hooks:
        for block in decoder.blocks:
            hooks.callback(block.cross_attn.register_forward_pre_hook(join).remove)
            hooks.callback(block.cross_attn.register_forward_hook(divide).remove)
        yield
