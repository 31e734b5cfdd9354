"""The log of a run: lines that survive a crash, a curve, and progress for consoles and trackers."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave

from overtone.finetune.distributed.process_group import World, join
from overtone.finetune.monitoring.run_logger import Events, draw_curve, format_duration, format_end, smooth_values
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.recipe import Answer

NUMBERS = {"loss": 2.5, "grad_norm": 1.25, "lr": 1e-4, "tokens_per_second": 1000.0, "tokens": 300.0, "memory_gib": 1.5}


def opened(tmp_path: Path, world: World, total: int = 4, done: int = 0) -> Events:
    return Events(tmp_path / "run", world.accelerator, total, done, {})


def test_each_event_is_one_line_of_json(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    events = opened(tmp_path, world)
    events.note("started", 0, world=1)
    events.step(1, NUMBERS)
    events.evaluation(1, {"loss": 3.0, "next": 2.0})
    events.close()
    lines = [json.loads(line) for line in events.log_path.read_text().splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == [("started", 0), ("step", 1), ("evaluation", 1)]
    assert lines[0]["world"] == 1 and NUMBERS.items() <= lines[1].items()
    assert lines[2]["val/loss"] == 3.0 and lines[2]["val/next"] == 2.0
    assert all(line["time"] > 1.7e9 for line in lines)
    assert "validation loss 3.0000" in capsys.readouterr().out


def test_metrics_are_shown_beside_the_loss_and_logged_under_their_own_names(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    events = Events(tmp_path / "run", world.accelerator, 1, 0, {}, unit="images")
    events.step(1, {**NUMBERS, "nll": 2.5, "accuracy": 0.61234, "top 5": 0.9}, ("accuracy", "top 5"))
    events.evaluation(1, {"loss": 3.0, "accuracy": 0.5}, ("accuracy",))
    events.close()
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("step 1/1  loss 2.5000  accuracy 0.6123  top 5 0.9  1000 images/s  1.5 GiB  norm ")
    assert last == "step 1: validation loss 3.0000  accuracy 0.5"
    step, evaluation = read_log(events.log_path)
    assert {**NUMBERS, "nll": 2.5, "accuracy": 0.61234}.items() <= step.items() and evaluation["val/accuracy"] == 0.5


def test_a_listener_receives_every_event_of_its_rank(tmp_path: Path, world: World) -> None:
    heard = list[tuple[str, int, dict[str, object]]]()
    events = Events(tmp_path / "run", world.accelerator, 4, 0, {}, lambda *event: heard.append(event))
    events._main = False  # what is heard does not depend on who speaks
    events.step(1, NUMBERS)
    events.evaluation(1, {"loss": 3.0})
    events.note("committed", 1, folder="step-00000001")
    events.close()
    assert heard == [("step", 1, NUMBERS), ("evaluation", 1, {"val/loss": 3.0}), ("committed", 1, {"folder": "step-00000001"})]
    assert not events.log_path.exists()


def test_answers_are_logged_with_their_step(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    events = opened(tmp_path, world)
    events.answers(2, [("Who?", Answer("Me.\n*You*.")), ("When?", Answer(""))], [None, None])
    events.close()
    assert capsys.readouterr().out.splitlines() == ["step 2: 'Who?' → 'Me.\\n*You*.'", "step 2: 'When?' → ''"]
    (event,) = read_log(events.log_path)
    assert (event["event"], event["step"]) == ("sampled", 2)
    assert event["answers"] == [{"prompt": "Who?", "answer": "Me.\n*You*."}, {"prompt": "When?", "answer": ""}]


def test_audio_answers_are_logged_to_tensorboard(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked = type(world.accelerator)(cpu=True, log_with="tensorboard", project_dir=str(tmp_path / "run"))
    events = Events(tmp_path / "run", tracked, 4, 0, {})
    wave, picture = io.BytesIO(), io.BytesIO()
    soundfile.write(wave, np.sin(np.arange(24_000) / 10), 24_000, format="FLAC")
    imsave(picture, np.eye(4, 6), format="png")
    spoken = Answer("1.00 s", wave.getvalue(), picture.getvalue(), {"seconds": 1.0, "pace": 12.0})
    events.answers(
        3, [("Hello.", spoken), ("Bye.", Answer("2 s", numbers={"seconds": 2.0}))], [tmp_path / "run" / "samples" / "1.flac", None]
    )
    events.close()
    assert capsys.readouterr().out.splitlines()[1:] == ["step 3: 'Hello.' → samples/1.flac: 1.00 s", "step 3: 'Bye.' → '2 s'"]
    (event,) = read_log(events.log_path)
    assert event["answers"][0] == {"prompt": "Hello.", "answer": "1.00 s", "seconds": 1.0, "pace": 12.0, "sound": "samples/1.flac"}
    board = EventAccumulator(str(tmp_path / "run" / "tracking"))
    board.Reload()
    (sound,), (shown,) = board.Audio("samples/1"), board.Images("samples/1")
    samples, rate = soundfile.read(io.BytesIO(sound.encoded_audio_string))
    assert (len(samples), rate, sound.step) == (24_000, 24_000, 3) and abs(samples).max() > 0.9
    assert (shown.height, shown.width, shown.step) == (4, 6, 3)
    assert [(one.step, one.value) for one in board.Scalars("samples/seconds")] == [(3, 1.5)]
    assert [one.value for one in board.Scalars("samples/pace")] == [12.0]


def test_without_a_terminal_progress_is_rare_and_complete(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    events = opened(tmp_path, world, total=50)
    for step in range(1, 51):
        events.step(step, NUMBERS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3, "one at the start, the pace, and one at the end, or a log of days fills with lines"
    assert lines[0].startswith("step 1/50  loss 2.5000  1000 positions/s  1.5 GiB  norm 1.250  lr 1.00e-04") and lines[2].endswith(
        "  0 s left"
    )


def test_a_terminal_of_80_columns_shows_a_bar_with_all_that_matters(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = pty.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        events = Events(tmp_path / "run", world.accelerator, 10_000, 9_000, {}, unit="tokens")
        events.step(9_500, {**NUMBERS, "tokens_per_second": 23456.0})
        shown = drawn(reading, r"9500/10000  95%\|\S+ ?\| 00:\d\d left, loss 2\.5000  23456 tokens/s  1\.5 GiB  norm")
        events.say("a word")
        events.close()
    os.close(reading)
    assert len(shown) <= 80 and capsys.readouterr().out == "a word\n", "one stream: no second line of progress beside the bar"


def drawn(terminal: int, pattern: str) -> str:
    """What a terminal shows once it matches. What was written reaches its other end in pieces, and some time later."""
    written = ""
    while not re.match(pattern, shown := written.rpartition("\r")[2]):
        assert select.select([terminal], [], [], 30)[0], f"nothing more came after {written!r}"
        written += os.read(terminal, 10_000).decode(errors="replace")
    return shown


def test_the_remaining_time_counts_from_the_resumed_step(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    events = opened(tmp_path, world, total=100, done=90)
    monkeypatch.setattr("time.monotonic", lambda: 1020.0)
    events.step(92, NUMBERS)
    assert capsys.readouterr().out.endswith("  80 s left\n"), "two steps took 20 s, eight are left"


def test_after_ten_steps_the_pace_and_the_end_are_reported_once(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step, which compiles, is not counted: 2 s for each of the others, at 14:00 on a summer's day in UTC."""
    clock = [0.0]
    monkeypatch.setattr("overtone.finetune.monitoring.run_logger.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("overtone.finetune.monitoring.run_logger.time.time", lambda: 1_750_000_000.0)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    events = opened(tmp_path, world, total=1815, done=5)
    for step in range(6, 30):
        clock[0] += 100.0 if step == 6 else 2.0
        events.step(step, NUMBERS)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "s a step" in line]
    assert line == "step 15: 2 s a step, 1.0 hours left: ends at 16:06, not counting evaluations and saves"
    monkeypatch.undo()
    time.tzset()


def test_a_run_of_ten_steps_reports_no_pace(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    events = opened(tmp_path, world, total=10)
    for step in range(1, 11):
        events.step(step, NUMBERS)
    assert "s a step" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (90, "1.5 minutes"), (3600, "1.0 hours"), (10**6, "277.8 hours")]
)
def test_durations_have_a_readable_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_an_end_on_another_day_has_a_date() -> None:
    noon = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
    assert format_end(noon, 3600) == "at 13:00"
    assert format_end(noon, 13 * 3600) == "on 2026-03-05 at 01:00"


def test_the_remaining_time_excludes_the_evaluation_before_the_first_step(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    events = opened(tmp_path, world, total=10)
    monkeypatch.setattr("time.monotonic", lambda: 1600.0)
    events.evaluation(0, {"loss": 5.0})
    monkeypatch.setattr("time.monotonic", lambda: 1620.0)
    events.step(2, NUMBERS)
    assert capsys.readouterr().out.endswith("  80 s left\n")


def test_other_ranks_log_nothing(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.accelerator), "is_main_process", property(lambda _: False))
    events = opened(tmp_path, world)
    events.note("started", 0)
    events.step(4, NUMBERS)
    events.evaluation(4, {"loss": 1.0})
    events.close()
    assert capsys.readouterr().out == "" and not events.log_path.exists()


def test_a_torn_line_is_dropped_and_a_step_logged_twice_counts_once(tmp_path: Path, world: World) -> None:
    events = opened(tmp_path, world)
    for step, loss in ((1, 5.0), (2, 4.0), (3, 3.0)):
        events.step(step, {**NUMBERS, "loss": loss})
    with events.log_path.open("ab") as file:
        file.write(b'{"event": "step", "step": 4, "lo')
    events.note("resumed", 1)
    events.step(2, {**NUMBERS, "loss": 4.5})
    assert [(event["event"], event["step"], event.get("loss")) for event in read_log(events.log_path)] == [
        ("step", 1, 5.0), ("step", 2, 4.5), ("step", 3, 3.0), ("resumed", 1, None),
    ]  # fmt: skip


def ink(picture: Path) -> int:
    """Pixels that are not white."""
    return int((imread(picture)[..., :3].min(axis=-1) < 0.9).sum())


FOREIGN = (
    *(b"", b"looks good so far", b"3", b"null", b"[]", b"{}", b'"event"', b'{"event": "step"}', b'{"step": 3}', b"\xff\xfe", b"[" * 10**5),
    *(b'{"event": "step", "step": "3", "loss": 1.0}', b'{"event": [], "step": 3}', b'{"event": "step", "step": true}', b"\x00\x00"),
    b'{"event": "step", "step": 1' + b"0" * 400 + b', "loss": 1.0}',
)
"""Lines that this program did not write, and that are no event."""
HALF = (
    *(b'{"event": "step", "step": 7}', b'{"event": "step", "step": 8, "loss": "low"}', b'{"event": "step", "step": 9, "loss": 1e999}'),
    *(b'{"event": "step", "step": 10, "loss": 1.7e308}', rb'{"event": "resumed", "step": 11, "marked": ["\ud800"]}'),
)
"""Events, but no point of a curve."""


def test_foreign_lines_are_no_events_and_no_points(tmp_path: Path, world: World) -> None:
    events = Events(tmp_path / "$a_{run} \udcff", world.accelerator, 3, 0, {})
    for line in (*FOREIGN, *HALF):
        events.log_path.parent.mkdir(exist_ok=True)
        with events.log_path.open("ab") as file:
            file.write(line + b"\n")
    events.step(1, NUMBERS)
    found = read_log(events.log_path)
    assert [event["step"] for event in found] == [7, 8, 9, 10, 11, 1] and len(FOREIGN) == 16
    draw_curve(events.log_path, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_curve_is_a_picture_of_the_losses(tmp_path: Path, world: World) -> None:
    events = opened(tmp_path, world)
    events.note("started", 0)
    for step in range(1, 40):
        events.step(step, {**NUMBERS, "loss": 5 / step})
    draw_curve(events.log_path, tmp_path / "one.png")
    events.evaluation(20, {"loss": 1.0})
    events.evaluation(39, {"loss": 0.5})
    draw_curve(events.log_path, tmp_path / "two.png")
    data = (tmp_path / "one.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and imread(tmp_path / "one.png").shape[:2] == (672, 960)
    colours = np.unique((imread(tmp_path / "one.png")[..., :3] * 255).astype(int).reshape(-1, 3), axis=0)
    assert any(blue > red + 60 for red, _, blue in colours), "the line of the training loss"
    assert ink(tmp_path / "two.png") > ink(tmp_path / "one.png") + 100, "the validation loss is drawn as well"


def figure_of(monkeypatch: pytest.MonkeyPatch, log: Path, picture: Path) -> Any:
    """The figure that `draw_curve` saves."""
    figures: list[Any] = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *rest, **named: (figures.append(figure), savefig(figure, *rest, **named))[1])
    draw_curve(log, picture)
    return figures[-1]


def test_the_curve_begins_with_the_base_marks_the_best_and_has_the_learning_rate_below(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = opened(tmp_path, world)
    events.evaluation(0, {"loss": 6.0})
    for step in range(1, 41):
        events.step(step, {**NUMBERS, "loss": 5.0 + (-1) ** step, "lr": 1e-5 * step})
    for step, loss in ((10, 2.0), (20, 1.0), (40, 1.5)):
        events.evaluation(step, {"loss": loss})
    losses, rates = figure_of(monkeypatch, events.log_path, tmp_path / "loss.png").axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in losses.get_lines()}
    assert lines["validation"] == [[0, 6.0], [10, 2.0], [20, 1.0], [40, 1.5]]
    assert lines["best validation loss: 1 at step 20"] == [[20, 1.0]]
    assert len(lines["training"]) == 40 and all(abs(value - 5.0) < 0.2 for _, value in lines["training, smoothed"][20:])
    assert rates.get_ylabel() == "learning rate" and rates.get_lines()[0].get_xydata()[-1].tolist() == [40, pytest.approx(4e-4)]


def test_each_validation_file_has_a_line(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    events = opened(tmp_path, world)
    for step, loss in ((10, 2.0), (20, 1.0)):
        events.evaluation(step, {"loss": loss, "me/val/loss": loss + 1, "replay$/loss": loss + 2, "replay$/accuracy": 0.5})
    losses, _ = figure_of(monkeypatch, events.log_path, tmp_path / "loss.png").axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in losses.get_lines()}
    assert lines["validation, me/val"] == [[10, 3.0], [20, 2.0]]
    assert lines["validation, replay\\$"] == [[10, 4.0], [20, 3.0]] and len(lines) == 4


def test_few_losses_are_not_smoothed_and_many_keep_their_level() -> None:
    assert smooth_values([3.0] * 19) == [] and smooth_values([3.0] * 400) == pytest.approx([3.0] * 400)
    falling = smooth_values([float(value) for value in range(400, 0, -1)])
    assert falling == sorted(falling, reverse=True) and falling[0] == 400 and 1 < falling[-1] < 20


def test_a_run_without_a_step_has_a_curve_without_a_line(tmp_path: Path, world: World, recwarn: pytest.WarningsRecorder) -> None:
    events = opened(tmp_path, world)
    events.note("started", 0)
    draw_curve(events.log_path, tmp_path / "empty.png")
    assert ink(tmp_path / "empty.png") > 100


def test_a_tracker_gets_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from overtone.finetune.distributed.process_group import leave

    world = join(("tensorboard",), tmp_path / "my run")
    events = Events(tmp_path / "my run", world.accelerator, 2, 0, {"train.lr": 1e-4, "recipe": "tests", "train.steps": 2})
    events.step(1, NUMBERS)
    events.step(2, {**NUMBERS, "loss": 1.5})
    events.evaluation(2, {"loss": 1.75})
    events.close()
    leave()
    assert f"curves: tensorboard --logdir '{tmp_path}/my run'\n" in capsys.readouterr().out, "it can be pasted"
    (folder,) = {path.parent for path in (tmp_path / "my run" / "tracking").glob("events.out.tfevents.*")}
    seen = EventAccumulator(str(folder)).Reload()
    assert [(event.step, event.value) for event in seen.Scalars("loss")] == [(1, 2.5), (2, 1.5)]
    assert [(event.step, event.value) for event in seen.Scalars("val/loss")] == [(2, 1.75)]


@pytest.mark.parametrize("done", [3, 0], ids=["resumed", "killed before the first save"])
def test_steps_that_are_repeated_after_a_kill_are_drawn_once(done: int, tmp_path: Path) -> None:
    """The curves equal those of an unbroken run, in TensorBoard and in the log; the killed launch closes nothing."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    from overtone.finetune.distributed.process_group import leave

    def launch(run: Path, first: int, last: int) -> Events:
        world = join(("tensorboard",), run)
        events = Events(run, world.accelerator, 6, first, {"train.lr": 1e-4})
        if first == 0:
            events.evaluation(0, {"loss": 9.0})
        for step in range(first + 1, last + 1):
            events.step(step, {**NUMBERS, "loss": 10.0 - step + 0.01 * (last < 6)})  # a repeated step has another number
            events.evaluation(step, {"loss": 9.0 - step})
        leave()
        return events

    def read(run: Path) -> dict[str, list[tuple[int, float]]]:
        seen = EventAccumulator(str(run / "tracking")).Reload()
        return {tag: [(event.step, round(event.value, 3)) for event in seen.Scalars(tag)] for tag in sorted(seen.Tags()["scalars"])}

    launch(tmp_path / "broken", 0, 5)
    launch(tmp_path / "broken", done, 6).close()
    launch(tmp_path / "unbroken", 0, 6).close()
    found, expected = read(tmp_path / "broken"), read(tmp_path / "unbroken")
    assert {tag: [step for step, _ in points] for tag, points in found.items()} == {tag: [s for s, _ in ps] for tag, ps in expected.items()}
    assert found["loss"][done:] == expected["loss"][done:] and found["val/loss"] == expected["val/loss"]
    logged = [event["step"] for event in read_log(tmp_path / "broken" / "log.jsonl") if event["event"] == "step"]
    assert logged == [1, 2, 3, 4, 5, 6]
    files = sorted((tmp_path / "broken" / "tracking").glob("events.out.tfevents.*"))
    restarts = [event.step for event in EventFileLoader(str(files[-1])).Load() if event.HasField("session_log")]
    assert len(files) == 2 and restarts == [done + 1 if done else 0]


def test_other_trackers_write_to_the_runs_folder(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(world.accelerator, "log_with", ["wandb"])
    monkeypatch.setattr(world.accelerator, "init_trackers", lambda *names, **settings: asked.append((*names, settings)))
    Events(tmp_path / "run", world.accelerator, 4, 0, {"train.lr": 1e-4})
    place = {"dir": str(tmp_path / "run"), "name": "run"}
    assert asked == [("tracking", {"config": {"train.lr": 1e-4}, "init_kwargs": {"wandb": place, "tensorboard": {"purge_step": 0}}})]


def test_wandb_receives_answers_without_their_step(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers arrive some steps late, and wandb drops values of earlier steps."""
    steps: dict[str, int | None] = {}

    def tracker(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, log=lambda _, step: steps.update({name: step}))

    monkeypatch.setattr(world.accelerator, "log_with", ["wandb", "trackio"])
    monkeypatch.setattr(world.accelerator, "init_trackers", lambda *_, **__: None)
    monkeypatch.setattr(world.accelerator, "trackers", [tracker("wandb"), tracker("trackio")])
    opened(tmp_path, world).answers(3, [("Who?", Answer("Me."))], [None])
    assert steps == {"wandb": None, "trackio": 3}
