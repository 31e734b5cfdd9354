"""The process that answers the prompts of `sample` beside a run: exports a checkpoint into a temporary folder, generates, measures.

It is started as a file, with a request of one line of JSON on standard input, which stays open as long as the run is alive.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is its folder, where `import overtone` finds nothing
    sys.path[0] = next(str(folder) for folder in Path(__file__).resolve().parents if (folder / "overtone").is_dir())

import contextlib
import json
import math
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from overtone.finetune.errors import catch_user_errors
from overtone.finetune.hardware import cuda_allocator
from overtone.finetune.recipe import Answer, MeasuredAnswers, PreparedMetrics, Recipe, find_recipe, load_recipe
from overtone.finetune.storage import files
from overtone.finetune.storage.text_lines import split_lines
from overtone.finetune.terminal import protect_terminal
from overtone.finetune.training.sample_metrics_preparation import parse_prepared

ANSWERS, KINDS = "answers.json", ("flac", "png")
"""Files that the process writes: texts, numbers and metrics, and for each answer its audio and its picture, empty if it has none."""
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


@dataclass(frozen=True)
class Share:
    """The part of a GPU that a process may use."""

    gpu: str
    """The GPU's name in CUDA_VISIBLE_DEVICES."""
    fraction: float
    """Largest share of its memory for tensors: an answer that needs more fails, instead of the training beside it."""


class SamplingProcess:
    """The process that answers, and the temporary folder of its checkpoint."""

    def __init__(
        self, step: int, snapshot: Path, recipe: str, prompts: tuple[str, ...], share: Share | None, prepared: PreparedMetrics | None = None
    ) -> None:
        """`snapshot`: the checkpoint in a folder that this object removes. `prepared`: what the recipe's metrics need."""
        self.step, self.share, self._folder = step, share, snapshot.parent
        self.manifest = files.digest(snapshot / "manifest.json")
        """SHA-256 of the checkpoint's manifest.json."""
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
        request = {
            **{"checkpoint": str(snapshot), "folder": str(self._folder), "recipe": recipe, "prompts": prompts, "fraction": fraction},
            "prepared": None if prepared is None else asdict(prepared),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()  # stays open: when this process ends in any way, it closes, and the other process ends

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def answers(self) -> tuple[list[Answer], MeasuredAnswers]:
        """Return the answers and the metrics over all of them. Raises `OSError` if there are none."""
        found = json.loads((self._folder / ANSWERS).read_text(encoding="utf-8"))
        answers = [self._answer(number, one) for number, one in enumerate(found["answers"], 1)]
        return answers, MeasuredAnswers(found["metrics"], found["details"])

    def _answer(self, number: int, found: dict[str, Any]) -> Answer:
        sound, picture = ((self._folder / f"{number}.{kind}").read_bytes() for kind in KINDS)
        return Answer(found["text"], sound, picture, found["numbers"])

    def last_line(self) -> str:
        """Return the last line that it printed."""
        self._output.seek(0)
        lines = split_lines(self._output.read().decode(errors="replace").replace("\r", "\n").strip())  # progress bars
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
    """Return the environment of a process that is not a rank of the run and sees one `gpu`, or none if that is empty."""
    # Speech is made with CUDA graphs, and the setting of the training's allocator has never been tried with them.
    ours = {cuda_allocator.VARIABLE} if environ.get(cuda_allocator.VARIABLE) == cuda_allocator.SETTING else set()
    kept = {name: value for name, value in environ.items() if not name.startswith(LAUNCHER_PREFIXES) and name not in ours}
    return kept | ALONE | {"CUDA_VISIBLE_DEVICES": gpu}


def main(_: list[str]) -> int:
    """Run the process that answers prompts. The request is one line of JSON on standard input, which stays open while the run lives."""
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(10)
    answer_prompts(request)
    return 0


def answer_prompts(request: Mapping[str, Any]) -> None:
    """Export the checkpoint, answer the prompts, measure the answers, and write them beside the export."""
    from overtone.finetune.exporting import export

    folder = Path(request["folder"])
    recipe = load_recipe(find_recipe(request["recipe"]))
    sample = recipe.inference.sample
    assert sample is not None  # `check` refused the config otherwise
    exported = export.export(Path(request["checkpoint"]), folder / "export", recipe=request["recipe"])
    if request["fraction"] is not None:
        import torch

        torch.cuda.set_per_process_memory_fraction(request["fraction"])
    prompts = [*request["prompts"]]
    answers = sample(exported, prompts)
    found = measure_answers(recipe, exported, prompts, answers, request["prepared"])
    for number, one in enumerate(answers, 1):
        for kind, data in zip(KINDS, (one.sound, one.picture), strict=True):
            files.write_bytes(folder / f"{number}.{kind}", data)
    entries = [{"text": one.text, "numbers": one.numbers} for one in answers]
    files.write_json(folder / ANSWERS, {"answers": entries, "metrics": found.metrics, "details": found.details})


def measure_answers(
    recipe: Recipe, exported: Path, prompts: list[str], answers: Sequence[Answer], prepared: dict[str, Any] | None
) -> MeasuredAnswers:
    """The means of the answers' numbers, and the recipe's own metrics if `prepared` is not None; without values that are not finite."""
    from overtone.finetune.monitoring.run_logger import average_numbers  # here, since it imports torch

    metrics, details = average_numbers([answer.numbers for answer in answers]), list[dict[str, Any]]()
    if prepared is not None and recipe.inference.metrics is not None:
        own = recipe.inference.metrics.measure(exported, prompts, [*answers], parse_prepared(prepared))
        metrics, details = {**metrics, **own.metrics}, own.details
    return MeasuredAnswers({name: value for name, value in metrics.items() if math.isfinite(value)}, details)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    protect_terminal()
    sys.exit(catch_user_errors(main)([]))
