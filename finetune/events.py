"""What a run tells: one line of JSON for each event, the same numbers to accelerate's trackers, and a line or a bar for people."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from tqdm import tqdm

from finetune import files
from finetune.errors import UserError

QUIET_SECONDS = 10.0
"""Where there is no terminal, at most one line of progress in this time."""
BAR = "{n_fmt}/{total_fmt} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"
"""tqdm's own order would cut speed and memory off in 80 columns."""


class Events:
    """The stream of one run. Open it on every rank; only the main one speaks, but trackers are set up collectively."""

    def __init__(self, run_dir: Path, accelerator: Accelerator, total: int, done: int, settings: dict[str, Any]) -> None:
        self.log_path = run_dir / "log.jsonl"
        self._accelerator, self._main, self._total = accelerator, accelerator.is_main_process, total
        self._spoke, self._started, self._first = 0.0, time.monotonic(), done
        self.reached = done
        """The last step that was told."""
        if accelerator.log_with:
            place = {"dir": str(run_dir), "name": run_dir.name}  # wandb's own choice is ./wandb, which Python would import in its place
            accelerator.init_trackers("tracking", config=settings, init_kwargs={"wandb": place})
        on_terminal = self._main and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, bar_format=BAR, dynamic_ncols=True) if on_terminal else None

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

    def answers(self, step: int, pairs: list[tuple[str, str]]) -> None:
        """Prompts, and what the model of optimizer step `step` answered to them; told some steps later."""
        self.note("sampled", step, answers=[{"prompt": prompt, "answer": answer} for prompt, answer in pairs])
        for prompt, answer in pairs:
            self.say(f"step {step}: {prompt!r} → {answer!r}")
        texts = {f"samples/{number}": f"step {step}: {prompt}\n\n{_verbatim(answer)}" for number, (prompt, answer) in enumerate(pairs, 1)}
        for tracker in self._accelerator.trackers if self._accelerator.log_with else ():
            tracker.log(texts, step=None if tracker.name == "wandb" else step)  # wandb drops what comes for a step gone by

    def note(self, kind: str, step: int, **facts: Any) -> None:
        """An event without a curve: started, resumed, committed, stopped. What the disk refuses is said instead: a log stops no run."""
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

    def _record(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        self.note(kind, step, **numbers)
        if self._accelerator.log_with:
            self._accelerator.log(numbers, step=step)


def _verbatim(text: str) -> str:
    """As Markdown that shows a text as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def read_log(path: Path) -> list[dict[str, Any]]:
    """Events of a log. Of a step that was logged twice (redone after a crash) the last stands; a torn last line is dropped."""
    events: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        events[event["event"], event["step"]] = event
    return list(events.values())


def draw_curve(log_path: Path, picture: Path) -> None:
    """Loss against optimizer steps, training and validation, as a PNG."""
    import io

    from matplotlib.figure import Figure

    events = read_log(log_path)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="optimizer step", ylabel="loss", title=str(log_path.parent))
    for kind, key, style in (("step", "loss", "-"), ("evaluation", "val/loss", "o-")):
        points = [(event["step"], event[key]) for event in events if event["event"] == kind]
        if points:
            axes.plot(*zip(*sorted(points), strict=True), style, label="training" if kind == "step" else "validation", linewidth=1)
    axes.legend()
    axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    files.write_bytes(picture, buffer.getbuffer())
