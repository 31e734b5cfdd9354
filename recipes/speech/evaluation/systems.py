"""The systems of an evaluation, and their speech: exported voices, checkpoints of a run, and the model before training."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder, UnsupportedModelError
from overtone.data_prep.audio_codecs.selection import open_speaker_encoder
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.exporting.export_provenance import CARD, locate_base
from overtone.finetune.modeling import loading
from overtone.finetune.recipe import CheckpointState
from overtone.finetune.storage import demo_models, files
from overtone.finetune.storage.hub_download import display_name
from overtone.finetune.storage.strict_json import read_object
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark
from overtone.recipes.speech.batch_synthesis import speak_batches
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechSampling, VoiceFolder
from overtone.recipes.speech.marked_audio_encoding import encode_marked_flac, encode_marked_wav

if TYPE_CHECKING:
    from overtone.data_prep.parallel.ray_pool import RayWorkers

RECORDINGS = "real recordings"
"""Name of the system that consists of the speaker's own recordings."""
THROUGH_CODEC = "through the codec"
"""Name of the system that consists of these recordings, encoded and decoded by the codec of `--codec`."""


@dataclass(frozen=True)
class System:
    """A model, or a checkpoint of one, and how it speaks."""

    name: str
    folder: Path
    """An exported folder, or a checkpoint."""
    way: Literal["named", "cloned"]
    """The system selects the voice by the name of a speaker of the model, or clones the item's reference clip."""
    step: int | None = None
    """Step of a checkpoint; None for an exported folder."""
    strength: float = 1.0
    """The strength at which a checkpoint is exported."""
    is_base: bool = False
    """The model before training, with which the others are compared."""

    @property
    def title(self) -> str:
        """Title of the system on the page."""
        if self.step is not None:
            weaker = "" if self.strength == 1 else f", strength {self.strength:g}"
            return f"Trained voice at step {self.step}{weaker}"
        name = display_name(self.folder)
        if self.folder.parent == demo_models.cache():
            name = name.rpartition("-")[0]  # without the digest of its content
        if self.is_base:
            return f"Untrained base: {name}" if self.way == "cloned" else f"Voice before training: {name}"
        return f"Trained voice: {name}"

    def request(self, item: Item) -> SpeechRequest:
        """The request for an item."""
        language = None if item.language == "auto" else item.language
        if self.way == "cloned":
            return SpeechRequest(item.text, None, language, item.reference, item.reference_text)
        return SpeechRequest(item.text, speaker=item.speaker, language=language)


@dataclass(frozen=True)
class Take:
    """One item spoken by one system, as a file."""

    item: Item
    path: Path
    ended: bool
    """False: the speech was cut off at the time limit."""


def find_systems(recipe: SpeechRecipe, model: Path, steps: str | None) -> list[System]:
    """The systems of `--model` and `--checkpoints`, by step. Raises `UserError`, which lists the existing checkpoints."""
    if not is_run(model):
        if steps is not None:
            raise UserError(f"--checkpoints {steps}: {model} is one exported model; give the folder of a run to --model")
        recipe.inspect(model)
        return [System(display_name(model), model, "named")]
    return [System(f"step {checkpoint.step_of(path)}", path, "named", checkpoint.step_of(path)) for path in list_checkpoints(model, steps)]


def is_run(model: Path) -> bool:
    """Return whether a folder is a run, or one of its checkpoints."""
    return checkpoint.folder_of(model).is_dir() or checkpoint.STEP_FOLDER.fullmatch(model.name) is not None


def untrained_system(recipe: SpeechRecipe, base: Path) -> System:
    """A base that clones clips. Raises `UserError` for a model that cannot clone."""
    if not recipe.inspect(base).can_clone:
        raise UserError(
            f"--base {base}: this model cannot clone a clip; give the Base model from which training started if that can, or remove --base"
        )
    return System(f"{display_name(base)}, zero-shot", base, "cloned", is_base=True)


def find_base(recipe: SpeechRecipe, base: Path, speakers: Collection[str], speaking: Sequence[System]) -> tuple[System, str]:
    """The model of `--base`, and a sentence on how it speaks: by name if it was trained with all `speakers`, those of the rows; otherwise
    it clones clips. Raises `UserError`, with the alternatives, for a model that can do neither, and for one of `speaking`."""
    exported = recipe.inspect(base)
    lacking = sorted({*speakers} - {*exported.speakers})
    known = exported.first_speaker is not None or not exported.can_clone  # a released model's names may be mere numbers, without a voice
    if speakers and known and not lacking:
        if any(base.resolve() == system.folder.resolve() for system in speaking):
            raise UserError(f"--base {base}: this is the model of --model; give the one from which training started, or remove --base")
        also = "; it could also clone clips" if exported.can_clone else ""
        system = System(f"{display_name(base)} before training", base, "named", is_base=True)
        return system, f"--base {base} speaks by the names of the rows' speakers{also}."
    if speakers and exported.speakers and not exported.can_clone:
        raise UserError(
            f"--base {base}: has no {_list_some(lacking)} among its speakers ({_list_some(exported.speakers)}), and cannot clone a clip; "
            "give the export or the Base model from which training started, or remove --base"
        )
    system = untrained_system(recipe, base)
    reason = f", because it was not trained with {_list_some(lacking)}" if known and exported.speakers and lacking else ""
    return system, f"--base {base} clones each row's reference clip{reason}."


def _list_some(names: Iterable[str], most: int = 10) -> str:
    """The names with commas, and how many more there are."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def number_repeated(found: Iterable[System]) -> list[System]:
    """The systems, each with a name and a folder of its own, also beside the recordings: a number is added to a repeated name."""
    taken, numbered = {slug(RECORDINGS), slug(THROUGH_CODEC)}, list[System]()
    for system in found:
        names = itertools.chain([system.name], (f"{system.name} ({number})" for number in itertools.count(2)))
        numbered.append(replace(system, name=next(name for name in names if slug(name) not in taken)))
        taken.add(slug(numbered[-1].name))
    return numbered


def check_item(recipe: SpeechRecipe, system: System, item: Item) -> None:
    """Raises `UserError`, which lists the alternatives, for an item that a system cannot speak. Reads no weights."""
    if system.way == "cloned" and item.reference is None:
        raise UserError('the row has no reference audio to clone from; add "ref_audio" to it, or give --reference CLIP for all such rows')
    if system.step is None:
        _inspect(recipe, system.folder).check(system.request(item))
        return
    known = _list_trained_speakers(recipe, system)
    if item.speaker not in known:
        raise UserError(
            f"speaker {item.speaker!r}: {system.folder} was not trained with this speaker; its speakers are {', '.join(sorted(known))}"
        )


def _list_trained_speakers(recipe: SpeechRecipe, system: System) -> Sequence[str]:
    """The speakers of a checkpoint. Raises `UserError` for a state of another recipe."""
    try:
        names = [*recipe.trained_speakers(_read_state(system)["recipe_state"])]
    except (KeyError, TypeError):
        names = []
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{system.folder / 'state.json'}: recipe_state names no speakers; this recipe has not written it, choose another checkpoint"
        )
    return names


@functools.cache
def _inspect(recipe: SpeechRecipe, folder: Path) -> VoiceFolder:
    """Cached, because it may contain the tokenizer, which every text needs."""
    return recipe.inspect(folder)


@functools.cache
def _read_state(system: System) -> CheckpointState:
    """`state.json` of a checkpoint. Cached, because every text is checked against it."""
    return checkpoint.read_state(system.folder)


@contextlib.contextmanager
def open_export(recipe: SpeechRecipe, system: System, workspace: Path) -> Iterator[Path]:
    """The system as an exported folder. A checkpoint is exported into `workspace`, and the export removed at the end."""
    if system.step is None:
        yield system.folder
        return
    exported = export.export(system.folder, workspace / f"export-{system.step}", recipe=recipe.name, strength=system.strength)
    try:
        yield exported
    finally:
        files.discard(exported)


def speak(
    recipe: SpeechRecipe,
    system: System,
    folder: Path,
    items: Sequence[Item],
    sampling: SpeechSampling,
    batch: int,
    out: Path,
    extension: Literal["flac", "wav"] = "flac",
    remote: RayWorkers | None = None,
) -> Iterator[Take]:
    """Speak all items, each into a file in `out` that is marked as synthetic; the longest texts first, so that it runs out of memory early
    if at all. `remote`: as for `speak_batches`."""
    ordered = sorted(items, key=lambda item: (-len(item.text), item.key))
    parts = [ordered[start : start + batch] for start in range(0, len(ordered), batch)]
    requests = [[system.request(item) for item in part] for part in parts]
    with contextlib.closing(speak_batches(recipe.inspect, folder, requests, sampling, remote)) as spoken:
        for index, results in spoken:
            for item, result in zip(parts[index], results, strict=True):
                yield Take(item, write_clip(out / f"{item.key}.{extension}", result.wave, result.rate, system.name), result.ended)


def slug(name: str) -> str:
    """A system's name as a folder name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def write_clip(path: Path, wave: Any, rate: int, model: str) -> Path:
    """Write `wave` [samples] at 24 kHz, the rate for all measurements, marked as the speech of `model`; returns the path."""
    samples = np.asarray(wave, np.float32)
    if rate != MASTER_RATE:
        samples = soxr.resample(samples, rate, MASTER_RATE, quality="VHQ")
    files.make_folder(path.parent)
    encode = encode_marked_wav if path.suffix == ".wav" else encode_marked_flac
    files.write_bytes(path, encode(samples, MASTER_RATE, SyntheticMark(model)))
    return path


def find_encoder_folder(recipe: SpeechRecipe, system: System) -> Path:
    """The base model whose speaker encoder a system's voices came from. Raises `UserError` if it is unknown or missing."""
    if system.step is not None:
        return export.find_base(_read_state(system), recipe.base_folders)
    if _inspect(recipe, system.folder).can_clone:
        return system.folder
    try:
        base = read_object(system.folder / CARD)["base"]
        return loading.resolve_source(locate_base(system.folder, str(base["source"])), base["revision"], option="its base")
    except (UserError, KeyError, TypeError) as error:
        raise UserError(f"{system.folder}: the base in {CARD} cannot be used ({error}); give --base FOLDER") from None


def find_encoder(recipe: SpeechRecipe, speaking: Sequence[System]) -> tuple[SpeakerEncoder | None, list[str]]:
    """The speaker encoder of a base model, or None; and if there is none, a note with the reason. Raises `UserError` if its weights are
    damaged."""
    reasons = []
    for system in reversed(speaking):  # the base of --base is last
        try:
            folder = find_encoder_folder(recipe, system)
        except UserError as error:
            reasons.append(str(error))
            continue
        try:
            own = system.is_base and folder == system.folder
            return open_speaker_encoder(str(folder), "--base" if own else f"base of {system.name}"), []
        except UnsupportedModelError as error:  # but damaged weights end the evaluation, since the user expects this similarity
            reasons.append(str(error))
    return None, [f"Similarity by the model's own encoder was not measured: {reasons[-1]}"]


def list_checkpoints(run: Path, steps: str | None) -> list[Path]:
    """Verified checkpoints of a run: the newest, or those of `steps`, separated by commas; `all` is not verified. Raises `UserError`, which
    lists the existing ones."""
    if checkpoint.STEP_FOLDER.fullmatch(run.name) or steps is None:
        return [checkpoint.find(run)]
    existing = checkpoint.list_checkpoints(checkpoint.folder_of(run))
    if steps == "all":
        return sorted(existing)
    return [checkpoint.find(run, step) for step in sorted(_parse_steps(steps, existing))]


def _parse_steps(steps: str, existing: Iterable[Path]) -> set[int]:
    known = sorted(checkpoint.step_of(path) for path in existing)
    wanted = steps.split(",")
    if not all(step.strip().isdigit() and int(step) in known for step in wanted):
        listed = ", ".join(map(str, known)) or "none"
        raise UserError(f"--checkpoints {steps}: give all, or steps separated by commas; existing steps: {listed}")
    return {int(step) for step in wanted}
