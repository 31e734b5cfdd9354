"""Train the demo Whisper on the corpus, from nothing, on a processor.

    python -m recipes.voice_clone.studio.whisper.train_whisper [FOLDER] [--corpus runs/studio/corpus]
        [--steps 7000] [--seed 0] [--from MODEL]

FOLDER (default runs/studio/whisper) gets `training.safetensors`, rewritten every minute, from which the same command goes on after it was
stopped, and `training.jsonl`. When all steps are done, `pack_whisper` measures the model and writes what is shipped. With --from, a new
training goes on with a finished demo Whisper, by name or .pt file, in the longest windows only.

What makes so small a model learn in an hour or two: a second head that spells phones with CTC and is thrown away (without it the decoder
learns the grammar's statistics and does not listen), windows that grow from 4.6 to 30 s, small batches, and a softmax over the tokens that
the grammar uses. All other tokens share one row of the embedding, trained inside that softmax with the logarithm of their number
on its logit: copied to each of them, it never wins. A finished model, which loses its way in long windows, is shown it: in each block of
the decoder one head is to look where the next token is said (guided attention: Tachibana et al. 2017, https://arxiv.org/abs/1710.08969).
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

from data_prep.transcription import demo_whisper, whisper_engine
from finetune.errors import UserError, exit_code
from recipes.voice_clone.studio.corpus import make_corpus
from recipes.voice_clone.studio.resumable_training import Schedule, learn
from recipes.voice_clone.studio.whisper.training_windows import IGNORED, TICK_S, Batch, Speech

FOLDER = Path("runs/studio/whisper")
STEPS = 7000
RATE, GENTLE, PLATEAU = 1.5e-3, 5e-4, 0.4
"""Learning rates from nothing, and of a finished model, which the first threw far back."""
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
"""English only: the tokenizer follows from `n_vocab`."""
EMBEDDING = "decoder.token_embedding.weight"
TIMESTAMPS = 1501
NEAR_S, GUIDED = 0.5, 0.3
"""How near to a token's place a look is right, and the weight of looking there."""
PRECISION = torch.bfloat16
"""Of the blocks' activations. Convolutions and losses stay in fp32: bf16 convolutions of few channels are wrong on some CPUs."""


@dataclass(frozen=True)
class Phase:
    until: float
    """Share of the steps."""
    seconds: float
    windows: int


PHASES = (Phase(0.4, 4.6, 20), Phase(0.9, 12.0, 10), Phase(1.0, 30.0, 6))
"""Short windows first: in long ones a decoder that cannot listen yet does not find its place."""


class Student(nn.Module):
    """Whisper with an embedding of the used tokens only, and the phone head."""

    rows: Tensor
    """[vocabulary]: where the embedding has a used token."""

    def __init__(self, speech: Speech, finished: dict[str, Tensor] | None = None) -> None:
        """`finished`: what `weights` of another one gave. Its phone head was thrown away, having done its work, so it has none."""
        from whisper.model import ModelDimensions, Whisper

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
            self._take(finished)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Mean losses, and the share of words' tokens that the decoder gets right when it is told what came before."""
        heard = self._encode(batch.mels)
        logits, looks = self._decode(batch.inputs, heard)
        targets = torch.where(batch.targets == IGNORED, IGNORED, self.rows[batch.targets.clamp(min=0)])
        words = (targets >= 0) & (targets < self.text_count)
        text = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        right = (logits.argmax(-1) == targets)[words].float().mean()
        helped = {"phones": _spelling(self.spell, heard, batch.phones)} if self.spell else {"places": _astray(looks, batch.places)}
        return {"text": text, "right": right, **helped}

    def _encode(self, mels: Tensor) -> Tensor:
        """[windows, 80, frames] to [windows, frames / 2, state]. As Whisper's encoder, which takes 30 s only."""
        encoder = self.whisper.encoder
        hidden = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mels)))).permute(0, 2, 1)
        hidden = (hidden + encoder.positional_embedding[: hidden.shape[1]]).to(PRECISION)
        for block in encoder.blocks:
            hidden = block(hidden)
        return encoder.ln_post(hidden)

    def _decode(self, inputs: Tensor, heard: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[windows, positions, used tokens + 1]: the last logit stands for all unused tokens. And without a phone head of
        each block where its first head looks: [windows, positions, frames], log-probabilities."""
        decoder = self.whisper.decoder
        looks: list[Tensor] = []
        hidden = (self.embedding[self.rows[inputs]] + decoder.positional_embedding[: inputs.shape[1]]).to(PRECISION)
        for block in decoder.blocks:
            hidden = hidden + block.attn(block.attn_ln(hidden), mask=decoder.mask)[0]
            asking = block.cross_attn_ln(hidden)
            if self.spell is None:
                looks.append(_first_head(block.cross_attn, asking, heard))
            hidden = hidden + block.cross_attn(asking, heard)[0]
            hidden = hidden + block.mlp(block.mlp_ln(hidden))
        hidden = decoder.ln(hidden).float()
        others = hidden @ self.unused + math.log(DIMENSIONS["n_vocab"] - len(self.used))
        return torch.cat([hidden @ self.embedding.T, others[..., None]], dim=-1), looks

    def weights(self) -> dict[str, Tensor]:
        """What openai-whisper loads: the used rows at their places, the shared one at all others."""
        rows = self.unused.detach().repeat(DIMENSIONS["n_vocab"], 1)
        rows[self.used] = self.embedding.detach()
        kept = self.whisper.state_dict()
        return {**kept, EMBEDDING: rows}

    def _take(self, weights: dict[str, Tensor]) -> None:
        rows = weights[EMBEDDING]
        unused = min(set(range(DIMENSIONS["n_vocab"])) - set(self.used))
        self.whisper.load_state_dict({name: tensor for name, tensor in weights.items() if name != EMBEDDING})
        with torch.no_grad():
            self.embedding.copy_(rows[self.used])
            self.unused.copy_(rows[unused])


def _spelling(spell: nn.Linear, heard: Tensor, phones: list[list[int]]) -> Tensor:
    told = [row for row, of_window in enumerate(phones) if of_window]
    scores = spell(heard[told].float()).log_softmax(-1).transpose(0, 1)
    flat = torch.tensor([phone for row in told for phone in phones[row]])
    lengths = torch.tensor([len(phones[row]) for row in told])
    return F.ctc_loss(scores, flat, torch.full((len(told),), scores.shape[0]), lengths, zero_infinity=True)


def _first_head(attention: Any, asking: Tensor, heard: Tensor) -> Tensor:
    size = STATE // HEADS
    asked, offered = (layer(hidden)[..., :size].float() for layer, hidden in ((attention.query, asking), (attention.key, heard)))
    return (asked @ offered.transpose(1, 2) / math.sqrt(size)).log_softmax(-1)


def _astray(looks: list[Tensor], places: Tensor) -> Tensor:
    """How improbable it is, in all blocks together, that the look goes to where the next token is said."""
    somewhere = ~places.isnan()
    times = torch.arange(looks[0].shape[-1]) * TICK_S
    near = (times - places[somewhere][:, None]).abs() < NEAR_S
    return torch.stack([-look[somewhere].masked_fill(~near, -math.inf).logsumexp(-1).mean() for look in looks]).sum()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="train_whisper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="begin", metavar="MODEL", help="a finished demo Whisper to go on with: its name, or a .pt file")
    options = parser.parse_args(argv)
    if options.steps < 1:
        raise UserError(f"--steps {options.steps}: at least 1")
    train(options.folder, options.corpus, options.steps, options.seed, begin=options.begin)
    return 0


def train(folder: Path, corpus: Path, steps: int, seed: int, until: int | None = None, begin: str | None = None) -> Student:
    """All steps, or those up to `until`, from where the last run in `folder` was stopped. The same bits in one stretch or in several.

    `begin`: a finished model to go on with. Raises `UserError` if the training in `folder` began otherwise.
    """
    _require_same_beginning(folder, begin)
    speech = Speech(corpus, tokenizer())
    torch.manual_seed(seed)
    student = Student(speech, finished=None if begin is None else _finished(begin))
    phases, rate = (PHASES, RATE) if begin is None else (PHASES[-1:], GENTLE)

    def loss(step: int) -> Tensor:
        phase = next(phase for phase in phases if step < phase.until * steps)
        losses = student(speech.batch(seed, step, phase.seconds, phase.windows))
        if step % 50 == 0:
            print(f"step {step}, {phase.seconds} s:", *(f"{name} {value.item():.3f}" for name, value in losses.items()), flush=True)
        return losses["text"] + (losses["phones"] if begin is None else GUIDED * losses["places"])

    learn(folder / "training", Schedule(steps, rate, PLATEAU), dict(student.named_parameters()), loss, until)
    return student


def _require_same_beginning(folder: Path, begin: str | None) -> None:
    state = folder / "training.safetensors"
    if not state.exists():
        return
    with safe_open(state, framework="pt") as file:
        from_nothing = "weight.spell.weight" in file.keys()  # noqa: SIM118 - it is no dict
    if from_nothing and begin is not None:
        raise UserError(f"--from {begin}: the training in {folder} began from nothing; give another FOLDER, or leave out --from")
    if not from_nothing and begin is None:
        raise UserError(f"the training in {folder} went on with a finished model; give the same --from again, or another FOLDER")


def _finished(model: str) -> dict[str, Tensor]:
    """Weights of a demo Whisper by name or .pt file. Raises `UserError` for another."""
    if not demo_whisper.is_demo_name(model) and not Path(model).is_file():
        raise UserError(f"--from {model}: no such file; give {demo_whisper.NAME}, or the .pt file of one")
    found = whisper_engine.load_whisper(model, "cpu")
    if vars(found.dims) != DIMENSIONS:
        raise UserError(f"--from {model}: its shape is {vars(found.dims)}; give a demo Whisper, which has {DIMENSIONS}")
    return dict(found.state_dict())


def tokenizer() -> Any:
    """Of a Whisper that knows English only."""
    from whisper.tokenizer import get_tokenizer

    return get_tokenizer(multilingual=False)


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
