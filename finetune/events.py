"""What a run tells: one line of JSON for each event, the same numbers to accelerate's trackers, and a line or a bar for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from tqdm import tqdm

from finetune import files
from finetune.checkpoint_state import LAST_STEP
from finetune.config_diff import NO_NUMBER, Change
from finetune.errors import UserError
from finetune.recipe import Answer

QUIET_SECONDS = 10.0
"""Where there is no terminal, at most one line of progress in this time."""
BAR = "{n_fmt}/{total_fmt} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
"""tqdm's own order would cut speed and memory off in 80 columns."""
LARGEST = 3.5e38
"""A loss in fp32 is no larger; matplotlib can place no axis around some larger numbers."""

Listener = Callable[[str, int, dict[str, Any]], None]
"""Is told each event of this rank: its kind, its step, its facts."""


def nobody(_kind: str, _step: int, _facts: dict[str, Any]) -> None:
    """The listener of a run that has none."""


class Events:
    """The stream of one run. Open it on every rank; only the main one speaks, but trackers are set up collectively."""

    def __init__(
        self, run_dir: Path, accelerator: Accelerator, total: int, done: int, settings: dict[str, Any], listener: Listener = nobody
    ) -> None:
        self.log_path = run_dir / "log.jsonl"
        self._listener = listener
        self._accelerator, self._main, self._total = accelerator, accelerator.is_main_process, total
        self._spoke, self._started, self._first = 0.0, time.monotonic(), done
        self.reached = done
        """The last step that was told."""
        if accelerator.log_with:
            place = {"dir": str(run_dir), "name": run_dir.name}  # wandb's own choice is ./wandb, which Python would import in its place
            accelerator.init_trackers("tracking", config=settings, init_kwargs={"wandb": place})
        on_terminal = self._main and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, bar_format=BAR, dynamic_ncols=True) if on_terminal else None

    def resumed(self, step: int, changes: Sequence[Change], facts: dict[str, Any]) -> None:
        """A run that continues from optimizer step `step`, and what of its configuration is another than at that step: for people, in the
        log, and as a mark in the curve and in the trackers."""
        lines = [str(change) for change in changes]
        self.note("resumed", step, **facts, changes=lines, marked=[change.key for change in changes if change.effect != NO_NUMBER])
        if lines:
            self.say(f"the configuration is not that of step {step}:")
            for line in lines:
                self.say(f"  {line}")
            self._track({"configuration changes": len(lines), "configuration": "\n\n".join(_verbatim(line) for line in lines)}, step)

    def step(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers of optimizer step `step` (1 is the first)."""
        self.reached = step
        self._record("step", step, numbers)
        text = (
            f"loss {numbers['loss']:.4f}  {numbers['tokens_per_second']:.0f} tok/s  {numbers['memory_gib']:.1f} GiB"
            f"  norm {numbers['grad_norm']:.3f}  lr {numbers['lr']:.2e}"
        )
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            self._bar.set_postfix_str(text)
        elif self._main and (step == self._total or time.monotonic() - self._spoke > QUIET_SECONDS):
            self._spoke = time.monotonic()
            left = (self._spoke - self._started) / max(1, step - self._first) * (self._total - step)
            print(f"step {step}/{self._total}  {text}  {left:.0f} s left", flush=True)

    def evaluation(self, step: int, numbers: dict[str, float]) -> None:
        self._record("evaluation", step, {f"val/{name}": value for name, value in numbers.items()})
        self.say(f"step {step}: validation loss {numbers['loss']:.4f}")

    def answers(self, step: int, pairs: list[tuple[str, Answer]], sounds: list[Path | None]) -> None:
        """Prompts, and what the model of optimizer step `step` answered to them; told some steps later. `sounds`: where they lie."""
        places = ["" if sound is None else str(sound.relative_to(self.log_path.parent)) for sound in sounds]
        told = [
            {"prompt": prompt, "answer": answer.text, **answer.numbers, **({"sound": place} if place else {})}
            for (prompt, answer), place in zip(pairs, places, strict=True)
        ]
        self.note("sampled", step, answers=told)
        for (prompt, answer), place in zip(pairs, places, strict=True):
            self.say(f"step {step}: {prompt!r} → {f'{place}: {answer.text}' if place else repr(answer.text)}")
        values = {**_texts(step, pairs), **_means([answer.numbers for _, answer in pairs])}
        self._track(values, step)
        for tracker in self._accelerator.trackers if self._accelerator.log_with else ():
            if tracker.name == "tensorboard" and self._main:
                _show(tracker.writer, step, [answer for _, answer in pairs])

    def note(self, kind: str, step: int, **facts: Any) -> None:
        """An event without a curve: started, resumed, committed, stopped. What the disk refuses is said instead: a log stops no run."""
        self._listener(kind, step, facts)
        if not self._main:
            return
        line = json.dumps({"event": kind, "step": step, "time": round(time.time(), 3), **facts})
        try:
            files.append_line(self.log_path, line)
        except (OSError, UserError) as error:
            self.say(f"warning: not in the log ({error}): {line}")

    def say(self, text: str) -> None:
        if self._main:
            tqdm.write(text) if self._bar is not None else print(text, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._accelerator.log_with:
            for tracker in self._accelerator.trackers:  # not `end_training`, which would also take the process group away
                tracker.finish()

    def _track(self, values: dict[str, Any], step: int) -> None:
        """To the trackers: what belongs to a step that may have gone by."""
        for tracker in self._accelerator.trackers if self._accelerator.log_with else ():
            tracker.log(values, step=None if tracker.name == "wandb" else step)  # wandb drops what comes for such a step

    def _record(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        self.note(kind, step, **numbers)
        if self._accelerator.log_with:
            self._accelerator.log(numbers, step=step)


def _texts(step: int, pairs: list[tuple[str, Answer]]) -> dict[str, str]:
    return {f"samples/{number}": f"step {step}: {prompt}\n\n{_verbatim(answer.text)}" for number, (prompt, answer) in enumerate(pairs, 1)}


def _means(numbers: list[dict[str, float]]) -> dict[str, float]:
    """`samples/NAME` → mean over the answers that have it."""
    names = dict.fromkeys(name for of_one in numbers for name in of_one)
    having = {name: [of_one[name] for of_one in numbers if name in of_one] for name in names}
    return {f"samples/{name}": sum(values) / len(values) for name, values in having.items()}


def _show(writer: Any, step: int, answers: list[Answer]) -> None:
    """Players and pictures in TensorBoard. Other trackers have the texts and numbers; the files are in the run's folder."""
    import io

    import soundfile
    import torch
    from matplotlib.image import imread

    for number, answer in enumerate(answers, 1):
        if answer.sound:
            samples, rate = soundfile.read(io.BytesIO(answer.sound), dtype="float32")
            writer.add_audio(f"samples/{number}", torch.from_numpy(samples), step, sample_rate=rate)
        if answer.picture:
            writer.add_image(f"samples/{number}", imread(io.BytesIO(answer.picture), format="png")[:, :, :3], step, dataformats="HWC")


def _verbatim(text: str) -> str:
    """As Markdown that shows a text as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def read_log(path: Path) -> list[dict[str, Any]]:
    """Events of a log. Of a step that was logged twice (redone after a crash) the last stands. A torn last line is dropped, and so is every
    line that this module did not write: a log is a text file, in which people and other programs leave theirs."""
    events: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_bytes().split(b"\n"):
        event = _event_of(line)
        if event is not None:
            events[event["event"], event["step"]] = event
    return list(events.values())


def _event_of(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str) or type(event.get("step")) is not int:
        return None
    return event if 0 <= event["step"] <= LAST_STEP else None


def draw_curve(log_path: Path, picture: Path) -> None:
    """Loss against optimizer steps, training and validation, as a PNG."""
    import io

    from matplotlib.figure import Figure

    events = read_log(log_path)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="optimizer step", ylabel="loss")
    axes.set_title(_drawable(str(log_path.parent)), parse_math=False)  # a folder's name may hold a $, which would begin a formula
    for kind, key, style in (("step", "loss", "-"), ("evaluation", "val/loss", "o-")):
        found = [(event["step"], event.get(key)) for event in events if event["event"] == kind]
        points = [(step, value) for step, value in found if isinstance(value, float) and abs(value) <= LARGEST]
        if points:
            axes.plot(*zip(*sorted(points), strict=True), style, label="training" if kind == "step" else "validation", linewidth=1)
    for event in events:
        if event["event"] == "resumed" and (marked := event.get("marked")) and isinstance(marked, list):
            text = ", ".join(_drawable(str(key)) for key in marked[:2]) + (", …" if len(marked) > 2 else "")
            axes.axvline(event["step"], color="gray", linestyle=":", linewidth=1)
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top", "ha": "right", "fontsize": 7}
            axes.annotate(text[:60], (event["step"], 1), **place, parse_math=False)
    if axes.get_legend_handles_labels()[0]:  # a log without a step: of a run that was at its end when its folder was lost
        axes.legend()
    axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    files.write_bytes(picture, buffer.getbuffer())


def _drawable(text: str) -> str:
    """Without halves of characters, which no font has."""
    return text.encode(errors="replace").decode()
