"""Checkpoints: asynchronous sharded saves with an atomic commit, verification by digests, finding the newest valid one, and pruning.

`runs/<name>/checkpoints/step-00000120/` contains one safetensors file per rank, `config.yaml`, `state.json`, and `manifest.json` with size
and digest of every file, including itself. There is no pointer to the newest checkpoint: it is the newest folder whose manifest verifies.
Nothing is ever overwritten. docs/checkpoints.md describes the protocol.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from overtone.finetune.checkpointing import rank_shards, sample_measurement_records, staging_buffers
from overtone.finetune.checkpointing.checkpoint_metadata import FORMAT, parse_json, parse_manifest, parse_state
from overtone.finetune.checkpointing.late_evaluations import complete_state
from overtone.finetune.checkpointing.retention import NEWEST_OF_SPREAD, BestBy, Keep, choose_best, choose_spread, is_comparable
from overtone.finetune.data.mixture import describe_changes
from overtone.finetune.distributed.process_group import World, gather_from_ranks, run_on_all, run_on_main, sum_over_ranks
from overtone.finetune.distributed.sharding import local_shard, plain_name
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import optimizers
from overtone.finetune.modeling.loading import local_slices
from overtone.finetune.monitoring.loss_spikes import check_checkpoint_tensors
from overtone.finetune.monitoring.run_records import CHECKPOINTS
from overtone.finetune.recipe import CheckpointState
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.hub_download import COMMIT
from overtone.finetune.storage.json_schema import shorten_value

STEP_FOLDER = re.compile(r"step-(\d{8})")
SAME_RUN = ("recipe", "data", "base", "order", "lora", "experts", "quantization", "optimizer", "recipe_state", "added", "base_distance")
"""Keys of `state.json` that identify the run of a checkpoint."""
LIMITS = {
    errno.EFBIG: ", but the process must not write files of that size; raise the limit (ulimit -f)",
    errno.EMFILE: ", but the process must not open more files; raise the limit (ulimit -n)",
    errno.EDQUOT: ", but your quota is used up",
}
"""Explanations of disk errors that free space does not explain."""


def training_tensors(model: nn.Module, optimizer: torch.optim.AdamW, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of a checkpoint by their names in it: trained parameters, optimizer moments, and the recipe's buffers.

    Frozen parameters are not included: they are in the base model, whose digest is in `state.json`.
    """
    trained = {plain_name(name): parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    own = dict(model.named_buffers())
    state = optimizers.sharded_state(optimizer)
    named = {f"optimizer.{kind}.{name}": moment for name, parameter in trained.items() for kind, moment in state[parameter].items()}
    return {**trained, **named, **{name: own[name] for name in buffers}}


def folder_of(run_dir: Path) -> Path:
    return run_dir / CHECKPOINTS


@dataclass(frozen=True)
class _Pending:
    folder: Path
    step: int
    needed: int
    """Bytes of all ranks' tensors."""
    began: float
    documents: dict[str, str]
    written: Future[rank_shards.WrittenShard]


class Saver:
    """Writes one checkpoint at a time, on its own thread, from a copy in host memory; the buffer of that copy is kept between saves.

    The thread only writes this rank's file. All collectives run on the main thread, so they cannot interleave with those of training.
    A disk failure raises `UserError` on all ranks; earlier checkpoints stay valid, and the next save may be tried. Without enough host
    memory for the copy, each save blocks until it is written, as without `asynchronous`. `say` receives a log line about that memory.
    """

    def __init__(self, world: World, run_dir: Path, keep: Keep, asynchronous: bool, say: Callable[[str], None] = lambda _: None) -> None:
        self._world, self._folder, self._keep, self._asynchronous = world, folder_of(run_dir), keep, asynchronous
        self._say = say
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._pending: _Pending | None = None
        self._writing: Future[rank_shards.WrittenShard] | None = None
        """The last write, even if its checkpoint failed: it reads the staging buffer until it ends."""
        self._staging: staging_buffers.Staging | None = None
        self.seconds = 0.0
        """Duration of the last save on this rank, from the copy to the commit, without the training in between."""

    def begin(self, step: int, tensors: Mapping[str, Tensor], state: dict[str, Any], config: str) -> None:
        """Copy this rank's part and start writing it. Collective: call on every rank."""
        self.finish()
        began = time.monotonic()
        parts = rank_shards.select_own_parts(tensors, self._world.rank, self._world.size)
        needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())  # full sizes: each value is written once
        temporary = Path(run_on_main(self._world, lambda: str(self._make_room(step, needed))))
        path = temporary / f"rank-{self._world.rank + 1:05d}-of-{self._world.size:05d}.safetensors"
        documents = {"config.yaml": config, "state.json": json.dumps({**state, "format": FORMAT, "step": step}, indent=1, allow_nan=False)}
        if self._asynchronous and self._staging is None:
            self._staging, account = staging_buffers.allocate_staging(self._world, parts)
            self._asynchronous = self._staging is not None
            self._say(account)
        if self._writing is not None:
            wait([self._writing])
        copied: Callable[[], None] | None = None
        if self._staging is not None:
            parts, copied = self._staging.copy(parts, volatile=state.get("buffers", ()))
        self._writing = self._thread.submit(self._write, path, parts, copied)
        self._pending = _Pending(temporary, step, needed, began, documents, self._writing)
        if self._staging is None:
            wait([self._writing])  # `finish` reports a failure to all ranks and removes the folder

    def before_update(self) -> None:
        """Prevent the next update from overwriting tensors that are still being copied. Call before each optimizer update."""
        if self._staging is not None:
            self._staging.fence()

    def poll(self) -> Path | None:
        """Commit the checkpoint if all ranks have written it; returns its folder, otherwise None. Collective: call on every rank."""
        if self._pending is None:
            return None
        done = sum_over_ranks(self._world, [float(self._pending.written.done())])[0]
        return self.finish() if done == self._world.size else None

    def finish(self) -> Path | None:
        """Wait for the pending write and commit it; returns the committed folder. Collective: call on every rank."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        try:
            written = run_on_all(self._world, lambda: self._result(pending))
            ready = time.monotonic()
            own = [f"rank-{self._world.rank + 1:05d}-of-{self._world.size:05d}.safetensors", asdict(written), self._poisoned]
            reports = gather_from_ranks(self._world, own)
            check_checkpoint_tensors(pending.step, [name for *_, poisoned in reports for name in poisoned])
            entries = {name: entry for name, entry, _ in reports}
            committed = Path(run_on_main(self._world, lambda: str(self._commit(pending, entries))))
            self.seconds = self._written_at - pending.began + time.monotonic() - ready
            return committed
        except BaseException:
            if self._world.is_main:
                with contextlib.suppress(OSError):  # then the next save, or the next launch, removes it
                    files.discard(pending.folder)
            raise

    def close(self) -> None:
        self._thread.shutdown()
        if self._staging is not None:
            self._staging.release()
            self._staging = None

    def _write(
        self, path: Path, parts: Mapping[str, rank_shards.TensorShard], copied: Callable[[], None] | None
    ) -> rank_shards.WrittenShard:
        """Runs on the saver's thread. `copied` blocks until the staged copy is complete."""
        if copied is not None:
            copied()
        written = rank_shards.write_shard(path, parts)
        self._poisoned = [name for name, part in parts.items() if not rank_shards.is_finite(part.value)]
        self._written_at = time.monotonic()
        return written

    def _make_room(self, step: int, needed: int) -> Path:
        files.require_space(self._folder, needed + 2**20, f"the checkpoint of step {step}")
        with _explain_disk_errors(self._folder, step, needed):
            files.remove_unfinished(self._folder)
            return files.fresh_folder(self._folder, f"step-{step:08d}")

    def _result(self, pending: _Pending) -> rank_shards.WrittenShard:
        with _explain_disk_errors(self._folder, pending.step, pending.needed):
            return pending.written.result()

    def _commit(self, pending: _Pending, entries: dict[str, JsonValue]) -> Path:
        final = self._folder / f"step-{pending.step:08d}"
        with _explain_disk_errors(self._folder, pending.step, pending.needed):
            for name, text in pending.documents.items():
                written = files.write_blocks(pending.folder / name, [text.encode()])
                entries[name] = {"bytes": written.bytes, "digest": written.digest}
            manifest = seal({"format": FORMAT, "step": pending.step, "files": entries})
            files.write_in_place(pending.folder / "manifest.json", manifest)
            if final.exists() and find_problem(final) is not None:
                files.discard(final)  # it was skipped as damaged when the run resumed, and the run has reached this step again
            files.commit_folder(pending.folder, final)
            prune(self._folder, self._keep, final)
        return final


@contextlib.contextmanager
def _explain_disk_errors(folder: Path, step: int, needed: int) -> Iterator[None]:
    """Convert a disk error to a `UserError` with the needed and the free bytes."""
    try:
        yield
    except (OSError, UserError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise UserError(
            f"saving the checkpoint of step {step} failed ({error}); it needs {needed:,} bytes at {folder}, "
            f"{files.free_bytes(folder):,} are free{LIMITS.get(cause.errno or 0, '')}; earlier checkpoints are unchanged"
        ) from error


def seal(content: Mapping[str, JsonValue]) -> bytes:
    """Return a manifest as JSON, with a digest of its own content."""
    own = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "digest": own}, indent=1).encode()


def unseal(data: bytes) -> dict[str, JsonValue]:
    """Return the content of a manifest written by `seal`. Raises `ValueError` if any byte differs, including white space."""
    content = parse_json(data)
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object, found {shorten_value(content)}")
    content = {key: value for key, value in content.items() if key != "digest"}
    if seal(content) != data:
        raise ValueError("it does not match its own digest")
    return content


def prune(folder: Path, keep: Keep, committed: Path) -> list[Path]:
    """Remove old checkpoints; returns the removed folders. Keeps the newest `keep` up to `committed` (or those that are spread over the
    run), the best one, and those whose samples are still to be measured.

    Folders of later steps are ignored: the run skipped them as damaged, and counting them would remove the checkpoint that was just saved.
    Unreadable checkpoints and those of other runs are neither counted nor removed.
    """
    states = {path.name: state for path in list_checkpoints(folder) if (state := _read_state_or_none(path)) is not None}
    gone = [folder / name for name in choose_surplus(states, keep, committed.name, folder.parent)]
    for path in gone:
        files.discard(path)
    return gone


def choose_surplus(states: Mapping[str, CheckpointState], keep: Keep, committed: str, run_dir: Path) -> list[str]:
    """Return the names of the checkpoints that `prune` removes. `states`: folder name → content of `state.json`; `run_dir`: where the
    measurements of samples are."""
    own = states.get(committed)
    if own is None:  # a remote one may be temporarily unreachable
        return []
    found = sorted((name for name, state in states.items() if name <= committed and not find_differences(state, own)), reverse=True)
    best_by = BestBy.parse(own["best_by"])
    candidates = {name: states[name] for name in found}
    if best_by.is_sampled:
        candidates = sample_measurement_records.add_measurements(candidates, run_dir, own["sampling"])
    # The best on other validation rows, from before they were changed, is not known to be good on these.
    kept = {choose_best({name: state for name, state in candidates.items() if is_comparable(state, own, best_by)}, best_by)}
    if best_by.is_sampled:
        kept |= {name for name, state in candidates.items() if state["sample_due"] and state["sampling"] == own["sampling"]}
    if keep == "spread":
        kept |= {f"step-{step:08d}" for step in choose_spread(step_of(Path(name)) for name in found)}
    return [name for name in found[NEWEST_OF_SPREAD if keep == "spread" else keep :] if name not in kept]


def list_checkpoints(folder: Path) -> list[Path]:
    """Committed checkpoint folders, the newest first."""
    return sorted((path for path in folder.glob("step-*") if STEP_FOLDER.fullmatch(path.name)), reverse=True)


def read_metric(folder: Path, best_by: BestBy) -> dict[int, float]:
    """Step → value of the metric, of the committed checkpoints that were evaluated at their step, on the validation rows of the newest, or
    whose samples were measured with its settings."""
    states = {path.name: state for path in list_checkpoints(folder) if (state := _read_state_or_none(path)) is not None}
    if not states:
        return {}
    newest = states[max(states)]
    if best_by.is_sampled:
        states = sample_measurement_records.add_measurements(states, folder.parent, newest["sampling"])
    scores = {state["step"]: best_by.score(state) for state in states.values() if is_comparable(state, newest, best_by)}
    return {step: best_by.rank(score) for step, score in scores.items() if score is not None}


def is_sample_due(path: Path, settings: str | None) -> bool:
    """Return whether a checkpoint was saved to be measured by samples with these settings. False if its state cannot be read."""
    state = _read_state_or_none(path)
    return state is not None and state["sample_due"] and state["sampling"] == settings


def link_snapshot(committed: Path, folder: Path) -> Path:
    """Hard-link a checkpoint into `folder` and return that copy, which later saves do not prune."""
    for path in committed.iterdir():
        files.link_into(path, folder / committed.name / path.name)
    return folder / committed.name


def step_of(path: Path) -> int:
    """Return the optimizer step in a checkpoint folder's name."""
    return int(path.name.removeprefix("step-"))


def find_differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys of `SAME_RUN` in which two states differ; none if they belong to the same run. Paths may differ: a base is identified
    by its content, and a recipe by the name of its folder."""
    found = [key for key in SAME_RUN if key not in ("recipe", "data", "base") and was[key] != now[key]]
    if any(was["data"][key] != now["data"][key] for key in ("digest", "rows", "positions")):
        found.insert(0, "data")
    if Path(was["recipe"]).name != Path(now["recipe"]).name:
        found.insert(0, "recipe")
    if is_other_base(was["base"], now["base"]):
        found.append("base")
    return found


def is_other_base(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the content of two bases differs. If both are the same commit on the hub, a file of weights that only one of them has
    does not count as a difference: a commit never changes, but another program may have downloaded weights into the same cache that are not
    loaded."""
    files_was, files_now = was["files"], now["files"]
    if was["revision"] == now["revision"] and COMMIT.fullmatch(was["revision"] or ""):
        weights = {name for name in files_was.keys() ^ files_now.keys() if name.endswith(".safetensors") and "/" not in name}
        return any(files_was.get(name) != files_now.get(name) for name in (files_was.keys() | files_now.keys()) - weights)
    return bool(files_was != files_now)


def list_changed_files(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the differences between the files of two bases, one phrase per file."""
    names = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    return [f"{name} {'was added' if name not in was else 'was removed' if name not in now else 'was changed'}" for name in names]


def describe_difference(key: str, was: Any, now: Any) -> str:
    """Describe a key of `SAME_RUN` that differs in one line: its old and new value; for a mapping only the parts that differ, for a base
    the changed files, for a mixture the changed sources."""
    if key == "data" and (was["sources"] or now["sources"]):
        mixed = [bool(data["sources"]) for data in (was, now)]
        if mixed != [True, True]:
            return f"data was {describe_mixture(was)}, now {describe_mixture(now)}"
        return f"data.mix: {'; '.join(describe_changes(was['sources'], now['sources']))}"
    if key == "base":
        named = ", ".join(list_changed_files(was["files"], now["files"]))
        added = sorted(set(now["files"]) - set(was["files"]))
        away = f" (move {', '.join(added)} out of that folder)" if added and Path(now["source"]).is_dir() else ""
        digests = was["digest"] != now["digest"]
        before, after = describe_base(was, digests), describe_base(now, digests)
        return f"base {after if before == after else f'was {before}, now {after}'}: {named}{away}"
    if key == "experts":
        before, after = (f"{len(each)} ({each[0]['name']}, …)" if each else "none" for each in (was, now))
        return f"adapters of experts that are one parameter were {before}, now {after} (use the transformers version of the start)"
    if key == "base_distance":
        before, after = ("set" if each else "0" for each in (was, now))
        return f"train.base_distance was {before}, now {after}"
    return "{} was {}, now {}".format(key, *keep_differing(was, now))


def keep_differing(was: Any, now: Any) -> tuple[Any, Any]:
    """Return both values, of mappings only the parts that differ."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return was, now
    parts = {name: keep_differing(was.get(name), now.get(name)) for name in {**was, **now} if was.get(name) != now.get(name)}
    return {name: part for name, (part, _) in parts.items()}, {name: part for name, (_, part) in parts.items()}


def describe_mixture(data: dict[str, Any]) -> str:
    """Return the training data of a run in a few words."""
    if not data["sources"]:
        return f"one file ({data['digest'][:12]}…)"
    named = (f"{source['name']} ({source['share']})" for source in data["sources"])
    return f"the mixture of {', '.join(named)}"


def describe_base(base: dict[str, Any], with_digest: bool) -> str:
    """Source, revision and, if wanted, digest of a base model."""
    revision = f"@{base['revision']}" if base["revision"] else ""
    digest = f" ({base['digest'][:12]}…)" if with_digest else ""
    return f"{base['source']}{revision}{digest}"


def _read_state_or_none(path: Path) -> CheckpointState | None:
    try:
        return read_state(path)
    except UserError:
        return None


def read_state(path: Path) -> CheckpointState:
    """`state.json` of a checkpoint, validated as in finetune/checkpointing/checkpoint_metadata.py, with its late evaluation.

    Raises `UserError` with the first invalid key.
    """
    try:
        data = input_files.read_bytes(path / "state.json")
        found = parse_json(data)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a checkpoint: state.json cannot be read ({error}); give a run folder or one of its checkpoints/step-* folders"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise format_error(path, found.get("format") if isinstance(found, dict) else None)
    try:
        return complete_state(path, parse_state(data))
    except ValueError as error:
        raise UserError(f"{path / 'state.json'}: {error}; the file was not written by training, so choose another checkpoint") from None


def format_error(path: Path, found: object) -> UserError:
    return UserError(
        f"{path}: checkpoint format {shorten_value(found)}, but this version reads format {FORMAT}; "
        "use the version that wrote it, or a newer one"
    )


def find_problem(path: Path, *, with_moments: bool = True) -> str | None:
    """Return why a checkpoint must not be used, or None if every file matches the manifest and is valid.

    `with_moments` False: of the shards, compare the sizes and what precedes the optimizer's moments, which is all that an export reads: a
    third of a checkpoint of full fine-tuning.
    """
    try:
        content = unseal(input_files.read_bytes(path / "manifest.json"))
        if content.get("format") != FORMAT:
            return f"format {shorten_value(content.get('format'))}, but this version reads format {FORMAT}"
        manifest = parse_manifest(content)
    except (OSError, ValueError) as error:
        return f"manifest.json cannot be read ({type(error).__name__}: {error})"
    if manifest["step"] != step_of(path):
        return f"manifest.json belongs to step {manifest['step']}"
    listed = manifest["files"]
    present = {file.name for file in path.iterdir()} - {"manifest.json"}
    if present != set(listed):
        return f"files differ from the manifest: {', '.join(sorted(present ^ set(listed)))}"
    for name, entry in listed.items():
        front = None if with_moments else entry["weights_bytes"]
        digest = entry["digest"] if front is None else entry["weights_digest"]
        try:
            if (path / name).stat().st_size != entry["bytes"] or files.digest(path / name, front) != digest:
                return f"{name} does not match its digest"
        except OSError as error:
            return f"{name} cannot be read ({error})"
    try:
        if (step := parse_state(input_files.read_bytes(path / "state.json"))["step"]) != step_of(path):
            return f"state.json belongs to step {step}"
    except (OSError, ValueError) as error:
        return f"state.json cannot be read ({error})"
    return None


def refuse_newer(path: Path) -> None:
    """Raises `UserError` for a complete checkpoint of a later format: skipping it would silently repeat its training."""
    with contextlib.suppress(OSError, ValueError):  # damaged: skipped with a message
        found = unseal(input_files.read_bytes(path / "manifest.json")).get("format")
        if isinstance(found, int) and found > FORMAT:
            raise format_error(path, found)


def find_newest_valid(run_dir: Path, *, with_moments: bool = True) -> tuple[Path | None, list[str]]:
    """Return the newest valid checkpoint, and the problems of those that were skipped. `with_moments`: see `find_problem`.

    Raises `UserError` if a later version of this program has written checkpoints here.
    """
    passed_over: list[str] = []
    for path in list_checkpoints(folder_of(run_dir)):
        refuse_newer(path)
        problem = find_problem(path, with_moments=with_moments)
        if problem is None:
            return path, passed_over
        passed_over.append(f"{path}: {problem}")
    return None, passed_over


def find(place: Path, step: int | None = None) -> Path:
    """Return a checkpoint with verified weights, given a run folder (the newest valid one, or that of `step`) or a checkpoint folder.

    The optimizer's moments are not read: a checkpoint in which they alone are damaged can be exported, and only a resumed run skips it.
    Raises `UserError` with the problem and the checkpoints that exist.
    """
    if (named := STEP_FOLDER.fullmatch(place.name)) and place.is_dir():
        if step not in (None, int(named[1])):
            raise UserError(f"{place} is of step {int(named[1])}, but step {step} was requested; give the run's folder, or drop the step")
        chosen = place
    elif step is not None:
        chosen = folder_of(place) / f"step-{step:08d}"
        if not chosen.is_dir():
            there = ", ".join(str(step_of(path)) for path in list_checkpoints(folder_of(place)))
            raise UserError(f"{place} has no checkpoint of step {step}; existing steps: {there or 'none'}")
    else:
        newest, passed_over = find_newest_valid(place, with_moments=False)
        if newest is None:
            raise UserError("; ".join([f"{place} contains no valid checkpoint", *passed_over]) + "; give a run folder of finetune/train.py")
        return newest
    if problem := find_problem(chosen, with_moments=False):
        raise UserError(f"{chosen} is damaged: {problem}; choose another step")
    return chosen


def restore(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, buffers: Mapping[str, Tensor]) -> None:
    """Load a verified checkpoint into this rank's shards, whatever number of ranks wrote it. Each rank reads only its own slices; not
    collective."""
    optimizers.restore_state(optimizer, read_state(path)["optimizer_steps"])
    tensors = training_tensors(model, optimizer, buffers)
    with torch.no_grad(), rank_shards.open_shards(path) as (read, shapes):
        if differing := sorted(set(tensors) ^ set(shapes), key=lambda name: (rank_shards.is_moment(name), name)):
            raise UserError(f"{path} has other trainable parameters ({', '.join(differing[:4])} …); choose another run.dir")
        if other := [
            f"{name} is {shapes[name]}, now {tuple(tensor.shape)}" for name, tensor in tensors.items() if shapes[name] != tensor.shape
        ]:
            raise UserError(f"{path} has parameters of other shapes ({'; '.join(other[:4])}); choose another run.dir")
        for name, tensor in tensors.items():
            local_shard(tensor).copy_(read(name, local_slices(tensor)[1]))
