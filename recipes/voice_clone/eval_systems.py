"""What is evaluated: exported voices, checkpoints of a run, the untrained base that clones from a clip; and the clips that they speak."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.audio import MASTER_RATE, Audio, flac
from data_prep.qwen import CODEC_FOLDER
from finetune import checkpoint, export, files, models
from finetune.errors import UserError
from finetune.strict_json import read_object

from . import synthesis
from .eval_rows import Item
from .exported import Exported
from .sampling import Sampling
from .synthesis import Request

RECIPE = "voice_clone"
"""Of the checkpoints that are evaluated here, whatever name stands in them."""
RECORDINGS = "real recordings"


@dataclass(frozen=True)
class System:
    """One way to say a text."""

    name: str
    folder: Path
    """An exported folder, or a checkpoint."""
    way: Literal["named", "cloned"]
    """A voice that the model knows by name, or that of the item's reference clip."""
    step: int | None = None
    """Of a checkpoint."""

    def request(self, item: Item) -> Request:
        language = None if item.language == "auto" else item.language
        if self.way == "cloned":
            return Request(item.text, None, language, item.reference, item.reference_text)
        return Request(item.text, speaker=item.speaker, language=language)


@dataclass(frozen=True)
class Take:
    """A clip that is on the disk."""

    item: Item
    path: Path
    ended: bool
    """False: the model was cut off."""


def find(model: Path, asked: str | None) -> list[System]:
    """The systems that `--model` and `--checkpoints` name, in the order of their steps. Raises `UserError` that lists what exists."""
    if not is_run(model):
        if asked is not None:
            raise UserError(f"--checkpoints {asked}: {model} is one exported model; give the folder of a run to --model")
        Exported.of(model)
        return [System(model.name, model, "named")]
    return [System(f"step {checkpoint.step_of(path)}", path, "named", checkpoint.step_of(path)) for path in _chosen(model, asked)]


def is_run(model: Path) -> bool:
    """Whether a folder is a run, or one of its checkpoints."""
    return checkpoint.folder_of(model).is_dir() or checkpoint.STEP_FOLDER.fullmatch(model.name) is not None


def untrained(base: Path) -> System:
    """A base that clones from a clip, as it was before training. Raises `UserError` for a folder that cannot."""
    if not Exported.of(base).is_base:
        raise UserError(f"--base {base}: a custom_voice model cannot clone from a clip; give the Base model that was trained on")
    return System(f"{base.name}, zero-shot", base, "cloned")


def refuse(system: System, item: Item) -> None:
    """Raise `UserError`, which lists what exists, for an item that a system cannot say. Reads no weights."""
    if system.way == "cloned" and item.reference is None:
        raise UserError('the row has no reference audio to clone from; add "ref_audio" to it, or give --reference CLIP for all such rows')
    if system.step is None:
        synthesis.check(_exported(system.folder), system.request(item))
        return
    known = [speaker["name"] for speaker in state_of(system)["recipe_state"]["speakers"]]
    if item.speaker not in known:
        raise UserError(f"speaker {item.speaker!r}: {system.folder} was not trained on that voice; it has {', '.join(sorted(known))}")


@functools.cache
def _exported(folder: Path) -> Exported:
    """Kept, since it keeps the tokenizer that every text goes through."""
    return Exported.of(folder)


@functools.cache
def state_of(system: System) -> dict[str, Any]:
    """`state.json` of a checkpoint. Kept, since every text is held against it."""
    return checkpoint.read_state(system.folder)


@contextlib.contextmanager
def opened(system: System, workspace: Path) -> Iterator[Path]:
    """The system as an exported folder; that of a checkpoint is made in `workspace` and goes when this ends."""
    if system.step is None:
        yield system.folder
        return
    made = export.export(system.folder, workspace / f"export-{system.step}", recipe=RECIPE)
    try:
        yield made
    finally:
        files.discard(made)


def speak(system: System, folder: Path, items: Sequence[Item], sampling: Sampling, batch: int, out: Path) -> Iterator[Take]:
    """Say all items, the longest texts first, each into a FLAC file in `out`: what is cut off by memory fails early."""
    ordered = sorted(items, key=lambda item: (-len(item.text), item.key))
    with synthesis.open_synthesizer(folder) as voice:
        for start in range(0, len(ordered), batch):
            part = ordered[start : start + batch]
            spoken = voice.speak([system.request(item) for item in part], sampling)
            for item, one in zip(part, spoken, strict=True):
                yield Take(item, _keep(out / f"{item.key}.flac", one.wave, one.rate), one.ended)


def slug(name: str) -> str:
    """A system's name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _keep(path: Path, wave: Any, rate: int) -> Path:
    """At 24 kHz, the rate of everything that is measured here."""
    import numpy as np
    import soxr

    samples = np.asarray(wave, np.float32)
    if rate != MASTER_RATE:
        samples = soxr.resample(samples, rate, MASTER_RATE, quality="VHQ")
    files.make_folder(path.parent)
    files.write_bytes(path, flac(Audio(samples, MASTER_RATE)))
    return path


def encoder_folder(system: System) -> Path:
    """The Base model whose speaker encoder a system's voices came from. Raises `UserError` if it is not known or not there."""
    if system.step is not None:
        return export.find_base(state_of(system), (CODEC_FOLDER,))
    if _exported(system.folder).is_base:
        return system.folder
    try:
        base = read_object(system.folder / export.CARD)["base"]
        return models.resolve_source(str(base["source"]), base["revision"])
    except (UserError, KeyError, TypeError) as error:
        raise UserError(f"{system.folder}: the base in {export.CARD} cannot be used ({error}); give --base FOLDER") from None


def _chosen(run: Path, asked: str | None) -> list[Path]:
    if checkpoint.STEP_FOLDER.fullmatch(run.name):
        return [checkpoint.find(run)]
    if asked is None:
        return [checkpoint.find(run)]
    have = checkpoint.steps_in(checkpoint.folder_of(run))
    if asked == "all":
        return sorted(have)
    return [checkpoint.find(run, step) for step in sorted(_steps(asked, have))]


def _steps(asked: str, have: Iterable[Path]) -> set[int]:
    known = sorted(checkpoint.step_of(path) for path in have)
    wanted = asked.split(",")
    if not all(step.strip().isdigit() and int(step) in known for step in wanted):
        listed = ", ".join(map(str, known)) or "none"
        raise UserError(f"--checkpoints {asked}: give all, or steps with commas between them; there are {listed}")
    return {int(step) for step in wanted}
