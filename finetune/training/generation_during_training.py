"""Generation during training: answers to a few fixed prompts, from committed checkpoints, never from the live shards.

A separate process exports the checkpoint of that step into a temporary folder and generates there: on the GPU of rank 0 if it has room
beside the training, otherwise on one CPU core. The ranks cannot generate together, since their answers would differ in length. Training
does not wait for the answers.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from finetune.config import Config
from finetune.errors import UserError, exit_code
from finetune.hardware import cuda_allocator
from finetune.recipe import Answer, Recipe, find_recipe, load_recipe
from finetune.storage import files
from finetune.storage.strict_json import read_object

if TYPE_CHECKING:
    import torch

    from finetune.monitoring.run_logger import Events
    from finetune.monitoring.stop_requests import StopRequests

NAME = "sample"
"""Of temporary folders in a run's cache."""
ANSWERS, KINDS = "answers.json", ("flac", "png")
"""Files that the process writes: texts and numbers, and for each answer its audio and its picture, empty if it has none."""
LAUNCHER_PREFIXES = (
    "ACCELERATE_",
    "FSDP_",
    "TORCHELASTIC_",
    "NCCL_",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
)
"""Prefixes of the variables by which a launcher makes a process one of several ranks."""
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
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


def is_configured(config: Config) -> bool:
    """Whether the config's `sample` section holds anything."""
    return config.sample.every is not None or bool(config.sample.prompts)


def check(config: Config, recipe: Recipe) -> None:
    """Raises `UserError` for a `sample` section that could produce no answers."""
    if not is_configured(config):
        return
    if recipe.inference.sample is None:
        raise UserError(f"sample: the recipe {config.recipe} cannot answer prompts; remove the section")
    if config.sample.every is None:
        raise UserError("sample.prompts would never be answered: give sample.every, or remove the prompts")
    if not config.sample.prompts:
        raise UserError(f"sample.every: {config.sample.every}, but there are no prompts: give sample.prompts")


@dataclass(frozen=True)
class GpuMemory:
    """The GPU of rank 0, at one moment."""

    name: str
    """In CUDA_VISIBLE_DEVICES."""
    free: int
    """Bytes that are not allocated by any process."""
    total: int


def measure_gpu(device: torch.device, environ: Mapping[str, str]) -> GpuMemory:
    """The free memory of a GPU now, and its name in CUDA_VISIBLE_DEVICES."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    index = device.index or 0
    visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return GpuMemory(visible[index] if index < len(visible) and visible[index] else str(index), free, total)


def has_room(gpu: GpuMemory, needed: int) -> bool:
    """Whether `needed` bytes leave enough free for training."""
    return gpu.free - needed >= RESERVE * gpu.total


def bytes_on_gpu(base: Path, folders: Sequence[str], prompts: int) -> int:
    """An estimate of the bytes that answering takes: weights (as large as those of the `base`, at its top and in its `folders`), the
    key-value cache of all prompts at once, and an allowance.
    """
    weights = sum(path.stat().st_size for folder in (base, *(base / name for name in folders)) for path in folder.glob("*.safetensors"))
    cache = prompts * POSITIONS * cache_bytes(read_object(base / "config.json"))
    return CONTEXT + int((1 + WORKING) * (weights + cache))


def cache_bytes(config: Mapping[str, Any]) -> int:
    """Bytes of the keys and values of one token, in all decoders that a `config.json` describes, nested ones included."""
    return sum(
        2 * decoder["num_hidden_layers"] * (decoder.get("num_key_value_heads") or heads) * _head_size(decoder, heads) * CACHED
        for decoder in _iterate_objects(config)
        if (heads := decoder.get("num_attention_heads")) and "num_hidden_layers" in decoder
    )


def _head_size(decoder: Mapping[str, Any], heads: int) -> int:
    size: int = decoder.get("head_dim") or decoder.get("hidden_size", 0) // heads
    return size


def _iterate_objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for child in value.values():
            yield from _iterate_objects(child)


class Sampler:
    """While open, answers the prompts after each step of `sample.every`. Works on rank 0 alone; nothing here is collective.

    A failure is logged and does not stop the run. After a failure on the GPU the CPU retries, and takes all later rounds. The process
    ends with this object, and with this process, however that ends.
    """

    def __init__(
        self, config: Config, total: int, events: Events, is_main: bool, device: torch.device, needed: Callable[[], int] = lambda: 0
    ) -> None:
        """`device`: where rank 0 trains. If that is a GPU with room for `needed()` bytes, the answers are generated there."""
        self._config, self._total, self._events = config, total, events
        self._works = is_main and config.sample.every is not None
        self._device, self._needed = device if device.type == "cuda" else None, needed
        self._reported: set[str] = set()
        """Devices that are already in the console's output."""
        self._wanted: int | None = None
        """The step to answer next."""
        self._child: _Child | None = None

    def __enter__(self) -> Sampler:
        if self._works:
            files.remove_unfinished(files.make_folder(self._cache), NAME)
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
            if self._wanted is not None:
                self._events.note("sampling passed over", self._wanted, problem="the answers before it took too long, or it was not saved")
            self._wanted = step
        self._advance()

    def finish(self, requests: StopRequests) -> None:
        """Wait for the last answers, unless a stop is requested."""
        while self._advance() and requests.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)

    @property
    def _cache(self) -> Path:
        return self._config.run.dir / "cache"

    def _advance(self) -> bool:
        """Log what is finished, start what can start; returns whether a process is running."""
        if self._child is not None and self._child.has_ended():
            self._log_answers(self._child)
            self._child = None
        if self._child is None and self._wanted is not None:
            self._start(self._wanted)
        return self._child is not None

    def _start(self, step: int) -> None:
        from finetune.checkpointing import checkpoint

        committed = checkpoint.folder_of(self._config.run.dir) / f"step-{step:08d}"
        if not committed.is_dir():
            return
        self._wanted = None
        try:
            snapshot = checkpoint.link_snapshot(committed, files.fresh_folder(self._cache, NAME))
            self._child = _Child(step, snapshot, self._config.recipe, self._config.sample.prompts, self._choose_gpu())
        except (OSError, UserError) as error:  # its temporary files are removed at the next start
            self._fail(step, str(error))

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

    def _log_answers(self, child: _Child) -> None:
        try:
            pairs = [*zip(self._config.sample.prompts, child.answers(), strict=True)]
            self._events.answers(child.step, pairs, save_media(self._config.run.dir, child.step, [answer for _, answer in pairs]))
        except (OSError, ValueError, UserError) as error:
            problem = child.last_line() or str(error)
            if child.share is None:
                self._fail(child.step, problem)
            else:
                self._device, self._wanted = None, child.step if self._wanted is None else self._wanted
                self._events.say(f"warning: samples of step {child.step} failed on GPU {child.share.gpu}, the CPU takes over: {problem}")
                self._events.note("sampling moved", child.step, problem=problem)
        child.close()

    def _fail(self, step: int, problem: str) -> None:
        self._events.say(f"warning: no answers of step {step}: {problem}; training continues")
        self._events.note("sampling failed", step, problem=problem)


@dataclass(frozen=True)
class Share:
    """The part of a GPU that a process may use."""

    gpu: str
    """In CUDA_VISIBLE_DEVICES."""
    fraction: float
    """Largest share of its memory for tensors: an answer that needs more fails, instead of the training beside it."""


class _Child:
    """The process that answers, and the temporary folder of its checkpoint."""

    def __init__(self, step: int, snapshot: Path, recipe: str, prompts: tuple[str, ...], share: Share | None) -> None:
        self.step, self.share, self._folder = step, share, snapshot.parent
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`; an unread pipe would fill up
        # In its own session: Ctrl-C in the terminal is for the run, which ends this process itself.
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment_of_child(os.environ, "" if share is None else share.gpu),
            start_new_session=True,
        )
        fraction = None if share is None else share.fraction
        request = {"checkpoint": str(snapshot), "folder": str(self._folder), "recipe": recipe, "prompts": prompts, "fraction": fraction}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()  # stays open: when this process ends in any way, it closes, and the other process ends

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def answers(self) -> list[Answer]:
        """Raises `OSError` if there are none."""
        answers = json.loads((self._folder / ANSWERS).read_text(encoding="utf-8"))
        return [self._answer(number, one) for number, one in enumerate(answers, 1)]

    def _answer(self, number: int, found: dict[str, Any]) -> Answer:
        sound, picture = ((self._folder / f"{number}.{kind}").read_bytes() for kind in KINDS)
        return Answer(found["text"], sound, picture, found["numbers"])

    def last_line(self) -> str:
        """The last line that it printed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the process ended with code {self._process.returncode}"

    def close(self) -> None:
        """Kill it if it is running, and remove its files."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.close()
        with contextlib.suppress(OSError):  # then the next start removes it
            files.discard(self._folder)


def environment_of_child(environ: Mapping[str, str], gpu: str) -> dict[str, str]:
    """The environment of a process that is not a rank of the run and sees one `gpu`, or none if that is empty."""
    # Speech is made with CUDA graphs, and the setting of the training's allocator has never been tried with them.
    ours = {cuda_allocator.VARIABLE} if environ.get(cuda_allocator.VARIABLE) == cuda_allocator.SETTING else set()
    kept = {name: value for name, value in environ.items() if not name.startswith(LAUNCHER_PREFIXES) and name not in ours}
    return kept | ALONE | {"CUDA_VISIBLE_DEVICES": gpu}


def main(_: list[str]) -> int:
    """Body of the process. The request is one line of JSON on standard input, which stays open as long as the run is alive."""
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(10)
    answer_prompts(request)
    return 0


def save_media(run_dir: Path, step: int, answers: Sequence[Answer]) -> list[Path | None]:
    """Write audio and pictures into `samples/step-…/` of the run; returns the path of each answer's audio, None for text alone."""
    return [_save_one(run_dir / "samples" / f"step-{step:08d}" / str(number), answer) for number, answer in enumerate(answers, 1)]


def _save_one(place: Path, answer: Answer) -> Path | None:
    for kind, data in zip(KINDS, (answer.sound, answer.picture), strict=True):
        if data:
            files.make_folder(place.parent)
            files.write_bytes(place.with_suffix(f".{kind}"), data)
    return place.with_suffix(f".{KINDS[0]}") if answer.sound else None


def answer_prompts(request: Mapping[str, Any]) -> None:
    """Export the checkpoint, answer the prompts, and write the answers beside the export."""
    from finetune.exporting import export

    folder = Path(request["folder"])
    recipe = load_recipe(find_recipe(request["recipe"]))
    sample = recipe.inference.sample
    assert sample is not None  # `check` refused the config otherwise
    exported = export.export(Path(request["checkpoint"]), folder / "export", recipe=request["recipe"])
    if request["fraction"] is not None:
        import torch

        torch.cuda.set_per_process_memory_fraction(request["fraction"])
    answers = []
    for number, one in enumerate(sample(exported, [*request["prompts"]]), 1):
        for kind, data in zip(KINDS, (one.sound, one.picture), strict=True):
            files.write_bytes(folder / f"{number}.{kind}", data)
        answers.append({"text": one.text, "numbers": one.numbers})
    files.write_json(folder / ANSWERS, answers)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(exit_code(main, []))
