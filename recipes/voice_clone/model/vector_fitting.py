"""Fitting of speaker vectors before training: the base is frozen, and only the vector of a speaker is trained, on the speaker's own clips.

The speaker encoder hears the room and the losses of the file format, too. The vector of noisy clips can be so wrong that the first steps of
training repair it with large changes of the weights. Fitting finds the vector with which the unchanged base predicts the clips best, as
textual inversion does for a word (Gal et al. 2022, arXiv:2208.01618).
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor

from overtone.finetune.config import Data
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import loading
from overtone.finetune.recipe import BASE_STATES, Row, Sample
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes.qwen3_tts.model.modeling import SpeechModel, build_on_meta, compute_head_loss, select_positions
from overtone.recipes.qwen3_tts.model.sequence_layout import SpeechProcessor, TokenIds, collate, load_tokenizer, read_row
from overtone.recipes.speech.dataset_speakers import visit_speakers

from ..options import Options

CLIPS_PER_STEP = 6
RELATIVE_RATE = 0.1
"""Peak learning rate, as a fraction of the root mean square of the vector that fitting starts from; it falls linearly over the second half
of the steps."""
BETAS = (0.9, 0.95)


@dataclass
class FittingClips:
    """The clips of one speaker to fit the vector to: those with the lowest digests, so that the choice depends only on the clips."""

    limit: int
    _lowest: list[tuple[int, int, str, Sample]] = field(default_factory=list)
    """Heap of (negated digest, number, digest, sample), the highest digest first."""
    _numbers: Iterator[int] = field(default_factory=count)

    def add(self, sample: Sample) -> None:
        """Keep the sample if it is among the `limit` lowest digests."""
        digest = digest_sample(sample)
        entry = (-int(digest, 16), next(self._numbers), digest, sample)
        if len(self._lowest) < self.limit:
            heapq.heappush(self._lowest, entry)
        else:
            heapq.heappushpop(self._lowest, entry)

    def ordered(self) -> list[tuple[str, Sample]]:
        """(digest, sample), the lowest digest first."""
        return [(digest, sample) for _, _, digest, sample in sorted(self._lowest, key=lambda entry: entry[2])]


def digest_sample(sample: Sample) -> str:
    """SHA-256 of all tensors of a sample, in hexadecimal."""
    total = hashlib.sha256()
    for name, tensor in sorted(sample.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.numpy().tobytes())
    return total.hexdigest()


def choose_clips(data: Data, options: Options, limit: int, base: Path, ids: TokenIds) -> dict[str, list[tuple[str, Sample]]]:
    """For each speaker, sorted by name, (digest, sample) of the clips to fit the vector to. Clips of more than `limit` positions are
    left out.

    Raises `UserError` with file and line for bad rows, and for a speaker without a usable clip.
    """
    tokenizer = load_tokenizer(base)
    chosen: dict[str, FittingClips] = {}

    def add_row(_: Path, name: str, row: Row) -> None:
        clips = chosen.setdefault(name, FittingClips(CLIPS_PER_STEP * options.vector_steps))
        # Each speaker is fitted alone, with a single vector: index 0.
        sample = read_row(row, SpeechProcessor(tokenizer, ids, {name: 0}, options.speaker, options.language == "row"))
        if len(sample["text"]) <= limit:
            clips.add(sample)

    visit_speakers(data, "voice_clone", options.speaker, add_row)
    found = {name: clips.ordered() for name, clips in sorted(chosen.items())}
    for name, clips in found.items():
        if not clips:
            raise UserError(
                f"options.vector_steps: speaker {name!r} has no clip of at most {limit} positions to fit the vector to; raise "
                "train.micro_tokens, or set options.vector_steps to 0"
            )
    return found


def extend_cache_key(key: str, base: Path, steps: int, clips: dict[str, list[tuple[str, Sample]]]) -> str:
    """Digest of everything that fitted vectors depend on: what the encoder's vectors depend on (`key`), the base's weights, the settings,
    and the clips."""
    weights = loading.content_digest(loading.file_digests(base))
    settings = [steps, CLIPS_PER_STEP, RELATIVE_RATE, *BETAS]
    digests = {name: [digest for digest, _ in own] for name, own in clips.items()}
    return hashlib.sha256(json.dumps([key, weights, settings, digests]).encode()).hexdigest()


def fit_vectors(
    base: Path,
    model_config: dict[str, JsonValue],
    clips: dict[str, list[tuple[str, Sample]]],
    vectors: Sequence[Tensor],
    steps: int,
    positions: int,
) -> list[Tensor]:
    """Vectors [H] in the order of `clips`, fitted from `vectors` in `steps` steps, on batches of at most `positions` positions. Prints the
    loss before and after for each speaker. Runs in this process alone, on its GPU if there is one, in fp32."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    model = build_on_meta(model_config, torch.zeros(1, len(vectors[0])), sub_weight=0.0, sub_frames=1.0)
    loading.materialise(model, base, {}, device, seed=0)  # the base has all values
    model.requires_grad_(False).eval()
    fitted = []
    for (name, own), start in zip(clips.items(), vectors, strict=True):
        samples = [sample for _, sample in own]
        vector, first, last = fit_vector(model, samples, start.to(device), steps, positions)
        print_diagnostic(f"speaker {name!r}: the vector was fitted in {steps} steps; first codebook {first:.2f} → {last:.2f} nats")
        fitted.append(vector.cpu())
    return fitted


def fit_vector(model: SpeechModel, samples: list[Sample], start: Tensor, steps: int, positions: int) -> tuple[Tensor, float, float]:
    """The vector [H] after `steps` steps of Adam from `start` [H], on batches of at most `positions` positions; and the first codebook's
    loss of the first batch, in nats, with the vector before and after. Raises `UserError` if the result is not finite.

    Only the first codebook: a voice that is right there is right in the others, which are most of the compute.
    """
    vector = start.clone().unsqueeze(0).requires_grad_()
    model.speaker_vectors = vector
    rate = RELATIVE_RATE * float(start.square().mean().sqrt())
    optimizer = torch.optim.Adam([vector], betas=BETAS)
    batches = cut_batches(samples, positions)
    for step, batch in zip(range(steps), cycle(batches), strict=False):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, 2 * (1 - step / steps))
        compute_loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    fitted = vector.detach()
    with torch.no_grad():
        model.speaker_vectors = start.unsqueeze(0)
        before = float(compute_loss(model, batches[0]))
        model.speaker_vectors = fitted
        after = float(compute_loss(model, batches[0]))
    if not bool(fitted.isfinite().all()):
        raise UserError("options.vector_steps: a fitted speaker vector is not finite; set options.vector_steps to 0")
    return fitted[0], before, after


def cut_batches(samples: Sequence[Sample], positions: int) -> list[list[Sample]]:
    """The samples, in order, in batches of at most `CLIPS_PER_STEP` samples and, with padding, `positions` positions."""
    batches: list[list[Sample]] = []
    for sample in samples:
        grown = [*batches[-1], sample] if batches else [sample]
        if batches and len(grown) <= CLIPS_PER_STEP and len(grown) * max(len(one["text"]) for one in grown) <= positions:
            batches[-1] = grown
        else:
            batches.append([sample])
    return batches


def compute_loss(model: SpeechModel, samples: list[Sample]) -> Tensor:
    """Mean negative log-likelihood of codebook 0 and end of speech, a scalar in nats."""
    device = model.speaker_vectors.device
    batch = collate(samples)
    tensors = {name: tensor.to(device) for name, tensor in batch.tensors.items()}
    hidden = model(tensors, result="states")[BASE_STATES]
    labels = select_positions(tensors["labels"], tensors["target_rows"] + 1)
    loss: Tensor = compute_head_loss(model.talker.get_submodule("codec_head"), hidden, labels)[0] / batch.targets["main"]
    return loss
