"""Generates clips from the current weights of a training run, in a running batch, with the log-probability of each code.

Codes are drawn from the model's own distribution, with nothing cut off but what `TalkerBatch` never permits: codes that are no sound, and
an end of speech before the third frame. The log-probabilities are those of all codes, as training computes them. A clip depends on the
weights and its request alone, not on the others in the batch (`ragged_kv_cache`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from overtone.recipes.current_weights import allocate_weights, copy_weights
from overtone.recipes.qwen3_tts.inference.decoding import TalkerBatch, TalkerDecoder
from overtone.recipes.qwen3_tts.inference.prompt_embeddings import PromptEmbedder, PromptEmbeddings, VoiceConditioning
from overtone.recipes.qwen3_tts.model.modeling import build_talker_on_meta
from overtone.recipes.qwen3_tts.model.sequence_layout import TokenIds
from overtone.recipes.speech.decoding.per_row_sampling import RowSampling
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler

SAMPLED = FrameSampler(CodeSampler(greedy=False), CodeSampler(greedy=False))
TALKER = "talker."
"""Beginning of the names of the weights in training."""


@dataclass(frozen=True)
class ClipRequest:
    """A text to speak once."""

    prompt: list[int]
    """Ids of the role and of the text."""
    speaker: int
    """Row of the speaker vectors."""
    language: int | None
    """Its id, or None."""
    seed: int


@dataclass
class GeneratedClip:
    """A clip."""

    frames: list[Tensor] = field(default_factory=list)
    """Codes [codebooks] of each frame."""
    first_scores: list[float] = field(default_factory=list)
    """Log-probability in nats of codebook 0 of each frame, and of the end of speech."""
    other_scores: list[float] = field(default_factory=list)
    """Log-probability of the other codebooks, frame by frame."""
    ended: bool = False
    """False: it was cut off."""

    @property
    def codes(self) -> Tensor:
        """[T, codebooks]."""
        return torch.stack(self.frames)

    @property
    def scores(self) -> list[float]:
        """Log-probability of each token, in the order of `score_codes`."""
        return [*self.first_scores, *self.other_scores]


class ClipGenerator:
    """Owns a copy of the model and its running batch."""

    def __init__(
        self, base: Path, config: dict[str, Any], speaker_vectors: Tensor, dtype: torch.dtype, device: torch.device, slots: int
    ) -> None:
        """`config`: content of the base's config.json. `slots`: maximum number of clips at once. The copy has no weights until
        `update_weights`."""
        self._base, self._ids, self._slots = base, TokenIds.from_config(config), slots
        self._vectors = speaker_vectors.to(device)
        self._talker = build_talker_on_meta(config, "sdpa").eval()
        allocate_weights(self._talker, dtype, device)
        self._batch: ScoredTalkerBatch | None = None

    @torch.no_grad()
    def update_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over the weights, with their names in training. Raises `UserError` if one is missing."""
        copy_weights(((name.removeprefix(TALKER), value) for name, value in weights), self._talker, self._base)
        # Norms and tables of a decoder are computed from the weights, so it is made anew; the old one goes first, or its joined weights and
        # its cache would stay beside the new ones.
        self._batch = None
        self._batch = ScoredTalkerBatch(TalkerDecoder(self._talker, self._ids), self._slots)
        self._embedder = PromptEmbedder(self._talker, self._ids)

    @torch.inference_mode()
    def generate(self, requests: Sequence[ClipRequest], longest: int) -> list[GeneratedClip]:
        """Return the clip of each request, of at most `longest` frames. Call `update_weights` before."""
        batch = self._batch
        assert batch is not None
        prompts = [self._embed(request) for request in requests]
        found = [GeneratedClip() for _ in requests]
        waiting, running = deque(range(len(requests))), dict[int, GeneratedClip]()
        if requests:
            batch.reserve(prompts, longest)
        while waiting or running:
            while waiting and len(running) < self._slots:
                number = waiting.popleft()
                running[batch.join(prompts[number], SAMPLED, requests[number].seed, longest)] = found[number]
            for row in batch.step_with_scores(running):
                del running[row]
        return found

    def _embed(self, request: ClipRequest) -> PromptEmbeddings:
        voice = VoiceConditioning(self._vectors[request.speaker])
        return self._embedder.embed(request.prompt, request.language, voice, streamed=False)


class ScoredTalkerBatch(TalkerBatch):
    """A running batch that keeps the log-probability of each code."""

    @torch.inference_mode()
    def __init__(self, decoder: TalkerDecoder, requests: int) -> None:
        super().__init__(decoder, requests)
        rows, codebooks = self.codes.shape
        self._scores = torch.zeros(codebooks + 1, rows, device=self.codes.device)
        """[codebooks + 1, rows]: of the last frame, and of codebook 0 of the next one."""
        self._chosen = torch.zeros(rows, device=self.codes.device)
        """[rows]: of what `choose_first` has chosen."""
        self.others = _ScoredChoice(self.sampling.others, self._scores)

    @torch.inference_mode()
    def join(self, prompt: PromptEmbeddings, sampler: FrameSampler, seed: int, limit: int) -> int:
        """Implements `FrameBatch`."""
        row = super().join(prompt, sampler, seed, limit)
        self._scores[-1, row] = self._chosen[row]
        return row

    def run_frame(self, size: int) -> None:
        """Implements `FrameBatch`."""
        self._scores[0].copy_(self._scores[-1])
        super().run_frame(size)
        self._scores[-1].copy_(self._chosen)

    def choose_first(self, count: Tensor) -> Tensor:
        """As `TalkerBatch`, and note the log-probability among all codes."""
        chosen = super().choose_first(count)
        scores = F.linear(self._hidden, self.decoder.first_head).float()
        self._chosen.copy_(gather_scores(scores, chosen))
        return chosen

    def step_with_scores(self, clips: dict[int, GeneratedClip]) -> list[int]:
        """One frame of the clips of all rows; returns the rows whose clips are over."""
        frames, over = self.step(), list[int]()
        first, *others, following = self._scores.tolist()
        for row, frame in frames.items():
            clip = clips[row]
            assert frame.codes is not None  # the end of speech is known a frame before
            clip.frames.append(frame.codes)
            clip.first_scores.append(first[row])
            clip.other_scores += [book[row] for book in others]
            if frame.ended:
                clip.ended = True
                clip.first_scores.append(following[row])
            if frame.over:
                over.append(row)
        return over


class _ScoredChoice:
    """Implements `CodeChooser` for codebooks 1 to 15 of a frame, one after the other, and notes the log-probabilities."""

    def __init__(self, sampling: RowSampling, scores: Tensor) -> None:
        """`scores` [codebooks + 1, rows]: the log-probability of codebook i is written to row i."""
        self._sampling, self._scores, self._book = sampling, scores, 0

    def choose(self, scores: Tensor, random: Tensor) -> Tensor:
        """Implements `CodeChooser`."""
        self._book = self._book % (len(self._scores) - 2) + 1
        chosen = self._sampling.choose(scores, random)
        self._scores[self._book].copy_(gather_scores(scores, chosen))
        return chosen


def gather_scores(scores: Tensor, chosen: Tensor) -> Tensor:
    """The log-probability [rows] of the chosen codes [rows], from scores [rows, V]."""
    return scores.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
