"""Common parts of the builders of small random checkpoints: tokenizers, weights, a folder that is written as a whole, and the command
line."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Size, Tensor

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line


def require_new_folder(folder: Path) -> None:
    """Raises `UserError` if the folder exists."""
    if folder.exists():
        raise UserError(f"{folder} exists already; remove it, or choose another folder")


def write_checkpoint(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Write files to a new folder, by their paths in it, and return the folder."""
    with files.new_folder(folder) as temporary:
        for name, content in contents.items():
            files.make_folder((temporary / name).parent)
            files.write_in_place(temporary / name, content)
    return folder


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file of these tensors; those that share memory are stored one by one."""
    return save({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, {"format": "pt"})


def make_random_weights(shapes: Mapping[str, Size], std: float, seed: int) -> bytes:
    """A safetensors file of `draw_weights`."""
    return to_safetensors(draw_weights(shapes, std, seed))


def draw_weights(shapes: Mapping[str, Size], std: float, seed: int) -> dict[str, Tensor]:
    """Norms of 1, biases of 0, and other weights from a normal distribution with this standard deviation, by name.

    They are drawn in the order of their names, so that the bytes are the same with every release of transformers.
    """
    chance, tensors = torch.Generator().manual_seed(seed), {}
    for name, shape in sorted(shapes.items()):
        if name.endswith("bias"):
            tensors[name] = torch.zeros(shape)
        else:
            tensors[name] = torch.ones(shape) if len(shape) == 1 else std * torch.randn(shape, generator=chance)
    return tensors


def train_byte_tokenizer(split: str, texts: Iterable[str], vocabulary: int, special: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of at most `vocabulary` tokens, of which 256 are the bytes, and the special ones after them. `split`: a regular
    expression of the pieces that are never merged, as in the tokenizer of the released model."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(split), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def make_parser(module: str, description: str) -> argparse.ArgumentParser:
    """The command line of a builder: the folder, and --seed."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description, allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="new folder to write")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same weights (default %(default)s)")
    return parser


def report_checkpoint(folder: Path) -> int:
    """Print that a checkpoint was written; returns the exit code."""
    print_line(f"{folder}: a model with random weights; train it before use")
    return 0
