"""Answers to a few fixed prompts while a run trains, from committed checkpoints and never from the live shards.

A process of its own exports the checkpoint of that step into a temporary folder and lets the recipe answer there: beside the steps on the
GPU of rank 0 if that has room for it, otherwise on one CPU core. Ranks could not do it together, since they would stop at different
lengths, and training does not wait for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import finetune` finds nothing
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

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

from finetune import cuda_allocator, files
from finetune.config import Config
from finetune.errors import UserError, exit_code
from finetune.recipe import Answer, Recipe, find_recipe, load_recipe
from finetune.strict_json import read_object

if TYPE_CHECKING:
    import torch

    from finetune.events import Events
    from finetune.stop_requests import StopRequests

NAME = "sample"
"""Of temporary folders in a run's cache."""
ANSWERS, KINDS = "answers.json", ("flac", "png")
"""What the process leaves in its folder: texts and numbers, and for each answer its sound and its picture, empty if it has none."""
LAUNCHED = (
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
"""How the names begin by which a launcher tells a process that it is one of many."""
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
SECONDS_BETWEEN_LOOKS = 0.1
GIB = 2**30
CONTEXT = GIB
"""Bytes that a process takes on a GPU besides tensors: CUDA's context and libraries' workspaces."""
POSITIONS = 4096
"""Of each prompt and its answer, in the cache; answers are shorter."""
CACHED = 2
"""Bytes of a number in the cache: bf16."""
WORKING = 0.5
"""Of weights and cache, an allowance for everything else that answering computes."""
RESERVE = 0.1
"""Of a GPU's memory, what must stay free for the training: its largest micro-batch may be yet to come."""


def is_configured(config: Config) -> bool:
    """Whether the config's `sample` section holds anything."""
    return config.sample.every is not None or bool(config.sample.prompts)


def check(config: Config, recipe: Recipe) -> None:
    """Raises `UserError` for samples that could not be made."""
    if not is_configured(config):
        return
    if recipe.inference.sample is None:
        raise UserError(f"sample: the recipe {config.recipe} has no answers to sample; take the section out")
    if config.sample.every is None:
        raise UserError("sample.prompts would never be answered: give sample.every, or take the prompts out")
    if not config.sample.prompts:
        raise UserError(f"sample.every: {config.sample.every}, but there is nothing to answer: give sample.prompts")


@dataclass(frozen=True)
class Gpu:
    """The GPU of rank 0, at one moment."""

    name: str
    """In CUDA_VISIBLE_DEVICES."""
    free: int
    """Bytes that no process has, nor this one's allocator."""
    total: int


def gpu_of(device: torch.device, environ: Mapping[str, str]) -> Gpu:
    """What is free on a GPU now, and what a process must name it by to see it alone."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    index = device.index or 0
    visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return Gpu(visible[index] if index < len(visible) and visible[index] else str(index), free, total)


def has_room(gpu: Gpu, needed: int) -> bool:
    """Whether samples may take `needed` bytes without taking what the training may come to need."""
    return gpu.free - needed >= RESERVE * gpu.total


def bytes_on_gpu(base: Path, folders: Sequence[str], prompts: int) -> int:
    """An estimate of what answering takes: the weights of an export, which are as many as those of its `base` (at its top and in its
    `folders`), the cache of all prompts at once, and an allowance.
    """
    weights = sum(path.stat().st_size for folder in (base, *(base / name for name in folders)) for path in folder.glob("*.safetensors"))
    cache = prompts * POSITIONS * cache_bytes(read_object(base / "config.json"))
    return CONTEXT + int((1 + WORKING) * (weights + cache))


def cache_bytes(config: Mapping[str, Any]) -> int:
    """Keys and values of one position in all decoders that a `config.json` describes, also those inside of others."""
    return sum(
        2 * decoder["num_hidden_layers"] * (decoder.get("num_key_value_heads") or heads) * _head_size(decoder, heads) * CACHED
        for decoder in _objects(config)
        if (heads := decoder.get("num_attention_heads")) and "num_hidden_layers" in decoder
    )


def _head_size(decoder: Mapping[str, Any], heads: int) -> int:
    size: int = decoder.get("head_dim") or decoder.get("hidden_size", 0) // heads
    return size


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for child in value.values():
            yield from _objects(child)


class Sampler:
    """While open, has prompts answered after each due step; on rank 0 alone, and nothing here is collective.

    What goes wrong in that is reported and stops no run; what goes wrong on a GPU is tried once more on the CPU, which then keeps it. The
    process ends with this object, and with this process, however that ends.
    """

    def __init__(
        self, config: Config, total: int, events: Events, is_main: bool, device: torch.device, needed: Callable[[], int] = lambda: 0
    ) -> None:
        """`device`: where rank 0 trains. If that is a GPU with room for the bytes that are `needed`, samples are made there."""
        self._config, self._total, self._events = config, total, events
        self._works = is_main and config.sample.every is not None
        self._device, self._needed = device if device.type == "cuda" else None, needed
        self._reported: set[str] = set()
        """Places that the console already shows."""
        self._wanted: int | None = None
        """The step whose answers come next."""
        self._child: _Child | None = None

    def __enter__(self) -> Sampler:
        if self._works:
            files.sweep(files.make_folder(self._cache), NAME)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._child is not None:
            self._events.note("sampling stopped", self._child.step)
            self._child.close()

    def after_step(self, step: int) -> None:
        """Look after the answers; never waits."""
        if not self._works:
            return
        assert self._config.sample.every is not None
        if step % self._config.sample.every == 0 or step == self._total:
            if self._wanted is not None:
                self._events.note("sampling passed over", self._wanted, problem="the answers before it took too long, or it was not saved")
            self._wanted = step
        self._advance()

    def finish(self, requests: StopRequests) -> None:
        """Wait for the last answers, unless a stop is asked for."""
        while self._advance() and requests.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)

    @property
    def _cache(self) -> Path:
        return self._config.run.dir / "cache"

    def _advance(self) -> bool:
        """Tell what is there, begin what can begin; returns whether answers are being made."""
        if self._child is not None and self._child.has_ended():
            self._tell(self._child)
            self._child = None
        if self._child is None and self._wanted is not None:
            self._begin(self._wanted)
        return self._child is not None

    def _begin(self, step: int) -> None:
        from finetune import checkpoint

        committed = checkpoint.folder_of(self._config.run.dir) / f"step-{step:08d}"
        if not committed.is_dir():
            return
        self._wanted = None
        try:
            snapshot = checkpoint.snapshot_of(committed, files.fresh_folder(self._cache, NAME))
            self._child = _Child(step, snapshot, self._config.recipe, self._config.sample.prompts, self._choose_gpu())
        except (OSError, UserError) as error:  # what is left of it goes at the next start
            self._fail(step, str(error))

    def _choose_gpu(self) -> Share | None:
        """What a process may take of the run's GPU now; None: nothing, it computes on the CPU."""
        if self._device is None:
            return None
        try:
            needed, gpu = self._needed(), gpu_of(self._device, os.environ)
        except (UserError, OSError, TypeError, ValueError) as error:  # a config.json of values that no one expects stops no run
            self._report_place(f"samples are made on one CPU core: what they would take of a GPU is not known ({error})")
            return None
        figures = f"they may take {needed / GIB:.1f} GiB, and {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} are free"
        if has_room(gpu, needed):
            self._report_place(f"samples are made on GPU {gpu.name}, beside the steps: {figures}")
            return Share(gpu.name, needed / gpu.total)
        self._report_place(f"samples are made on one CPU core: on GPU {gpu.name} {figures}, of which {RESERVE:.0%} stay for the training")
        return None

    def _report_place(self, text: str) -> None:
        """Once for each place, though the figures may change."""
        place = text.partition(":")[0]
        if place not in self._reported:
            self._reported.add(place)
            self._events.say(text)

    def _tell(self, child: _Child) -> None:
        try:
            pairs = [*zip(self._config.sample.prompts, child.answers(), strict=True)]
            self._events.answers(child.step, pairs, keep(self._config.run.dir, child.step, [answer for _, answer in pairs]))
        except (OSError, ValueError, UserError) as error:
            problem = child.last_words() or str(error)
            if child.share is None:
                self._fail(child.step, problem)
            else:
                self._device, self._wanted = None, child.step if self._wanted is None else self._wanted
                self._events.say(f"warning: samples of step {child.step} failed on GPU {child.share.gpu}, the CPU takes over: {problem}")
                self._events.note("sampling moved", child.step, problem=problem)
        child.close()

    def _fail(self, step: int, problem: str) -> None:
        self._events.say(f"warning: no answers of step {step}: {problem}; training goes on")
        self._events.note("sampling failed", step, problem=problem)


@dataclass(frozen=True)
class Share:
    """What a process may take of a GPU."""

    gpu: str
    """In CUDA_VISIBLE_DEVICES."""
    fraction: float
    """Of its memory, for tensors at most: an answer that needs more fails, and not the training beside it."""


class _Child:
    """The process that answers, with the temporary folder around its checkpoint."""

    def __init__(self, step: int, snapshot: Path, recipe: str, prompts: tuple[str, ...], share: Share | None) -> None:
        self.step, self.share, self._folder = step, share, snapshot.parent
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`; a pipe that nobody reads would fill up
        # A session of its own, since Ctrl-C in the terminal is meant for the run, which ends this process itself.
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=alone(os.environ, "" if share is None else share.gpu),
            start_new_session=True,
        )
        fraction = None if share is None else share.fraction
        request = {"checkpoint": str(snapshot), "folder": str(self._folder), "recipe": recipe, "prompts": prompts, "fraction": fraction}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()  # and left open: when it closes, by whatever end of this process, the other one ends

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def answers(self) -> list[Answer]:
        """Raises `OSError` if there are none."""
        told = json.loads((self._folder / ANSWERS).read_text(encoding="utf-8"))
        return [self._answer(number, one) for number, one in enumerate(told, 1)]

    def _answer(self, number: int, told: dict[str, Any]) -> Answer:
        sound, picture = ((self._folder / f"{number}.{kind}").read_bytes() for kind in KINDS)
        return Answer(told["text"], sound, picture, told["numbers"])

    def last_words(self) -> str:
        """The last line that it printed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the process ended with code {self._process.returncode}"

    def close(self) -> None:
        """End it, if it has not ended, and remove what it made."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._output.close()
        with contextlib.suppress(OSError):  # then the next start sweeps it away
            files.discard(self._folder)


def alone(environ: Mapping[str, str], gpu: str) -> dict[str, str]:
    """The environment of a process that is no rank of the run, with at most one `gpu`; none if that is empty."""
    # Speech is made with CUDA graphs, and the setting of the training's allocator has never been tried with them.
    ours = {cuda_allocator.VARIABLE} if environ.get(cuda_allocator.VARIABLE) == cuda_allocator.SETTING else set()
    kept = {name: value for name, value in environ.items() if not name.startswith(LAUNCHED) and name not in ours}
    return kept | ALONE | {"CUDA_VISIBLE_DEVICES": gpu}


def main(_: list[str]) -> int:
    """Body of the process: the request comes as one line of JSON on standard input, which then stays open as long as the run lives."""
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    os.nice(10)
    answer(request)
    return 0


def keep(run_dir: Path, step: int, answers: Sequence[Answer]) -> list[Path | None]:
    """Put what is to be heard and seen into `samples/step-…/` of the run; returns where each answer's sound lies, None for text alone."""
    return [_keep_one(run_dir / "samples" / f"step-{step:08d}" / str(number), answer) for number, answer in enumerate(answers, 1)]


def _keep_one(place: Path, answer: Answer) -> Path | None:
    for kind, data in zip(KINDS, (answer.sound, answer.picture), strict=True):
        if data:
            files.make_folder(place.parent)
            files.write_bytes(place.with_suffix(f".{kind}"), data)
    return place.with_suffix(f".{KINDS[0]}") if answer.sound else None


def answer(request: Mapping[str, Any]) -> None:
    """Export, answer, and leave the answers beside the export."""
    from finetune import export

    folder = Path(request["folder"])
    recipe = load_recipe(find_recipe(request["recipe"]))
    sample = recipe.inference.sample
    assert sample is not None  # `check` refused the config otherwise
    exported = export.export(Path(request["checkpoint"]), folder / "export", recipe=request["recipe"])
    if request["fraction"] is not None:
        import torch

        torch.cuda.set_per_process_memory_fraction(request["fraction"])
    told = []
    for number, one in enumerate(sample(exported, [*request["prompts"]]), 1):
        for kind, data in zip(KINDS, (one.sound, one.picture), strict=True):
            files.write_bytes(folder / f"{number}.{kind}", data)
        told.append({"text": one.text, "numbers": one.numbers})
    files.write_json(folder / ANSWERS, told)


def _end_with_the_run() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(exit_code(main, []))
