"""Event log of a run: log.jsonl with one JSON line per event, metrics for accelerate's trackers, console output, and the loss curve."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from pydantic import JsonValue
from tqdm import tqdm

from overtone.finetune.config_diff import NO_NUMBER, Change
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import LOG, MEASURED, SAMPLED, read_log
from overtone.finetune.recipe import POSITIONS, Answer
from overtone.finetune.storage import files
from overtone.finetune.storage.text_lines import split_lines
from overtone.finetune.terminal import is_terminal, make_safe, print_line

QUIET_SECONDS = 10.0
"""Seconds between two progress lines if the output is not a terminal."""
PACE_STEPS = 10
"""Steps after which the pace and the end of the run are reported. The first logged step is not counted: it compiles and allocates."""
BAR = "{n_fmt}/{total_fmt} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
"""tqdm's default format would cut off speed and memory in 80 columns."""
VALIDATED = re.compile(r"val/.+/loss")
"""Key of the loss of one of several validation files."""
LARGEST = 3.5e38
"""Largest loss to plot: the range of fp32. matplotlib cannot scale an axis to some larger numbers."""
LEAST_TO_SMOOTH = 20
"""Fewer losses are plotted as they are."""

Listener = Callable[[str, int, dict[str, JsonValue]], None]
"""Called with each event of this rank: kind, step, fields."""


def ignore_event(_kind: str, _step: int, _facts: dict[str, JsonValue]) -> None:
    """A listener that ignores all events."""


TRACKER_FOLDERS = {"tensorboard": "tracking", "wandb": "wandb"}
"""Tracker → the folder below the run's that its library writes to, without `files`."""


class Events:
    """The events of one run. Create it on every rank, since trackers are set up collectively; only rank 0 writes and prints."""

    def __init__(
        self,
        run_dir: Path,
        accelerator: Accelerator,
        total: int,
        done: int,
        settings: dict[str, int | float | bool | str],
        listener: Listener = ignore_event,
        unit: str = POSITIONS,
    ) -> None:
        """`unit`: `Recipe.unit`."""
        self.log_path = run_dir / LOG
        self._listener, self._unit = listener, unit
        self._accelerator, self._main, self._total = accelerator, accelerator.is_main_process, total
        self._spoke, self._started, self._first = 0.0, time.monotonic(), done
        self._pace_from: tuple[int, float] | None = None
        """The first logged step and its time."""
        self._pace_reported = False
        self.reached = done
        """The last step that was logged."""
        if accelerator.log_with:
            place = {
                "dir": str(run_dir),
                "name": run_dir.name,
            }  # wandb's default is ./wandb, a folder that Python would import instead of the package
            # TensorBoard drops what an earlier launch has logged of the steps that are repeated; an evaluation of `done` itself is not.
            repeated = {"purge_step": done + 1 if done else 0}
            accelerator.init_trackers(
                TRACKER_FOLDERS["tensorboard"], config=settings, init_kwargs={"wandb": place, "tensorboard": repeated}
            )
        on_terminal = self._main and is_terminal(sys.stderr)
        self._bar = tqdm(total=total, initial=done, bar_format=BAR, dynamic_ncols=True) if on_terminal else None
        if accelerator.log_with and any(tracker.name == "tensorboard" for tracker in accelerator.trackers):
            self.say(f"curves: {shlex.join(['tensorboard', '--logdir', str(run_dir)])}")

    def resumed(self, step: int, changes: Sequence[Change], facts: dict[str, JsonValue]) -> None:
        """Report that the run resumes from optimizer step `step`, with the differences between its configuration and the checkpoint's: on
        the console, in the log, as a mark in the loss curve, and in the trackers."""
        lines = [str(change) for change in changes]
        self.note("resumed", step, **facts, changes=[*lines], marked=[change.key for change in changes if change.effect != NO_NUMBER])
        if lines:
            self.say(f"the configuration differs from that of step {step}:")
            for line in lines:
                self.say(f"  {line}")
            self._track(
                {"configuration changes": len(lines), "configuration": "\n\n".join(_format_code_block(line) for line in lines)}, step
            )

    def step(self, step: int, numbers: dict[str, float], metrics: Iterable[str] = ()) -> None:
        """Log the numbers of optimizer step `step` (1 is the first). `metrics`: names of those that the console shows besides the loss."""
        self.reached = step
        self._record("step", step, numbers)
        text = (
            f"loss {numbers['loss']:.4f}{_format_metrics(numbers, metrics)}  {numbers['tokens_per_second']:.0f} {self._unit}/s"
            f"  {numbers['memory_gib']:.1f} GiB  norm {numbers['grad_norm']:.3f}  lr {numbers['lr']:.2e}"
        )
        if self._bar is not None:
            self._bar.update(step - self._bar.n)
            self._bar.set_postfix_str(make_safe(text))
        elif self._main and (step == self._total or time.monotonic() - self._spoke > QUIET_SECONDS):
            self._spoke = time.monotonic()
            left = (self._spoke - self._started) / max(1, step - self._first) * (self._total - step)
            print_line(f"step {step}/{self._total}  {text}  {left:.0f} s left")
        self._report_pace(step, time.monotonic())

    def _report_pace(self, step: int, now: float) -> None:
        """Once, ten steps after the start: seconds per step, and the time at which the run will end."""
        if self._pace_from is None:
            self._pace_from = (step, now)
        elif not self._pace_reported and self._first + PACE_STEPS <= step < self._total:
            self._pace_reported = True
            begun, since = self._pace_from
            each = (now - since) / (step - begun)
            left = each * (self._total - step)
            self.say(
                f"step {step}: {each:.3g} s a step, {format_duration(left)} left: ends {format_end(time.time(), left)}, "
                "not counting evaluations and saves"
            )

    def evaluation(self, step: int, numbers: dict[str, float], metrics: Iterable[str] = ()) -> None:
        """Log the numbers of an evaluation; `metrics` as in `step`."""
        self._record("evaluation", step, {f"val/{name}": value for name, value in numbers.items()})
        self.say(f"step {step}: validation loss {numbers['loss']:.4f}{_format_metrics(numbers, metrics)}")
        if step == self._first:  # an evaluation before the first step says nothing about the time that steps take
            self._started = time.monotonic()
            if self._bar is not None:
                self._bar.unpause()

    def answers(self, step: int, pairs: list[tuple[str, Answer]], sounds: list[Path | None]) -> None:
        """Log prompts and the answers of the model of optimizer step `step`, some steps later. `sounds`: paths of the audio files."""
        places = ["" if sound is None else str(sound.relative_to(self.log_path.parent)) for sound in sounds]
        entries: list[JsonValue] = [
            {"prompt": prompt, "answer": answer.text, **answer.numbers, **({"sound": place} if place else {})}
            for (prompt, answer), place in zip(pairs, places, strict=True)
        ]
        self.note("sampled", step, answers=entries)
        for (prompt, answer), place in zip(pairs, places, strict=True):
            self.say(f"step {step}: {prompt!r} → {f'{place}: {answer.text}' if place else repr(answer.text)}")
        means = average_numbers([answer.numbers for _, answer in pairs])
        texts = {
            f"samples/{number}": f"step {step}: {prompt}\n\n{_format_code_block(answer.text)}"
            for number, (prompt, answer) in enumerate(pairs, 1)
        }
        self._track({**texts, **{f"samples/{name}": value for name, value in means.items()}}, step)
        for tracker in self._accelerator.trackers if self._accelerator.log_with else ():
            if tracker.name == "tensorboard" and self._main:
                _show_media(tracker.writer, step, [answer for _, answer in pairs])

    def measured(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of the samples of optimizer step `step`, some steps later, as `sample/NAME`."""
        named = {f"{SAMPLED}{name}": value for name, value in metrics.items()}
        self.note(MEASURED, step, **named)
        self._track(named, step)

    def note(self, kind: str, step: int, **facts: JsonValue) -> None:
        """Log an event that is not a metric: started, resumed, committed, stopped. If the log cannot be written, print a warning and
        continue: a log must not stop a run."""
        self._listener(kind, step, facts)
        if not self._main:
            return
        line = json.dumps({"event": kind, "step": step, "time": round(time.time(), 3), **facts})
        try:
            files.append_line(self.log_path, line)
        except (OSError, UserError) as error:
            self.say(f"warning: the log cannot be written ({error}); event: {line}")

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self._main:
            tqdm.write(make_safe(text)) if self._bar is not None else print_line(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._accelerator.log_with:
            for tracker in self._accelerator.trackers:  # not `end_training`, which would also destroy the process group
                tracker.finish()

    def _track(self, values: Mapping[str, float | str], step: int) -> None:
        """Send values to the trackers, possibly for an earlier step."""
        for tracker in self._accelerator.trackers if self._accelerator.log_with else ():
            tracker.log(values, step=None if tracker.name == "wandb" else step)  # wandb drops values of earlier steps

    def _record(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        self.note(kind, step, **numbers)
        if self._accelerator.log_with:
            self._accelerator.log(numbers, step=step)


def _format_metrics(numbers: Mapping[str, float], metrics: Iterable[str]) -> str:
    """Two spaces, name and value of each that was measured; empty without any."""
    return "".join(f"  {name} {numbers[name]:.4g}" for name in metrics if name in numbers)


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def format_end(now: float, left: float) -> str:
    """The local time in `left` seconds, with the date if that is another day."""
    today, end = time.localtime(now), time.localtime(now + left)
    same_day = (today.tm_year, today.tm_yday) == (end.tm_year, end.tm_yday)
    return time.strftime("at %H:%M" if same_day else "on %Y-%m-%d at %H:%M", end)


def average_numbers(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Name → mean of this number over the answers that have it."""
    names = dict.fromkeys(name for of_one in numbers for name in of_one)
    having = {name: [of_one[name] for of_one in numbers if name in of_one] for name in names}
    return {name: sum(values) / len(values) for name, values in having.items()}


def _show_media(writer: Any, step: int, answers: list[Answer]) -> None:
    """Add audio and images to TensorBoard. Other trackers get only texts and metrics; the files are in the run's folder."""
    import soundfile
    from matplotlib.image import imread

    for number, answer in enumerate(answers, 1):
        if answer.sound:
            samples, rate = soundfile.read(io.BytesIO(answer.sound), dtype="float32")
            writer.add_audio(f"samples/{number}", torch.from_numpy(samples), step, sample_rate=rate)
        if answer.picture:
            writer.add_image(f"samples/{number}", imread(io.BytesIO(answer.picture), format="png")[:, :, :3], step, dataformats="HWC")


def _format_code_block(text: str) -> str:
    """The text as a Markdown code block."""
    return "\n".join(f"    {line}" for line in split_lines(text))


def draw_curve(log_path: Path, picture: Path) -> None:
    """Write a PNG with training and validation loss over optimizer steps, and the learning rate below."""
    from matplotlib.figure import Figure

    events = read_log(log_path)
    figure = Figure(figsize=(8, 5.6))
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    # Fixed margins: a layout that matplotlib computes would draw every picture twice.
    figure.subplots_adjust(left=0.1, right=0.98, top=0.94, bottom=0.1, hspace=0.12)
    losses.set_ylabel("loss")
    losses.set_title(_drop_surrogates(str(log_path.parent)), parse_math=False)  # a $ in a folder's name would start a formula
    rates.set(xlabel="optimizer step", ylabel="learning rate")
    training, validation = read_points(events, "step", "loss"), read_points(events, "evaluation", "val/loss")
    smooth = smooth_values([value for _, value in training])
    if training:
        style = {"color": "tab:blue", "linewidth": 1}
        losses.plot(*zip(*training, strict=True), **style, alpha=0.35 if smooth else 1, label="training")
    if smooth:
        losses.plot([step for step, _ in training], smooth, color="tab:blue", linewidth=2, label="training, smoothed")
    if validation:
        losses.plot(*zip(*validation, strict=True), "o-", color="tab:orange", linewidth=1.5, markersize=4, label="validation")
        for name in sorted({key[4:-5] for event in events if event["event"] == "evaluation" for key in event if VALIDATED.fullmatch(key)}):
            label = _drop_surrogates(name).replace("$", r"\$").removeprefix("_")  # matplotlib leaves out labels that begin with _
            points = read_points(events, "evaluation", f"val/{name}/loss")
            losses.plot(*zip(*points, strict=True), ".--", linewidth=1, markersize=4, label=f"validation, {label}") if points else None
        step, best = min(validation, key=lambda point: point[1])
        losses.plot([step], [best], "*", color="tab:red", markersize=13, label=f"best validation loss: {best:.4g} at step {step:,}")
    if points := read_points(events, "step", "lr"):
        rates.plot(*zip(*points, strict=True), color="gray", linewidth=1)
        rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for event in events:
        if event["event"] == "resumed" and (marked := event.get("marked")) and isinstance(marked, list):
            text = ", ".join(_drop_surrogates(str(key)) for key in marked[:2]) + (", …" if len(marked) > 2 else "")
            losses.axvline(event["step"], color="gray", linestyle=":", linewidth=1)
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top", "ha": "right", "fontsize": 7}
            losses.annotate(text[:60], (event["step"], 1), **place, parse_math=False)
    if losses.get_legend_handles_labels()[0]:  # a log without steps: of a finished run that was resumed in a new folder
        losses.legend()
    for axes in (losses, rates):
        axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    files.write_bytes(picture, buffer.getbuffer())


def read_points(events: Sequence[dict[str, Any]], kind: str, key: str) -> list[tuple[int, float]]:
    """(step, value) of all events of a kind, by step; without values that are not numbers or cannot be plotted."""
    found = [(event["step"], event.get(key)) for event in events if event["event"] == kind]
    return sorted((step, value) for step, value in found if isinstance(value, float) and abs(value) <= LARGEST)


def smooth_values(values: Sequence[float]) -> list[float]:
    """Exponential moving average over about a twentieth of the values, corrected for its start; empty for fewer than `LEAST_TO_SMOOTH`."""
    if len(values) < LEAST_TO_SMOOTH:
        return []
    decay = 1 - 2 / (max(10, len(values) // 20) + 1)
    smoothed, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = decay * total + (1 - decay) * value, decay * weight + (1 - decay)
        smoothed.append(total / weight)
    return smoothed


def _drop_surrogates(text: str) -> str:
    """The text without lone surrogates, which no font contains."""
    return text.encode(errors="replace").decode()
