"""Train the demo Whisper from scratch on the corpus, on a CPU.

    python -m workshop.demo_models.whisper.train_whisper [FOLDER] [--corpus runs/studio/corpus]
        [--steps 7000] [--seed 0] [--from MODEL]

Writes `training.safetensors` to FOLDER (default runs/studio/whisper) every minute, from which the same command resumes, and
`training.jsonl`. When all steps are done, `pack_whisper` measures the model and writes the shipped files. With --from, a new training
continues from a finished demo Whisper, by name or .pt file, with the longest windows only.

What makes so small a model learn within two hours: a second head that predicts phones with CTC and is discarded afterwards (without it, the
decoder learns the statistics of the grammar and ignores the audio), windows that grow from 4.6 to 30 s, small batches, and a softmax over
the tokens of the grammar only. All other tokens share one row of the embedding, trained in that softmax with the logarithm of their number
added to its logit: copied to each of them, it never wins. A finished model loses its place in long windows, and is taught to keep it: in
each block of the decoder, one head is trained to attend where the next token is spoken (guided attention: Tachibana et al. 2017,
https://arxiv.org/abs/1710.08969).
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn
from whisper.model import ModelDimensions, Whisper
from whisper.tokenizer import get_tokenizer

from overtone.data_prep.transcription import demo_whisper, whisper_engine
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.terminal import print_line
from workshop.demo_models.corpus import make_corpus
from workshop.demo_models.resumable_training import Schedule, train_parameters
from workshop.demo_models.whisper.augmented_windows import IGNORED, TICK_S, WhisperBatch, WhisperDataset

FOLDER = Path("runs/studio/whisper")
STEPS = 7000
RATE, RESUMED_RATE, PLATEAU = 1.5e-3, 5e-4, 0.4
"""Learning rates from scratch and from a finished model, which the higher rate would damage; and share of the steps before the rate
decays."""
STATE, HEADS, ENCODER_LAYERS, DECODER_LAYERS = 128, 2, 3, 2
DIMENSIONS = {
    "n_mels": 80,
    "n_audio_ctx": 1500,
    "n_audio_state": STATE,
    "n_audio_head": HEADS,
    "n_audio_layer": ENCODER_LAYERS,
    "n_vocab": 51864,
    "n_text_ctx": 448,
    "n_text_state": STATE,
    "n_text_head": HEADS,
    "n_text_layer": DECODER_LAYERS,
}
"""English only: `n_vocab` selects the tokenizer."""
EMBEDDING = "decoder.token_embedding.weight"
TIMESTAMPS = 1501
NEAR_S, GUIDED = 0.5, 0.3
"""Seconds from a token's place within which attention is right, and weight of the guidance loss."""
PRECISION = torch.bfloat16
"""Type of the activations of the blocks. Convolutions and losses stay in fp32: bf16 convolutions with few channels give wrong results on
some CPUs."""


@dataclass(frozen=True)
class Phase:
    """A part of the training with windows of one length."""

    until: float
    """Share of the steps at which it ends."""
    seconds: float
    windows: int


PHASES = (Phase(0.4, 4.6, 20), Phase(0.9, 12.0, 10), Phase(1.0, 30.0, 6))
"""Short windows first: in long ones, an untrained decoder does not find its place."""


class Student(nn.Module):
    """Whisper with an embedding of the used tokens only, and the phone head."""

    rows: Tensor
    """[vocabulary]: row of each used token in the embedding."""

    def __init__(self, speech: WhisperDataset, finished: dict[str, Tensor] | None = None) -> None:
        """`finished`: the result of `weights` of a finished model. It has no phone head, and this one gets none."""
        super().__init__()
        tokenizer = speech.tokenizer
        special = [tokenizer.eot, tokenizer.sot, tokenizer.no_speech, tokenizer.no_timestamps]
        self.used = [*speech.text_tokens, *special, *range(tokenizer.timestamp_begin, tokenizer.timestamp_begin + TIMESTAMPS)]
        self.text_count = len(speech.text_tokens)
        self.whisper = Whisper(ModelDimensions(**DIMENSIONS))
        self.whisper.decoder.token_embedding = nn.Identity()
        nn.init.normal_(self.whisper.decoder.positional_embedding, std=0.01)
        self.embedding = nn.Parameter(0.02 * torch.randn(len(self.used), STATE))
        self.unused = nn.Parameter(torch.zeros(STATE))
        self.spell = nn.Linear(STATE, len(speech.phone_ids) + 1) if finished is None else None
        rows = torch.full((DIMENSIONS["n_vocab"],), IGNORED)
        rows[self.used] = torch.arange(len(self.used))
        self.register_buffer("rows", rows)
        if finished is not None:
            self._copy_weights(finished)

    def forward(self, batch: WhisperBatch) -> dict[str, Tensor]:
        """Mean losses, and the accuracy on text tokens given the right previous tokens."""
        audio = self._encode(batch.mels)
        logits, attention = self._decode(batch.inputs, audio)
        targets = torch.where(batch.targets == IGNORED, IGNORED, self.rows[batch.targets.clamp(min=0)])
        words = (targets >= 0) & (targets < self.text_count)
        text = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        accuracy = (logits.argmax(-1) == targets)[words].float().mean()
        auxiliary = (
            {"phones": _compute_phone_loss(self.spell, audio, batch.phones)}
            if self.spell
            else {"places": _compute_guidance_loss(attention, batch.places)}
        )
        return {"text": text, "right": accuracy, **auxiliary}

    def _encode(self, mels: Tensor) -> Tensor:
        """[windows, 80, frames] → [windows, frames / 2, state]. As Whisper's encoder, which only takes 30 s."""
        encoder = self.whisper.encoder
        hidden = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mels)))).permute(0, 2, 1)
        hidden = (hidden + encoder.positional_embedding[: hidden.shape[1]]).to(PRECISION)
        for block in encoder.blocks:
            hidden = block(hidden)
        return encoder.ln_post(hidden)

    def _decode(self, inputs: Tensor, audio: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits [windows, positions, used tokens + 1]; the last one stands for all unused tokens. Without a phone head, also the attention
        of each block's first head: [windows, positions, frames], log-probabilities."""
        decoder = self.whisper.decoder
        attention: list[Tensor] = []
        hidden = (self.embedding[self.rows[inputs]] + decoder.positional_embedding[: inputs.shape[1]]).to(PRECISION)
        for block in decoder.blocks:
            hidden = hidden + block.attn(block.attn_ln(hidden), mask=decoder.mask)[0]
            queries = block.cross_attn_ln(hidden)
            if self.spell is None:
                attention.append(_attend_first_head(block.cross_attn, queries, audio))
            hidden = hidden + block.cross_attn(queries, audio)[0]
            hidden = hidden + block.mlp(block.mlp_ln(hidden))
        hidden = decoder.ln(hidden).float()
        others = hidden @ self.unused + math.log(DIMENSIONS["n_vocab"] - len(self.used))
        return torch.cat([hidden @ self.embedding.T, others[..., None]], dim=-1), attention

    def weights(self) -> dict[str, Tensor]:
        """The weights that openai-whisper loads: the used rows in their places, the shared row in all others."""
        rows = self.unused.detach().repeat(DIMENSIONS["n_vocab"], 1)
        rows[self.used] = self.embedding.detach()
        return {**self.whisper.state_dict(), EMBEDDING: rows}

    def _copy_weights(self, weights: dict[str, Tensor]) -> None:
        rows = weights[EMBEDDING]
        unused = min(set(range(DIMENSIONS["n_vocab"])) - set(self.used))
        self.whisper.load_state_dict({name: tensor for name, tensor in weights.items() if name != EMBEDDING})
        with torch.no_grad():
            self.embedding.copy_(rows[self.used])
            self.unused.copy_(rows[unused])


def _compute_phone_loss(spell: nn.Linear, audio: Tensor, phones: list[list[int]]) -> Tensor:
    windows = [row for row, of_window in enumerate(phones) if of_window]
    scores = spell(audio[windows].float()).log_softmax(-1).transpose(0, 1)
    flat = torch.tensor([phone for row in windows for phone in phones[row]])
    lengths = torch.tensor([len(phones[row]) for row in windows])
    return F.ctc_loss(scores, flat, torch.full((len(windows),), scores.shape[0]), lengths, zero_infinity=True)


def _attend_first_head(attention: Any, queries: Tensor, audio: Tensor) -> Tensor:
    size = STATE // HEADS
    query, key = (layer(hidden)[..., :size].float() for layer, hidden in ((attention.query, queries), (attention.key, audio)))
    return (query @ key.transpose(1, 2) / math.sqrt(size)).log_softmax(-1)


def _compute_guidance_loss(attention: list[Tensor], places: Tensor) -> Tensor:
    """Negative log-probability, summed over the blocks, that attention is near the place of the next token."""
    has_place = ~places.isnan()
    times = torch.arange(attention[0].shape[-1]) * TICK_S
    near = (times - places[has_place][:, None]).abs() < NEAR_S
    return torch.stack([-one[has_place].masked_fill(~near, -math.inf).logsumexp(-1).mean() for one in attention]).sum()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="train_whisper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--from", dest="start_from", metavar="MODEL", help="a finished demo Whisper to continue from: its name, or a .pt file"
    )
    options = parser.parse_args(argv)
    if options.steps < 1:
        raise UserError(f"--steps {options.steps}: must be at least 1")
    train(options.folder, options.corpus, options.steps, options.seed, start_from=options.start_from)
    return 0


def train(folder: Path, corpus: Path, steps: int, seed: int, until: int | None = None, start_from: str | None = None) -> Student:
    """Run all steps, or those up to `until`, resuming the run in `folder`. Interrupted and uninterrupted runs give the same bits.

    `start_from`: a finished model to continue from. Raises `UserError` if the training in `folder` had another start.
    """
    _require_same_start(folder, start_from)
    speech = WhisperDataset(corpus, load_tokenizer())
    torch.manual_seed(seed)
    student = Student(speech, finished=None if start_from is None else _load_finished(start_from))
    phases, rate = (PHASES, RATE) if start_from is None else (PHASES[-1:], RESUMED_RATE)

    def loss(step: int) -> Tensor:
        phase = next(phase for phase in phases if step < phase.until * steps)
        losses = student(speech.batch(seed, step, phase.seconds, phase.windows))
        if step % 50 == 0:
            shown = " ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            print_line(f"step {step}, {phase.seconds} s: {shown}")
        return losses["text"] + (losses["phones"] if start_from is None else GUIDED * losses["places"])

    train_parameters(folder / "training", Schedule(steps, rate, PLATEAU), dict(student.named_parameters()), loss, until)
    return student


def _require_same_start(folder: Path, start_from: str | None) -> None:
    state = folder / "training.safetensors"
    if not state.exists():
        return
    with safe_open(state, framework="pt") as file:
        from_scratch = "weight.spell.weight" in file.keys()  # noqa: SIM118 - not a dict
    if from_scratch and start_from is not None:
        raise UserError(f"--from {start_from}: the training in {folder} started from scratch; use another FOLDER, or remove --from")
    if not from_scratch and start_from is None:
        raise UserError(f"the training in {folder} continues a finished model; use the same --from again, or another FOLDER")


def _load_finished(model: str) -> dict[str, Tensor]:
    """Weights of a demo Whisper by name or .pt file. Raises `UserError` for other models."""
    if not demo_whisper.is_demo_name(model) and not Path(model).is_file():
        raise UserError(f"--from {model}: no such file; use {demo_whisper.NAME}, or the .pt file of a demo Whisper")
    found = whisper_engine.load_whisper(model, "cpu")
    if vars(found.dims) != DIMENSIONS:
        raise UserError(f"--from {model}: its dimensions are {vars(found.dims)}; use a demo Whisper, which has {DIMENSIONS}")
    return dict(found.state_dict())


def load_tokenizer() -> Any:
    """The tokenizer of an English-only Whisper."""
    return get_tokenizer(multilingual=False)


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
