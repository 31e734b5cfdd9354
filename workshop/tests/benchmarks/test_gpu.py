"""Tests of what gpu.py would do on a GPU of 80 GB: memory by the plan, time by its own arithmetic; and of how it watches, keeps and shows
figures."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config, resolve
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.planning.data_preview import read_some_rows
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import Recipe, find_recipe, load_recipe
from overtone.finetune.training import loop, setup
from overtone.finetune.training.step import Training
from overtone.recipes.language.modeling import attention_selection, varlen_attention
from overtone.recipes.llm_sft.model import tiny_checkpoint as tiny_chat
from overtone.recipes.voice_clone.model import tiny_checkpoint as tiny_voice
from tests.launch.launching import ROOT
from workshop.benchmarks import _gpu, _gpu_facts, _gpu_figures, _gpu_saving, _gpu_smoke, _gpu_speech, _gpu_steps, _gpu_voice, gpu
from workshop.benchmarks._gpu_figures import MINUTES, MODELS, PARTS, Record, Table, part_named, read_record
from workshop.benchmarks._gpu_steps import GIB, Version, chat_versions, voice_versions

ROOM = 76 * GIB
"""Memory of an H100 of 80 GB (79.1 GiB), with some left for the context and for what the allocator cannot use."""
VERSIONS = [("chat", version) for version in chat_versions()] + [("voice", version) for version in voice_versions()]
LARGEST = {("chat", "even: one sample a row"), ("voice", "nothing recomputed")}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the bases as the benchmarks do, in shape only."""
    folder = tmp_path_factory.mktemp("bases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_chat, "make_weights", lambda *_, **__: b"")
        patch.setattr(tiny_voice, "make_model_weights", lambda *_, **__: b"")
        _gpu.make_chat(folder / "chat", _gpu.FULL)
        _gpu.make_voice(folder / "voice", _gpu.FULL)
    for kind in ("chat", "voice"):
        (folder / kind / "base" / "model.safetensors").unlink()
    return folder


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    joined = join((), tmp_path)
    yield joined
    leave()


def recipe_of(kind: str) -> Recipe:
    return load_recipe(find_recipe(_gpu_steps.RECIPES[kind]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "version"),
    [
        pytest.param(kind, version, id=f"{kind}, {version.name}", marks=[] if (kind, version.name) in LARGEST else [pytest.mark.slow])
        for kind, version in VERSIONS
    ],
)
def test_every_version_fits_an_h100(kind: str, version: Version, bases: Path) -> None:
    # Liger needs a GPU to be built, and holds less than ours.
    keys = {key: value for key, value in version.keys.items() if value != "liger"}
    recipe = recipe_of(kind)
    with _gpu_steps.levers(version):
        plan = _gpu_steps.planned(_gpu_steps.config_of(kind, replace(version, keys=keys), bases, _gpu.FULL, recipe, bases / "run"), recipe)
    assert 20 * GIB < plan < ROOM, f"{plan / GIB:.1f} GiB"


@pytest.mark.parametrize(("kind", "version"), VERSIONS, ids=lambda each: getattr(each, "name", each))
def test_a_version_is_compiled_if_its_name_says_so(kind: str, version: Version, tmp_path: Path) -> None:
    """With `auto`, a GPU would compile all of them."""
    keys = {key: value for key, value in version.keys.items() if value != "liger"}
    config = _gpu_steps.config_of(kind, replace(version, keys=keys), tmp_path, _gpu.FULL, recipe_of(kind), tmp_path / "run")
    assert config.train.compile is ("compiled" in version.name)


def test_rows_of_compiled_blocks_have_one_length_as_in_training(tmp_path: Path, world: World) -> None:
    (version,) = (version for version in chat_versions() if version.name == "compiled")
    _gpu.make_chat(tmp_path / "chat", _gpu.SMALLEST)
    recipe = recipe_of("chat")
    config = _gpu_steps.config_of("chat", version, tmp_path, _gpu.SMALLEST, recipe, tmp_path / "run")
    training, _ = setup.build(config, recipe, world)
    turns, _ = _gpu_steps.chat_step(training, version, _gpu.SMALLEST)
    assert {turn.batch.tensors["ids"].shape for turn in turns} == {(1, _gpu.SMALLEST.micro)}
    assert all(turn.micro.tokens < _gpu.SMALLEST.micro for turn in turns)


@pytest.mark.slow
def test_both_models_of_a_comparison_fit_an_h100(bases: Path) -> None:
    """The larger of its micro-batches, which is 32 clips padded to the longest, beside the weights and states of the other model."""
    recipe = recipe_of("voice")
    positions = _gpu.FULL.clips * longest_clip(_gpu_voice.ways_config(bases), recipe)
    for config in (_gpu_voice.ways_config(bases), _gpu_voice.overhead_config(bases)):
        train = config.train.model_copy(update={"micro_tokens": max(positions, 4096)})
        whole = config.model_copy(update={"train": train})
        plan, other = _gpu_steps.planned(whole, recipe), 16 * estimate_run(whole, recipe).outline.total
        assert other > 5 * GIB and plan + other < ROOM, f"{plan / GIB:.1f} and {other / GIB:.1f} GiB at {positions} positions"


def longest_clip(config: Config, recipe: Recipe) -> int:
    """Positions."""
    processor = estimate_run(config, recipe).processor()
    assert config.data.train is not None
    return max(recipe.length(recipe.read(row, processor, Path())) for _, row in read_some_rows(Path(str(config.data.train))))


def test_the_plan_is_of_the_strategy_that_the_row_trains_with(bases: Path) -> None:
    recipe = recipe_of("chat")
    (version,) = (each for each in chat_versions() if each.keys.get("parallel.strategy") == "fsdp")
    plans = [
        _gpu_steps.planned(_gpu_steps.config_of("chat", each, bases, _gpu.FULL, recipe, bases / "run"), recipe)
        for each in (version, version.but("ddp", {"parallel.strategy": "ddp"}))
    ]
    assert plans[0] != plans[1]


def test_the_run_that_is_saved_fits_an_h100(bases: Path) -> None:
    assert _gpu_steps.planned(_gpu_saving.chat_config(bases, _gpu.FULL, bases / "run"), recipe_of("chat")) < ROOM


@pytest.fixture
def bench(tmp_path: Path, world: World) -> _gpu.Bench:
    found = _gpu.Bench(tmp_path, dry=True)
    found._joined = world
    return found


def test_a_save_holds_the_host_alone_and_the_next_update_waits_for_its_copy(bench: _gpu.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for the device after a save would be to wait for the copy, which runs beside the next step."""
    _gpu.chat_base(bench)
    training, turns = _gpu_saving.chat_training(bench)
    saver = _gpu_saving.saver_of(bench, training)
    events: list[str] = []

    def recorded(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (events.append(name), act(*given))[1]

    monkeypatch.setattr(_gpu, "clock", recorded("clock", _gpu.clock))
    monkeypatch.setattr(loop, "save", recorded("save", loop.save))
    monkeypatch.setattr(saver, "before_update", recorded("before_update", saver.before_update))
    assert all(seconds > 0 for seconds in _gpu_saving.save_beside_a_step(training, turns, saver, 1))
    assert events == ["clock", "save", "before_update", "clock"]
    saver.close()


@pytest.mark.slow
def test_no_save_finds_another_checkpoint_on_the_disk(bench: _gpu.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    _gpu.chat_base(bench)
    save, found = loop.save, []

    def watched(training: Training, progress: loop.Progress, saver: checkpoint.Saver) -> None:
        found.append(list(checkpoint.folder_of(training.config.run.dir).glob("step-*")))
        save(training, progress, saver)

    monkeypatch.setattr(loop, "save", watched)
    for figure in _gpu_saving.FIGURES:
        assert figure.measure(bench), "each by itself"
    assert found == [[], [], []]
    assert not list((bench.folder / "runs").rglob("*.safetensors")) and not list((bench.folder / "runs").rglob("*.pt"))


def test_saves_take_no_more_of_the_disk_than_the_guide_says(bases: Path) -> None:
    """A checkpoint of 12 bytes a parameter, and an export of 4."""
    parameters = estimate_run(_gpu_saving.chat_config(bases, _gpu.FULL, bases / "run"), recipe_of("chat")).outline.total
    assert 26 < 16 * parameters / 1e9 < 28
    assert "Allow 28 GB for `saving`" in " ".join((ROOT / "workshop" / "lab_book" / "gpu.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("name", PARTS)
def test_a_part_takes_nine_minutes_by_its_own_arithmetic_with_a_tenth_left(name: str) -> None:
    part = part_named(name)
    assert part.expected < 0.9 * 60 * MINUTES
    names = [figure.name for figure in part.figures]
    assert len(names) == len(set(names)) and MODELS not in names and any(figure.dry for figure in part.figures)


HERE = {"card": "a card", "torch": "torch 2"}


def test_figures_are_reused_only_in_the_same_circumstances(tmp_path: Path) -> None:
    path = tmp_path / "gpu-part.jsonl"
    record = Record(path, HERE)
    record.add("good", [["good", 1]], None, 1.0)
    record.add("bad", [], "RuntimeError: no", 1.0)
    record.add("mended", [], "RuntimeError: no", 1.0)
    record.add("mended", [["mended", 2]], None, 1.0)
    with path.open("a") as file:
        file.write('{"figure": "cut o')  # by a kill
    assert record.standing() == {"good", "mended"}
    assert Record(path, {**HERE, "torch": "torch 3"}).standing() == set()
    (found,) = read_record(path)
    assert found["mended"].rows == [["mended", "2"]] and found["bad"].failed == "RuntimeError: no"
    record.add("later", [["later", 3]], None, 1.0)
    assert record.standing() == {"good", "mended", "later"}


TRIAL = "workshop.tests.benchmarks.gpu_trial"


def test_a_figure_that_hangs_dies_or_fails_affects_no_other(tmp_path: Path) -> None:
    """And the second call measures what is missing, no more."""
    for _ in range(2):
        assert _gpu_figures.measure_part(TRIAL, tmp_path, tmp_path / "work", dry=False) == ["hangs", "dies", "fails"]
    (found,) = read_record(tmp_path / f"gpu-{TRIAL}.jsonl")
    assert found[MODELS].failed is None, "which takes the place of an earlier failure"
    assert found["answers"].rows == [["answers", "42"]] and found["answers"].failed is None
    assert re.match(r"stopped after \d+ s", found["hangs"].failed or "")
    assert (found["dies"].failed or "").startswith("its process ended with -9")
    assert found["fails"].failed == "ValueError: not here"
    assert (tmp_path / "work" / "full" / "answers").read_text() == "x"


def test_no_figure_begins_when_the_minutes_of_a_part_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu_figures, "MINUTES", 0.0)
    assert len(_gpu_figures.measure_part(TRIAL, tmp_path, tmp_path / "work", dry=False)) == 4
    assert not read_record(tmp_path / f"gpu-{TRIAL}.jsonl") and not (tmp_path / "work").exists()


def test_a_table_has_a_row_for_each_failure_and_names_where_it_was_measured() -> None:
    table = Table(("what", "figure", "more"), (), "A note.")
    found = _gpu_figures.Found("dies", [], "ended with -11", 1.0, HERE)
    assert _gpu_figures.failure(found, table) == ["dies", "failed: ended with -11", "–"]
    assert _gpu_figures.about(found) == "On a card, torch 2."
    assert "Not measured yet: it needs a CUDA GPU." in _gpu_figures.section("smoke", [])


def test_each_torch_has_a_table_of_its_own(tmp_path: Path) -> None:
    path, other = tmp_path / "gpu-saving.jsonl", {**HERE, "torch": "torch 3"}
    Record(path, HERE).add(MODELS, [], "OSError: disk", 1.0)
    Record(path, other).add(MODELS, [], "OSError: disk", 1.0)
    for here in (HERE, other):
        Record(path, here).add("saves", [["a save", here["torch"], "", ""]], None, 1.0)
    Record(path, other).add(MODELS, [], None, 1.0)
    assert Record(path, HERE).standing() == Record(path, other).standing() == {"saves"}
    text = _gpu_figures.section("saving", read_record(path))
    first, second = text.split("| measured |")[1:]
    assert "| a save | torch 2 |" in first and "On a card, torch 2." in first and "torch 3" not in first
    assert "| a save | torch 3 |" in second and "On a card, torch 3." in second
    assert text.count("could not be made") == 1 and text.endswith("OSError: disk. On a card, torch 2.")


def test_the_ceiling_is_measured_again_on_another_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = _gpu.Bench(tmp_path, dry=True)
    bench.folder.mkdir()
    speeds = [_gpu_steps.ceiling(bench)]
    monkeypatch.setattr(_gpu, "seconds_of", lambda *_: 1.0)
    speeds.append(_gpu_steps.ceiling(bench))
    monkeypatch.setattr(_gpu, "circumstances", lambda _: HERE)
    speeds.append(_gpu_steps.ceiling(bench))
    assert speeds[0] == speeds[1] != speeds[2]


def test_speech_that_ends_early_has_no_speed() -> None:
    _gpu_speech.check_lengths({"here": torch.zeros(5, 16)}, 5)
    with pytest.raises(ValueError, match=r"of 5 frames were spoken: 4 \(stock\)"):
        _gpu_speech.check_lengths({"here": torch.zeros(5, 16), "stock": torch.zeros(4, 16)}, 5)


def test_first_calls_of_sdpa_come_after_one_of_another_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[int] = []
    monkeypatch.setattr(_gpu_facts, "attend", lambda query, *_: shapes.append(query.shape[2]))
    assert len(_gpu_facts.sdpa_first_calls(_gpu.Bench(tmp_path, dry=True))) == 2
    one = len(shapes) // 2
    assert shapes[0] not in shapes[1:one] and shapes[one] not in shapes[one + 1 :]


def test_the_first_error_of_a_command_is_found() -> None:
    text = "starting\n[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: too long\ntorch.elastic.ChildFailedError: x"
    assert _gpu_smoke.first_error(text) == "ValueError: too long"
    assert _gpu_smoke.first_error("one\nerror: model.source: no such folder\n") == "error: model.source: no such folder"
    assert _gpu_smoke.first_error("all went well") is None


def keys_of(name: str) -> dict[str, object]:
    """Config keys of a run of part `smoke`."""
    (figure,) = (figure for figure in _gpu_smoke.checks() if figure.name == name)
    assert isinstance(figure.measure, partial)
    return dict(figure.measure.args[3])


def test_qlora_can_quantize_the_chat_model_of_the_smoke_runs(bench: _gpu.Bench) -> None:
    _gpu_smoke.make_models(bench)
    assert _gpu_smoke.resolves("QLoRA", "llm_sft", keys_of("QLoRA"), bench)


def test_without_qwen_tts_the_chat_model_of_the_smoke_runs_is_made(bench: _gpu.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qwen_tts", None)
    part_named("smoke").prepare(bench)
    assert _gpu_smoke.resolves("packing", "llm_sft", keys_of("packing"), bench)


def test_packing_sample_by_sample_is_not_the_kernel_that_packing_takes(bench: _gpu.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    _gpu_smoke.make_models(bench)
    shape = AutoConfig.from_pretrained(bench.folder / "smoke-chat" / "base")
    monkeypatch.setattr(varlen_attention, "has_kernel", lambda _: True)
    names = {}
    for name in ("packing", "packing, sample by sample"):
        given = _gpu_smoke.settings(bench, "llm_sft", bench.folder / "run", keys_of(name))
        names[name] = attention_selection.choose_attention(
            resolve("llm_sft", recipe_of("chat").Options, [], list(given.items())), shape
        ).name
    assert names == {"packing": varlen_attention.KERNEL, "packing, sample by sample": varlen_attention.LOOP}


def test_serve_gets_a_port_that_is_free_and_a_dry_run_starts_it() -> None:
    with socket.create_server(("127.0.0.1", _gpu_smoke.free_port())) as listening:
        assert listening.getsockname()[1] > 0
    assert [figure.dry for figure in _gpu_smoke.checks() if figure.name == "serve, one request"] == [True]


def test_a_dry_run_leaves_the_committed_tables_alone() -> None:
    flags = gpu.read_flags(["--dry", "--part", "chat"])
    assert flags.part == "chat" and flags.to != gpu.RESULTS and flags.work != gpu.WORK
    assert gpu.read_flags([]) == gpu.Flags(None, gpu.RESULTS, gpu.WORK, dry=False)


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpu.read_flags(["--part", "chess"])
    assert "invalid choice" in capsys.readouterr().err
