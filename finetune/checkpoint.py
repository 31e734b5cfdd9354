"""The life of a checkpoint: written into a temporary folder, agreed on by all ranks, committed by one rename, verified before use, pruned.

`runs/<name>/checkpoints/step-00000120/` holds one safetensors file a rank, `config.yaml`, `state.json`, and `manifest.json` with bytes and
digest of every file. There is no pointer to the newest: it is the newest folder whose manifest verifies. Nothing is ever overwritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from finetune import files, optim, shards
from finetune.errors import UserError
from finetune.models import local_slices
from finetune.parallel import plain_name
from finetune.world import World, gather, once, sums, together

FORMAT = 1
MOMENTS = ("exp_avg", "exp_avg_sq")
STEP_FOLDER = re.compile(r"step-(\d{8})")


def training_tensors(model: nn.Module, optimizer: torch.optim.AdamW, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Everything a checkpoint holds, by the name it has there: what is trained, its moments, and the recipe's buffers.

    Frozen parameters are not in it: the base has them, and `state.json` has the base's digest.
    """
    trained = {plain_name(name): parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    own = dict(model.named_buffers())
    moments = {moment_name(kind, name): optimizer.state[parameter][kind] for name, parameter in trained.items() for kind in MOMENTS}
    return {**trained, **moments, **{name: own[name] for name in buffers}}


def moment_name(kind: str, name: str) -> str:
    return f"optimizer.{kind}.{name}"


def folder_of(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


@dataclass(frozen=True)
class _Pending:
    folder: Path
    step: int
    documents: dict[str, str]
    written: Future[files.Written]


class Saver:
    """Writes one checkpoint at a time, on a thread that it owns.

    The thread only writes this rank's file. All agreements stay on the main thread, where no other collective can interleave with them.
    """

    def __init__(self, world: World, run_dir: Path, keep: int, asynchronous: bool) -> None:
        self._world, self._folder, self._keep, self._asynchronous = world, folder_of(run_dir), keep, asynchronous
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._pending: _Pending | None = None

    def begin(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], config: str) -> None:
        """Copy this rank's part and start writing it. Collective: call on every rank."""
        self.finish()
        parts = shards.own_parts(tensors, self._world.rank, self._world.size)
        needed = int(sums(self._world, [sum(part.value.nbytes for part in parts.values())])[0])
        temporary = Path(once(self._world, lambda: str(self._make_room(step, needed))))
        path = temporary / f"rank-{self._world.rank + 1:05d}-of-{self._world.size:05d}.safetensors"
        documents = {"config.yaml": config, "state.json": json.dumps({**state, "format": FORMAT, "step": step}, indent=1, allow_nan=False)}
        written = self._thread.submit(shards.write_shard, path, shards.stage(parts) if self._asynchronous else parts)
        self._pending = _Pending(temporary, step, documents, written)
        if not self._asynchronous:
            wait([written])  # its failure, if any, is told to all ranks and cleared away by `finish`

    def poll(self) -> Path | None:
        """Commit what all ranks have written; returns the committed folder. Collective: call on every rank."""
        if self._pending is None:
            return None
        done = sums(self._world, [float(self._pending.written.done())])[0]
        return self.finish() if done == self._world.size else None

    def finish(self) -> Path | None:
        """Wait for the write in flight and commit it. Collective: call on every rank."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        try:
            written = together(self._world, pending.written.result)
            entries = dict(gather(self._world, [f"rank-{self._world.rank + 1:05d}-of-{self._world.size:05d}.safetensors", asdict(written)]))
            return Path(once(self._world, lambda: str(self._commit(pending, entries))))
        except BaseException:
            if self._world.is_main:
                files.discard(pending.folder)
            raise

    def close(self) -> None:
        self._thread.shutdown()

    def _make_room(self, step: int, needed: int) -> Path:
        files.require_space(self._folder, needed + 2**20, f"the checkpoint of step {step}")
        return files.fresh_folder(self._folder, f"step-{step:08d}")

    def _commit(self, pending: _Pending, entries: dict[str, Any]) -> Path:
        for name, text in pending.documents.items():
            entries[name] = asdict(files.write_blocks(pending.folder / name, [text.encode()]))
        manifest = json.dumps({"step": pending.step, "files": entries}, indent=1)
        files.write_in_place(pending.folder / "manifest.json", manifest.encode())
        final = self._folder / f"step-{pending.step:08d}"
        if final.exists():
            # Only a folder that no longer verifies can stand here: the run resumed from before it and came by again.
            files.discard(final)
        files.commit_folder(pending.folder, final)
        prune(self._folder, self._keep, final)
        return final


def prune(folder: Path, keep: int, committed: Path) -> list[Path]:
    """Remove all but `committed`, the newest before it, `keep` in all, and the one with the lowest validation loss.

    Folders of later steps do not count: the run passed them over as damaged, and counting them would remove what it has just saved.
    """
    found = [path for path in steps_in(folder) if path.name <= committed.name]
    best = min(
        (path for path in found if validation_loss(path) is not None), key=lambda path: (validation_loss(path), path.name), default=None
    )
    gone = [path for path in found[keep:] if path != best]
    for path in gone:
        files.discard(path)
    return gone


def steps_in(folder: Path) -> list[Path]:
    """Committed checkpoint folders, the newest first."""
    return sorted((path for path in folder.glob("step-*") if STEP_FOLDER.fullmatch(path.name)), reverse=True)


def validation_loss(path: Path) -> float | None:
    try:
        return read_state(path).get("validation_loss")
    except UserError:
        return None


def read_state(path: Path) -> dict[str, Any]:
    """`state.json` of a checkpoint. Raises `UserError` if it is no readable checkpoint of a format this version knows."""
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is no checkpoint: state.json cannot be read ({error}); give a run folder or one of its checkpoints/step-* folders"
        ) from None
    if state.get("format") != FORMAT:
        raise UserError(
            f"{path}: checkpoint format {state.get('format')}, "
            f"this version reads format {FORMAT}; use the version that wrote it, or a newer one"
        )
    return state


def problem_with(path: Path) -> str | None:
    """Why a checkpoint must not be used, or None if every byte is what its manifest says."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        step, listed = manifest["step"], {name: (entry["bytes"], entry["digest"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json cannot be read ({type(error).__name__}: {error})"
    if step != int(path.name.removeprefix("step-")):
        return f"manifest.json is of step {step}"
    present = {file.name for file in path.iterdir()} - {"manifest.json"}
    if present != set(listed):
        return f"files differ from the manifest: {', '.join(sorted(present ^ set(listed)))}"
    for name, (size, digest) in listed.items():
        if (path / name).stat().st_size != size or files.digest(path / name) != digest:
            return f"{name} is not what was written"
    return None


def newest_good(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and what was wrong with those passed over."""
    passed_over: list[str] = []
    for path in steps_in(folder_of(run_dir)):
        problem = problem_with(path)
        if problem is None:
            return path, passed_over
        passed_over.append(f"{path}: {problem}")
    return None, passed_over


def find(place: Path, step: int | None = None) -> Path:
    """The checkpoint that a user means by a run folder (the newest good one, or `step`) or a checkpoint folder, verified.

    Raises `UserError` saying what is wrong and what there is instead.
    """
    if (named := STEP_FOLDER.fullmatch(place.name)) and place.is_dir():
        if step not in (None, int(named[1])):
            raise UserError(f"{place} is of step {int(named[1])}, but step {step} is asked for; give the run's folder, or drop the step")
        chosen = place
    elif step is not None:
        chosen = folder_of(place) / f"step-{step:08d}"
        if not chosen.is_dir():
            there = ", ".join(str(int(path.name[5:])) for path in steps_in(folder_of(place)))
            raise UserError(f"{place} has no checkpoint of step {step}; there are: {there or 'none'}")
    else:
        newest, passed_over = newest_good(place)
        if newest is None:
            raise UserError("; ".join([f"{place} holds no usable checkpoint", *passed_over]) + "; give a run folder of finetune/train.py")
        return newest
    if problem := problem_with(chosen):
        raise UserError(f"{chosen} is damaged: {problem}; choose another step")
    return chosen


def restore(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, buffers: Mapping[str, Tensor]) -> None:
    """Read a verified checkpoint into the shards of this world, whatever world wrote it. Each rank reads its own slices; no collective."""
    optim.restore_state(optimizer, read_state(path)["optimizer_steps"])
    tensors = training_tensors(model, optimizer, buffers)
    with torch.no_grad(), shards.open_shards(path) as (read, shapes):
        if differing := sorted({name for name in set(tensors) ^ set(shapes) if not name.startswith("optimizer.")}):
            raise UserError(f"{path} was trained with other trainable parameters ({', '.join(differing[:4])} …); choose another run.dir")
        if other := [
            f"{name} is {shapes[name]}, now {tuple(tensor.shape)}" for name, tensor in tensors.items() if shapes[name] != tensor.shape
        ]:
            raise UserError(f"{path} holds other shapes ({'; '.join(other[:4])}); choose another run.dir")
        for name, tensor in tensors.items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            local.copy_(read(name, local_slices(tensor)[1]))
