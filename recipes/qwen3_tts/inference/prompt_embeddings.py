"""A request as embeddings: those that the talker reads before the first frame, and the text that is added to the frames.

Implements both layouts of the stock generation (`Qwen3TTSForConditionalGeneration.generate` of qwen-tts 0.1.1, `non_streaming_mode` True
and False). Whole text: all of it precedes the speech, as in `sequence_layout`. Streamed text: one text token is added to each frame.
In-context cloning puts the reference's text before the text, and its frames before the first generated one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..model.modeling import frame_embeddings
from ..model.sequence_layout import ROLE, TokenIds

if TYPE_CHECKING:
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSTalkerForConditionalGeneration


@dataclass(frozen=True)
class VoiceConditioning:
    """The voice of a request."""

    vector: Tensor
    """Speaker vector [H]."""
    reference_text: list[int] | None = None
    """Role and text tokens of the reference clip, for in-context cloning; None: the vector alone."""
    reference_codes: Tensor | None = None
    """[T, codebooks], together with `reference_text`."""


@dataclass(frozen=True)
class PromptEmbeddings:
    """The prompt of one row of a batch."""

    before: Tensor
    """[S, H]: positions before the first frame."""
    beside: Tensor
    """[L, H]: text added to frames 0, 1, …; the last vector is added to all later frames."""

    def __len__(self) -> int:
        """Positions before the first frame."""
        return len(self.before)


class PromptEmbedder:
    """Embeds prompts with the tables of a `Qwen3TTSTalkerForConditionalGeneration`."""

    @torch.no_grad()
    def __init__(self, talker: Qwen3TTSTalkerForConditionalGeneration, ids: TokenIds) -> None:
        self.talker, self.ids = talker, ids
        self.device = talker.codec_head.weight.device
        self.pad, self.bos, self.eos = self._embed_text([ids.tts_pad, ids.tts_bos, ids.tts_eos]).unsqueeze(1)

    def embed(self, text: list[int], language: int | None, voice: VoiceConditioning, streamed: bool) -> PromptEmbeddings:
        """`text` = role and text tokens (`sequence_layout.tokenize_text`); `language` is an id of the codec prefix, None for auto."""
        head = [self._embed_text(text[:ROLE]), self._embed_prefix(language, voice.vector)]
        if voice.reference_codes is None or voice.reference_text is None:
            rest, beside = self._embed_text_only(self._embed_text(text[ROLE:]), streamed)
        else:
            words = self._embed_text([*voice.reference_text[ROLE:], *text[ROLE:]])
            rest, beside = self._embed_in_context(words, self.embed_frames(voice.reference_codes), streamed)
        return PromptEmbeddings(torch.cat([*head, rest]), beside)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """[T, codebooks] → [T, H]: the sum of each frame's embeddings."""
        return frame_embeddings(self.talker, codes).sum(1)

    def _embed_prefix(self, language: int | None, vector: Tensor) -> Tensor:
        """Language, speaker, and begin of text."""
        ids = self.ids
        prefix = [ids.nothink, ids.think_bos, ids.think_eos] if language is None else [ids.think, ids.think_bos, language, ids.think_eos]
        codec = torch.cat([self._embed_codec(prefix), vector[None].to(self.pad), self._embed_codec([ids.codec_pad])])
        return codec + torch.cat([self.pad.expand(len(codec) - 1, -1), self.bos])

    def _embed_text_only(self, words: Tensor, streamed: bool) -> tuple[Tensor, Tensor]:
        """Text vectors [n, H] → the last positions before the first frame, and the text beside the frames."""
        start = self._embed_codec([self.ids.codec_bos])
        if streamed:
            return words[:1] + start, torch.cat([words[1:], self.eos, self.pad])
        return torch.cat([self._embed_whole_text(words), self.pad + start]), self.pad

    def _embed_in_context(self, words: Tensor, frames: Tensor, streamed: bool) -> tuple[Tensor, Tensor]:
        """Like `_embed_text_only`, with the reference's text at the start of `words`, and its frames before the first generated one."""
        frames = torch.cat([self._embed_codec([self.ids.codec_bos]), frames])
        if not streamed:
            return torch.cat([self._embed_whole_text(words), frames + self.pad]), self.pad
        words = torch.cat([words, self.eos])
        padding = self.pad.expand(max(0, len(frames) - len(words)), -1)
        return torch.cat([words, padding])[: len(frames)] + frames, torch.cat([words[len(frames) :], self.pad])

    def _embed_whole_text(self, words: Tensor) -> Tensor:
        """The whole text and its end, with padding in the codec channel."""
        return torch.cat([words, self.eos]) + self._embed_codec([self.ids.codec_pad])

    def _embed_text(self, ids: list[int]) -> Tensor:
        return self.talker.text_projection(self.talker.model.text_embedding(torch.tensor(ids, device=self.device)))

    def _embed_codec(self, ids: list[int]) -> Tensor:
        return self.talker.model.codec_embedding(torch.tensor(ids, device=self.device))
