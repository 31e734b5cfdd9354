"""Generation during training: answers to a few fixed prompts, from committed checkpoints, never from the live shards.

A separate process exports the checkpoint of that step into a temporary folder and generates there: on the GPU of rank 0 if it has room
beside the training, otherwise on one CPU core. The ranks cannot generate together, since their answers would differ in length. Training
does not wait for the answers.

If `checkpoint.best_by` is a metric of the answers (`sample/NAME`), every due checkpoint is measured, in the order of the steps, and none is
passed over. Otherwise only the newest one is: answers that come too late are of no use.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from overtone.finetune.checkpointing import sample_measurement_records
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.checkpointing.sample_measurement_records import SampleMeasurement, assess_measurements
from overtone.finetune.config import Config, Sample
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import CHECKPOINTS, MEASURED, read_log
from overtone.finetune.recipe import Answer, MeasuredAnswers, Recipe
from overtone.finetune.storage import files
from overtone.finetune.storage.strict_json import read_object
from overtone.finetune.training.sample_metrics_preparation import SamplePlan, unknown_metric
from overtone.finetune.training.sampling_process import KINDS, SamplingProcess, Share

if TYPE_CHECKING:
    import torch

    from overtone.finetune.monitoring.run_logger import Events
    from overtone.finetune.monitoring.stop_requests import StopRequests

NAME = "sample"
"""Name of temporary folders in a run's cache."""
SECONDS_BETWEEN_LOOKS = 0.1
GIB = 2**30
CONTEXT = GIB
"""Bytes of a process on a GPU besides tensors: CUDA's context and libraries' workspaces."""
POSITIONS = 4096
"""Upper bound on the tokens of a prompt with its answer, for the size of the key-value cache."""
CACHED = 2
"""Bytes of a number in the key-value cache: bf16."""
WORKING = 0.5
"""Share of weights and cache that is allowed for all other tensors. An estimate."""
RESERVE = 0.1
"""Share of a GPU's memory that must stay free for training, whose largest micro-batch may be yet to come."""


def is_configured(sample: Sample) -> bool:
    """Return whether the config's `sample` section holds anything."""
    return sample.every is not None or bool(sample.prompts) or sample.asr is not None or sample.speaker_model is not None


def check(sample: Sample, best_by: BestBy, name: str, recipe: Recipe) -> None:
    """Raises `UserError` for a `sample` section that could produce no answers. `name`: the name of the recipe."""
    if best_by.is_sampled and sample.every is None:
        raise UserError(
            f"checkpoint.best_by: {best_by.metric} is a metric of samples, but none are generated; give sample.every and sample.prompts"
        )
    if not is_configured(sample):
        return
    if recipe.inference.sample is None:
        raise UserError(f"sample: the recipe {name} cannot answer prompts; remove the section")
    for key in ("asr", "speaker_model"):
        if getattr(sample, key) is not None and recipe.inference.metrics is None:
            raise UserError(f"sample.{key}: the recipe {name} makes no speech; remove it")
    if sample.every is None:
        raise UserError("sample.prompts would never be answered: give sample.every, or remove the section")
    if not sample.prompts:
        raise UserError(f"sample.every: {sample.every}, but there are no prompts: give sample.prompts")


@dataclass(frozen=True)
class GpuMemory:
    """The GPU of rank 0, at one moment."""

    name: str
    """The GPU's name in CUDA_VISIBLE_DEVICES."""
    free: int
    """Bytes that are not allocated by any process."""
    total: int


def measure_gpu(device: torch.device, environ: Mapping[str, str]) -> GpuMemory:
    """Return the free memory of a GPU now, and its name in CUDA_VISIBLE_DEVICES."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    index = device.index or 0
    visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return GpuMemory(visible[index] if index < len(visible) and visible[index] else str(index), free, total)


def has_room(gpu: GpuMemory, needed: int) -> bool:
    """Return whether `needed` bytes leave enough free for training."""
    return gpu.free - needed >= RESERVE * gpu.total


def bytes_on_gpu(base: Path, folders: Sequence[str], prompts: int) -> int:
    """Return an estimate of the bytes that answering takes: weights (as large as those of the `base`, at its top and in its `folders`), the
    key-value cache of all prompts at once, and an allowance."""
    weights = sum(path.stat().st_size for folder in (base, *(base / name for name in folders)) for path in folder.glob("*.safetensors"))
    cache = prompts * POSITIONS * cache_bytes(read_object(base / "config.json"))
    return CONTEXT + int((1 + WORKING) * (weights + cache))


def cache_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of the keys and values of one token, in all decoders that a `config.json` describes, nested ones included."""
    size = 0
    for decoder in _iterate_objects(config):
        if (heads := decoder.get("num_attention_heads")) and "num_hidden_layers" in decoder:
            head_size = decoder.get("head_dim") or decoder.get("hidden_size", 0) // heads
            size += 2 * decoder["num_hidden_layers"] * (decoder.get("num_key_value_heads") or heads) * head_size * CACHED
    return size


def _iterate_objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for child in value.values():
            yield from _iterate_objects(child)


class Sampler:
    """While open, answers the prompts after each step of `sample.every`, and records what is measured of the answers. Works on rank 0
    alone; nothing here is collective.

    A failure is logged and does not stop the run. After a failure on the GPU the CPU retries, and takes all later rounds. The process
    ends with this object, and with this process, however that ends.
    """

    def __init__(
        self,
        config: Config,
        total: int,
        events: Events,
        is_main: bool,
        device: torch.device,
        needed: Callable[[], int] = lambda: 0,
        plan: SamplePlan | None = None,
        done: int = 0,
    ) -> None:
        """`device`: where rank 0 trains. If that is a GPU with room for `needed()` bytes, the answers are generated there. `done`: the step
        from which the run resumes."""
        self._config, self._total, self._events, self._done = config, total, events, done
        self._works = is_main and config.sample.every is not None
        self._device, self._needed = device if device.type == "cuda" else None, needed
        self._plan = plan or SamplePlan()
        self._reported: set[str] = set()
        """Devices that are already in the console's output."""
        self._due: deque[int] = deque()
        """The steps to answer next; at most one, unless a metric of the answers decides."""
        self._child: SamplingProcess | None = None
        self._measured: dict[int, SampleMeasurement] = {}

    def __enter__(self) -> Sampler:
        if self._works:
            files.remove_unfinished(files.make_folder(self._cache), NAME)
            self._restore()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._child is not None:
            self._events.note("sampling stopped", self._child.step)
            self._child.close()

    def after_step(self, step: int) -> None:
        """Log finished answers, and start the process of a due step. Never waits."""
        if not self._works:
            return
        assert self._config.sample.every is not None
        if step % self._config.sample.every == 0 or step == self._total:
            if self._due and not self._plan.decides:
                self._pass_over(self._due.popleft(), "the answers before it took too long, or it was not saved")
            self._due.append(step)
        self.advance()

    def finish(self, requests: StopRequests) -> None:
        """Wait for the last answers, unless a stop is requested."""
        while self.advance() and requests.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def assess(self) -> tuple[int, int, float | None, bool]:
        """Return the state of the measurements: number of checkpoints that are still to be measured, number of measured samples since
        the best one, its value, and whether `train.patience` is used up. Raises `UserError` if `checkpoint.best_by` is not among the
        metrics."""
        best_by = BestBy.parse(self._config.checkpoint.best_by)
        standing = assess_measurements(self._measured.values(), best_by, self._config.train.patience)
        found = dict.fromkeys(name for one in self._measured.values() for name in one.metrics)
        if standing.value is None and found and self._plan.prepared is None:  # otherwise the name was checked before training
            raise unknown_metric(best_by, tuple(found))
        return len(self._due) + (self._child is not None), standing.stale, standing.value, standing.ended

    def advance(self, last: bool = False) -> bool:
        """Log what is finished, start what can start; returns whether a process is running. `last`: no save is in progress, so a
        checkpoint that is missing now was not saved."""
        if self._child is not None and self._child.has_ended():
            self._log_answers(self._child)
            self._child = None
        while self._child is None and self._due and self._start(self._due[0], last):
            self._due.popleft()
        return self._child is not None

    @property
    def _cache(self) -> Path:
        return self._config.run.dir / "cache"

    def _restore(self) -> None:
        """Read the measurements of earlier launches, and list the checkpoints that still have none."""
        from overtone.finetune.checkpointing import checkpoint

        run_dir = self._config.run.dir
        for step in sample_measurement_records.discard_later(run_dir, self._done):
            self._pass_over(step, f"its measurement is discarded, since the run resumes from step {self._done}")
        self._measured = sample_measurement_records.read_measurements(run_dir, self._plan.digest)
        logged = set[int]()
        with contextlib.suppress(OSError):  # no log
            logged = {event["step"] for event in read_log(self._events.log_path) if event["event"] == MEASURED}
        for step, one in self._measured.items():
            if step not in logged and one.problem is None:  # killed between the two writes
                self._events.measured(step, one.metrics)
        if self._plan.decides:
            for path in reversed(checkpoint.list_checkpoints(checkpoint.folder_of(run_dir))):
                step = checkpoint.step_of(path)
                if step <= self._done and step not in self._measured and checkpoint.is_sample_due(path, self._plan.digest):
                    self._due.append(step)

    def _start(self, step: int, last: bool) -> bool:
        """Start the process of a step; returns whether this step is done with, because it was started or cannot be."""
        from overtone.finetune.checkpointing import checkpoint

        committed = checkpoint.folder_of(self._config.run.dir) / f"step-{step:08d}"
        if not committed.is_dir():
            later = [path for path in checkpoint.list_checkpoints(committed.parent) if path.name > committed.name]
            if last or (later and self._plan.decides):
                self._pass_over(step, "it was not saved")
            return last or bool(later and self._plan.decides)
        try:
            snapshot = checkpoint.link_snapshot(committed, files.fresh_folder(self._cache, NAME))
            prompts, gpu = self._config.sample.prompts, self._choose_gpu()
            self._child = SamplingProcess(step, snapshot, self._config.recipe, prompts, gpu, self._plan.prepared)
        except (OSError, UserError) as error:  # its temporary files are removed at the next start
            self._fail(step, str(error))
        return True

    def _pass_over(self, step: int, problem: str) -> None:
        self._events.note("sampling passed over", step, problem=problem)

    def _choose_gpu(self) -> Share | None:
        """The share of the run's GPU that a process may take now; None: it must compute on the CPU."""
        if self._device is None:
            return None
        try:
            needed, gpu = self._needed(), measure_gpu(self._device, os.environ)
        except (UserError, OSError, TypeError, ValueError) as error:  # a config.json of values that no one expects stops no run
            self._report_place(f"samples are generated on one CPU core: the GPU memory that they need is not known ({error})")
            return None
        figures = f"they need up to {needed / GIB:.1f} GiB; {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB are free"
        if has_room(gpu, needed):
            self._report_place(f"samples are generated on GPU {gpu.name}, beside the steps: {figures}")
            return Share(gpu.name, needed / gpu.total)
        self._report_place(
            f"samples are generated on one CPU core: on GPU {gpu.name} {figures}, of which {RESERVE:.0%} are reserved for training"
        )
        return None

    def _report_place(self, text: str) -> None:
        """Print it once for each device, though the figures may change."""
        place = text.partition(":")[0]
        if place not in self._reported:
            self._reported.add(place)
            self._events.say(text)

    def _log_answers(self, child: SamplingProcess) -> None:
        try:
            answers, found = child.answers()
            pairs = [*zip(self._config.sample.prompts, answers, strict=True)]
            folder = self._config.run.dir / "samples" / f"step-{child.step:08d}"
            sounds = [_save_media(folder / str(number), answer) for number, answer in enumerate(answers, 1)]
            self._events.answers(child.step, pairs, sounds)
            if found.metrics or self._plan.decides:
                self._record(child, found, pairs)
        except (OSError, ValueError, UserError) as error:
            problem = child.last_line() or str(error)
            if child.share is None:
                self._fail(child.step, problem)
            else:
                self._device = None
                if self._plan.decides or not self._due:
                    self._due.appendleft(child.step)
                self._events.say(f"warning: samples of step {child.step} failed on GPU {child.share.gpu}, the CPU takes over: {problem}")
                self._events.note("sampling moved", child.step, problem=problem)
        child.close()

    def _record(self, child: SamplingProcess, found: MeasuredAnswers, pairs: Sequence[tuple[str, Answer]]) -> None:
        """Write what was measured, then log it."""
        details = found.details or [{} for _ in pairs]
        texts = [
            {"prompt": prompt, "answer": answer.text, **answer.numbers, **own} for (prompt, answer), own in zip(pairs, details, strict=True)
        ]
        assert self._plan.digest is not None
        one = SampleMeasurement(step=child.step, manifest=child.manifest, settings=self._plan.digest, metrics=found.metrics)
        sampling = {} if self._plan.prepared is None else self._plan.prepared.settings
        sample_measurement_records.write_measurement(self._config.run.dir, one, {"texts": texts, "sampling": sampling})
        self._measured[one.step] = one
        self._events.measured(one.step, one.metrics)
        if one.metrics:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in one.metrics.items())
            self._events.say(f"step {one.step}: samples: {shown}")

    def _fail(self, step: int, problem: str) -> None:
        self._events.say(f"warning: no answers of step {step}: {problem}; training continues")
        self._events.note("sampling failed", step, problem=problem)
        if self._plan.decides and self._plan.digest is not None:
            committed = self._config.run.dir / CHECKPOINTS / f"step-{step:08d}"
            with contextlib.suppress(OSError, UserError):  # of a full disk: then the next launch tries again
                manifest = files.digest(committed / "manifest.json")
                one = SampleMeasurement(step=step, manifest=manifest, settings=self._plan.digest, problem=problem)
                self._measured[step] = one
                sample_measurement_records.write_measurement(self._config.run.dir, one, {})


def _save_media(place: Path, answer: Answer) -> Path | None:
    """Write audio and picture of an answer to `place` with their endings; returns the path of the audio, None for text alone."""
    for kind, data in zip(KINDS, (answer.sound, answer.picture), strict=True):
        if data:
            files.make_folder(place.parent)
            files.write_bytes(place.with_suffix(f".{kind}"), data)
    return place.with_suffix(f".{KINDS[0]}") if answer.sound else None
