"""Answers to a few fixed prompts while a run trains, from committed checkpoints and never from the live shards.

A process of its own exports the checkpoint of that step into a temporary folder and lets the recipe answer there: on the CPU, on one core,
after everybody else. Ranks could not do it together, since they would stop at different lengths, and training does not wait for it.
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
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from finetune import files
from finetune.config import Config
from finetune.errors import UserError, exit_code
from finetune.recipe import Answer, Recipe, find_recipe, load_recipe

if TYPE_CHECKING:
    from finetune.events import Events
    from finetune.guards import StopRequests

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
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
SECONDS_BETWEEN_LOOKS = 0.1


def check(config: Config, recipe: Recipe) -> None:
    """Raises `UserError` for samples that could not be made."""
    if config.sample.every is None and not config.sample.prompts:
        return
    if recipe.sample is None:
        raise UserError(f"sample: the recipe {config.recipe} has no answers to sample; take the section out")
    if config.sample.every is None:
        raise UserError("sample.prompts would never be answered: give sample.every, or take the prompts out")
    if not config.sample.prompts:
        raise UserError(f"sample.every: {config.sample.every}, but there is nothing to answer: give sample.prompts")


class Sampler:
    """While open, has prompts answered after each due step; on rank 0 alone, and nothing here is collective.

    What goes wrong in that is told and stops no run. The process ends with this object, and with this process, however that ends.
    """

    def __init__(self, config: Config, total: int, events: Events, is_main: bool) -> None:
        self._config, self._total, self._events = config, total, events
        self._works = is_main and config.sample.every is not None
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
        while self._advance() and requests.asked() is None:
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
            self._child = _Child(step, snapshot, self._config.recipe, self._config.sample.prompts)
        except (OSError, UserError) as error:  # what is left of it goes at the next start
            self._fail(step, str(error))

    def _tell(self, child: _Child) -> None:
        try:
            pairs = [*zip(self._config.sample.prompts, child.answers(), strict=True)]
            self._events.answers(child.step, pairs, keep(self._config.run.dir, child.step, [answer for _, answer in pairs]))
        except (OSError, ValueError, UserError) as error:
            self._fail(child.step, child.last_words() or str(error))
        child.close()

    def _fail(self, step: int, problem: str) -> None:
        self._events.say(f"warning: no answers of step {step}: {problem}; training goes on")
        self._events.note("sampling failed", step, problem=problem)


class _Child:
    """The process that answers, with the temporary folder around its checkpoint."""

    def __init__(self, step: int, snapshot: Path, recipe: str, prompts: tuple[str, ...]) -> None:
        self.step, self._folder = step, snapshot.parent
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`; a pipe that nobody reads would fill up
        # A session of its own, since Ctrl-C in the terminal is meant for the run, which ends this process itself.
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=alone(os.environ),
            start_new_session=True,
        )
        request = {"checkpoint": str(snapshot), "folder": str(self._folder), "recipe": recipe, "prompts": prompts}
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


def alone(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is no part of the run's world."""
    return {name: value for name, value in environ.items() if not name.startswith(LAUNCHED)} | ALONE


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
    assert recipe.sample is not None  # `check` made sure
    exported = export.export(Path(request["checkpoint"]), folder / "export", recipe=request["recipe"])
    told = []
    for number, one in enumerate(recipe.sample(exported, [*request["prompts"]]), 1):
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
