"""A request as the vectors that the talker reads before the first frame, and those that accompany the frames.

Both layouts of the stock generation (`Qwen3TTSForConditionalGeneration.generate` of qwen-tts 0.1.1, qwen-tts calls them
`non_streaming_mode` True and False). Whole text: all of it stands before the speech, as in `sequence_layout`. Streamed text: one text
token goes with every frame. In-context cloning puts the reference's text before the text, and its frames before the first one to speak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..model.qwen3_tts_model import frame_embeddings
from ..model.sequence_layout import ROLE, Ids


@dataclass(frozen=True)
class Voice:
    """Whose voice, and how it is introduced."""

    vector: Tensor
    """[H]."""
    reference_text: list[int] | None = None
    """Role and text tokens of the reference; None: the vector alone."""
    reference_codes: Tensor | None = None
    """[T, codebooks], with `reference_text`."""


@dataclass(frozen=True)
class Prompt:
    """What one row of a batch starts from."""

    before: Tensor
    """[S, H]: positions before the first frame."""
    beside: Tensor
    """[L, H]: text added to frame 0, 1, …; the last goes on with every later frame."""


class Prompter:
    """The embeddings of a `Qwen3TTSTalkerForConditionalGeneration`."""

    @torch.no_grad()
    def __init__(self, talker: Any, ids: Ids) -> None:
        self.talker, self.ids = talker, ids
        self.device = talker.codec_head.weight.device
        self.pad, self.bos, self.eos = self._text([ids.tts_pad, ids.tts_bos, ids.tts_eos]).unsqueeze(1)

    def prompt(self, text: list[int], language: int | None, voice: Voice, streamed: bool) -> Prompt:
        """`text` = role and text tokens (`sequence_layout.text_tokens`); `language` is an id of the codec prefix, None for auto."""
        head = [self._text(text[:ROLE]), self._introduction(language, voice.vector)]
        if voice.reference_codes is None or voice.reference_text is None:
            rest, beside = self._start(self._text(text[ROLE:]), streamed)
        else:
            words = self._text([*voice.reference_text[ROLE:], *text[ROLE:]])
            rest, beside = self._continued(words, self.frames(voice.reference_codes), streamed)
        return Prompt(torch.cat([*head, rest]), beside)

    def frames(self, codes: Tensor) -> Tensor:
        """[T, codebooks] → [T, H]: the sum of a frame's embeddings."""
        return frame_embeddings(self.talker, codes).sum(1)

    def _introduction(self, language: int | None, vector: Tensor) -> Tensor:
        """Language, speaker, and the sign that text comes."""
        ids = self.ids
        prefix = [ids.nothink, ids.think_bos, ids.think_eos] if language is None else [ids.think, ids.think_bos, language, ids.think_eos]
        codec = torch.cat([self._codec(prefix), vector[None].to(self.pad), self._codec([ids.codec_pad])])
        return codec + torch.cat([self.pad.expand(len(codec) - 1, -1), self.bos])

    def _start(self, words: Tensor, streamed: bool) -> tuple[Tensor, Tensor]:
        """(text vectors [n, H]) → the last positions before the first frame, and what goes beside the frames."""
        start = self._codec([self.ids.codec_bos])
        if streamed:
            return words[:1] + start, torch.cat([words[1:], self.eos, self.pad])
        return torch.cat([self._spelled(words), self.pad + start]), self.pad

    def _continued(self, words: Tensor, frames: Tensor, streamed: bool) -> tuple[Tensor, Tensor]:
        """As `_start`, with the reference's text in front of `words` and its frames before the first one to speak."""
        frames = torch.cat([self._codec([self.ids.codec_bos]), frames])
        if not streamed:
            return torch.cat([self._spelled(words), frames + self.pad]), self.pad
        words = torch.cat([words, self.eos])
        padding = self.pad.expand(max(0, len(frames) - len(words)), -1)
        return torch.cat([words, padding])[: len(frames)] + frames, torch.cat([words[len(frames) :], self.pad])

    def _spelled(self, words: Tensor) -> Tensor:
        """All of the text and its end, while the codec channel is silent."""
        return torch.cat([words, self.eos]) + self._codec([self.ids.codec_pad])

    def _text(self, ids: list[int]) -> Tensor:
        return self.talker.text_projection(self.talker.model.text_embedding(torch.tensor(ids, device=self.device)))

    def _codec(self, ids: list[int]) -> Tensor:
        return self.talker.model.codec_embedding(torch.tensor(ids, device=self.device))


def left_padded(prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """[S, H] each → ([B, longest, H] with zeros before the shorter ones, how many zeros [B])."""
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=prompts[0].device)
    return pad_sequence(prompts, batch_first=True, padding_side="left"), lengths.max() - lengths


def held(beside: list[Tensor]) -> Tensor:
    """[L, H] each → [longest, B, H], where each row's last vector goes on."""
    longest = max(map(len, beside))
    return torch.stack([torch.cat([one, one[-1:].expand(longest - len(one), -1)]) for one in beside], 1)
