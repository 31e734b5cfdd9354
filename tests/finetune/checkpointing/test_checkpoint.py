"""Checkpoints: values are restored bit by bit, damaged ones are skipped with their reason, and needed ones are never pruned."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.checkpoint import Saver, find, find_newest_valid, find_problem, prune
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.training import loop
from overtone.finetune.training.step import Training
from tests.finetune import tiny


def tensors_of(training: Training) -> dict[str, Tensor]:
    held = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
    return {name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone() for name, value in held.items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps with checkpoints of steps 2, 4 and 6. Copy it before changing it."""
    from overtone.finetune.distributed.process_group import join, leave

    folder = tmp_path_factory.mktemp("whole")
    world = join((), folder)
    tiny.trained(world, tiny.config_in(folder, ("checkpoint.every", "2")))
    leave()
    tiny.let_go(folder / "run")
    return folder / "run"


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "run")


def steps(run: Path) -> list[int]:
    return [int(path.name[5:]) for path in checkpoint.list_checkpoints(run / "checkpoints")]


def fake(folder: Path, step: int, validation_loss: float | None = None, data: str = "mine") -> Path:
    """A small committed checkpoint without tensors."""
    temporary = files.fresh_folder(folder, f"step-{step:08d}")
    rows = {"digest": data, "rows": 20, "positions": 400, "sources": []}
    evaluation = {} if validation_loss is None else {"loss": validation_loss}
    state = json.dumps(tiny.state(step, validation_loss=validation_loss, evaluation=evaluation, data=rows)).encode()
    written = files.write_blocks(temporary / "state.json", [state])
    entries = {"state.json": {"bytes": written.bytes, "digest": written.digest}}
    manifest = checkpoint.seal({"format": checkpoint.FORMAT, "step": step, "files": entries})
    files.write_in_place(temporary / "manifest.json", manifest)
    files.commit_folder(temporary, folder / f"step-{step:08d}")
    return folder / f"step-{step:08d}"


# --- save and restore


@pytest.mark.parametrize("asynchronous", ["true", "false"])
@pytest.mark.parametrize("kind", [tiny.FULL, tiny.LORA])
def test_what_was_saved_comes_back_bit_by_bit(tmp_path: Path, world: World, asynchronous: str, kind: tuple[tuple[str, str], ...]) -> None:
    config = tiny.config_in(tmp_path, *kind, ("train.steps", "3"), ("checkpoint.asynchronous", asynchronous))
    training, progress = tiny.trained(world, config)
    again, place = tiny.built(world, config)
    assert place == progress and place.step == 3
    before, after = tensors_of(training), tensors_of(again)
    assert before.keys() == after.keys() and len(before) == (3 * 17 if kind == tiny.FULL else 3 * 12) + 1
    for name, value in before.items():
        assert value.dtype == after[name].dtype and torch.equal(value, after[name]), name
    assert any(before[name].any() for name in before if name.startswith("optimizer.exp_avg."))
    assert all(float(state["step"]) == 3 for state in again.optimizer.state.values())


def test_a_checkpoint_holds_the_values_of_the_moment_its_save_started(tmp_path: Path, world: World) -> None:
    """Saving is asynchronous: training goes on while the copy is written."""
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "2")))
    expected = tensors_of(training)
    saver = Saver(world, tmp_path / "other", keep=2, asynchronous=True)
    loop.save(training, progress, saver)
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.add_(1.0)
    folder = saver.finish()
    saver.close()
    assert folder is not None and find_problem(folder) is None
    with checkpoint.rank_shards.open_shards(folder) as (read, shapes):
        assert shapes.keys() == expected.keys()
        assert all(torch.equal(read(name, None), value) for name, value in expected.items())


def test_frozen_parameters_are_not_saved(tmp_path: Path, world: World) -> None:
    training, _ = tiny.trained(world, tiny.config_in(tmp_path, *tiny.LORA, ("train.steps", "1")))
    trained = [name for name in tensors_of(training) if not name.startswith("optimizer.")]
    assert len(trained) == 13 and all(".lora_" in name or name == "scale" for name in trained)


def test_a_checkpoint_folder_describes_its_contents(run: Path) -> None:
    path = find(run)
    assert sorted(file.name for file in path.iterdir()) == [
        "config.yaml", "manifest.json", "rank-00001-of-00001.safetensors", "state.json",
    ]  # fmt: skip
    state = checkpoint.read_state(path)
    assert (state["format"], state["step"], state["optimizer_steps"], state["world"], state["strategy"]) == (1, 6, 6, 1, "ddp")
    assert state["place"].keys() == {"epoch", "window", "micro"} and state["data"]["rows"] == 20
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["files"].keys() == {"config.yaml", "state.json", "rank-00001-of-00001.safetensors"}
    assert [path.name for path in (run / "checkpoints").glob(".*")] == []


def test_other_shapes_and_other_parameters_are_refused(tmp_path: Path, world: World, copied: Path) -> None:
    training, _ = tiny.built(world, tiny.config_in(tmp_path / "new"))
    path = find(copied)
    parts = tensors_of(tiny.trained(world, tiny.config_in(tmp_path / "x", ("train.steps", "1")))[0])

    def rewritten(changed: dict[str, Tensor]) -> Path:
        shard = next(path.glob("*.safetensors"))
        checkpoint.rank_shards.write_shard(
            shard, {name: checkpoint.rank_shards.TensorShard(t, (0,) * t.dim()) for name, t in changed.items()}
        )
        return path

    with pytest.raises(UserError, match=r"has parameters of other shapes \(head\.bias is \(300,\), now \(256,\)\)"):
        checkpoint.restore(rewritten({**parts, "head.bias": torch.ones(300)}), training.model, training.optimizer, training.loaded.buffers)
    for changed in ({**parts, "more": torch.ones(1)}, {name: t for name, t in parts.items() if name != "head.bias"}):
        with pytest.raises(UserError, match=r"other trainable parameters \((more|head\.bias)"):
            checkpoint.restore(rewritten(changed), training.model, training.optimizer, training.loaded.buffers)


def damage(path: Path, at: int) -> None:
    """Flip the byte at `at` of the only shard of a checkpoint."""
    shard = next(path.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)


def test_damaged_moments_stop_a_resumed_run_and_no_export(copied: Path) -> None:
    path = find(copied)
    (entry,) = [entry for name, entry in json.loads((path / "manifest.json").read_text())["files"].items() if name.endswith("safetensors")]
    assert 0 < entry["weights_bytes"] < 0.5 * entry["bytes"], "the moments are two of three values"
    damage(path, entry["weights_bytes"])
    assert find_problem(path, with_moments=False) is None and find(copied) == path
    assert find_problem(path) == "rank-00001-of-00001.safetensors does not match its digest"
    newest, passed_over = checkpoint.find_newest_valid(copied)
    assert newest is not None and newest.name == "step-00000004" and len(passed_over) == 1


@pytest.mark.parametrize("place", [8, -1])
def test_damaged_weights_are_never_used(copied: Path, place: int) -> None:
    """In the header, and in the last byte before the moments."""
    path = find(copied)
    entry = json.loads((path / "manifest.json").read_text())["files"]["rank-00001-of-00001.safetensors"]
    damage(path, place % entry["weights_bytes"])
    assert find_problem(path, with_moments=False) == find_problem(path) == "rank-00001-of-00001.safetensors does not match its digest"
    assert find(copied).name == "step-00000004"


def test_a_shortened_file_is_found_without_reading_its_moments(copied: Path) -> None:
    path = find(copied)
    shard = next(path.glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    assert find_problem(path, with_moments=False) == f"{shard.name} does not match its digest"


# --- failure while saving


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_disk_error_at_any_operation_leaves_the_old_checkpoints_and_no_half(
    tmp_path: Path, world: World, copied: Path, asynchronous: bool
) -> None:
    training, progress = tiny.trained(world, tiny.config_in(tmp_path / "new", ("train.steps", "1")))
    progress = replace(progress, step=8)
    saver = Saver(world, copied, keep=3, asynchronous=asynchronous)

    def save() -> None:
        loop.save(training, progress, saver)
        saver.finish()

    operations: list[str] = []
    probe = Saver(world, shutil.copytree(copied, tmp_path / "probe"), keep=3, asynchronous=asynchronous)
    with files.watch(lambda operation, path: operations.append(operation)):
        loop.save(training, progress, probe)
        probe.finish()
    probe.close()
    committing = operations.index("rename")
    assert operations.count("rename") == 2 and len(operations) >= 12, "commit, and prune"
    for number in range(committing + 1):
        count = iter(range(10**6))

        def fail(operation: str, path: Path, count: Any = count, number: int = number) -> None:
            if next(count) == number:
                raise OSError(errno.ENOSPC, "No space left on device")

        with files.watch(fail), pytest.raises((OSError, UserError), match=r"(?i)no space|disk is full"):
            save()
        assert steps(copied) == [6, 4, 2] and find(copied).name == "step-00000006"
        assert list((copied / "checkpoints").glob(".*")) == []
    save()
    saver.close()
    assert steps(copied) == [8, 6, 4] and find_problem(find(copied)) is None


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "1")))
    saver = Saver(world, tmp_path / "other", keep=2, asynchronous=True)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(UserError, match=r"the checkpoint of step 1 needs 1,[0-9,]+ bytes at .*other.*, and 1,048,576 are free"):
        loop.save(training, progress, saver)
    saver.close()
    assert not (tmp_path / "other" / "checkpoints").exists()


def test_a_damaged_folder_in_the_way_is_replaced(tmp_path: Path, world: World) -> None:
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "2")))
    path = find(tmp_path / "run")
    (path / "state.json").write_text("{}")
    saver = Saver(world, tmp_path / "run", keep=2, asynchronous=True)
    loop.save(training, progress, saver)
    assert saver.finish() == path and find_problem(path) is None
    assert saver.poll() is None and saver.finish() is None
    saver.close()


# --- damage


def truncated(path: Path) -> str:
    shard = next(path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    return "rank-00001-of-00001.safetensors does not match its digest"


def flipped(path: Path) -> str:
    shard = next(path.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 4] ^= 1  # among the weights: the moments are the last two thirds
    shard.write_bytes(data)
    return "rank-00001-of-00001.safetensors does not match its digest"


def state_changed(path: Path) -> str:
    text = (path / "state.json").read_text()
    (path / "state.json").write_text(text.replace('"optimizer_steps": 6', '"optimizer_steps": 7'))
    return "state.json does not match its digest"


def deleted(path: Path) -> str:
    next(path.glob("*.safetensors")).unlink()
    return "files differ from the manifest: rank-00001-of-00001.safetensors"


def added(path: Path) -> str:
    (path / "rank-00002-of-00002.safetensors").write_bytes(b"")
    return "files differ from the manifest: rank-00002-of-00002.safetensors"


def swapped(path: Path) -> str:
    name = "rank-00001-of-00001.safetensors"
    shutil.copy(path.with_name("step-00000004") / name, path / name)
    return f"{name} does not match its digest"


def all_swapped(path: Path) -> str:
    shutil.rmtree(path)
    shutil.copytree(path.with_name("step-00000004"), path)
    return "manifest.json belongs to step 4"


def manifest_gone(path: Path) -> str:
    (path / "manifest.json").unlink()
    return "manifest.json cannot be read (FileNotFoundError"


def manifest_torn(path: Path) -> str:
    (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes()[:40])
    return "manifest.json cannot be read (JSONDecodeError"


def manifest_spaced(path: Path) -> str:
    (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes() + b"\n")
    return "manifest.json cannot be read (ValueError: it does not match its own digest"


def a_folder_instead(path: Path) -> str:
    size = (path / "state.json").stat().st_size
    (path / "state.json").unlink()
    (path / "state.json").mkdir()
    return "state.json does not match its digest" if (path / "state.json").stat().st_size != size else "state.json cannot be read"


def a_file_instead(path: Path) -> str:
    shutil.rmtree(path)
    path.write_text("no folder")
    return "manifest.json cannot be read (NotADirectoryError"


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        flipped,
        state_changed,
        deleted,
        added,
        swapped,
        all_swapped,
        manifest_gone,
        manifest_torn,
        manifest_spaced,
        a_folder_instead,
        a_file_instead,
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_its_reason(copied: Path, damage: Callable[[Path], str]) -> None:
    path = find(copied)
    assert find_problem(path) is None and find_newest_valid(copied) == (path, [])
    reason = damage(path)
    problem = find_problem(path)
    assert problem is not None and problem.startswith(reason)
    assert find_newest_valid(copied) == (path.with_name("step-00000004"), [f"{path}: {problem}"])
    assert find(copied).name == "step-00000004"


def test_a_flipped_bit_anywhere_is_found(copied: Path) -> None:
    """A bit of every byte of the manifest, the state and the config, and a sample of the tensors."""
    path = find(copied)
    flips = 0
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        stride = 1 if file.suffix == ".json" else 997
        for place in range(0, len(data), stride):
            changed = bytearray(data)
            changed[place] ^= 1 << (place % 8)
            file.write_bytes(changed)
            flips += 1
            assert find_problem(path) is not None, (file.name, place)
        file.write_bytes(data)
    assert flips > 1000 and find_problem(path) is None


@pytest.mark.parametrize(
    "content", ["[]", "3", "null", '{"step": 6}', '{"step": "6", "files": {}}', '{"step": null, "files": {}}', '{"files": []}', "{}"]
)
def test_a_manifest_that_is_another_json_is_damage(copied: Path, content: str) -> None:
    path = find(copied)
    (path / "manifest.json").write_text(content)
    assert str(find_problem(path)).startswith("manifest.json ")


def test_without_a_valid_checkpoint_none_is_found(copied: Path, tmp_path: Path) -> None:
    for path in checkpoint.list_checkpoints(copied / "checkpoints"):
        flipped(path)
    newest, passed_over = find_newest_valid(copied)
    assert newest is None and len(passed_over) == 3
    assert find_newest_valid(tmp_path / "empty") == (None, [])


def test_uncommitted_checkpoints_are_ignored(copied: Path) -> None:
    shutil.copytree(find(copied), copied / "checkpoints" / f".step-00000008{files.TEMPORARY}12")
    (copied / "checkpoints" / "step-9").mkdir()
    assert steps(copied) == [6, 4, 2]


# --- find


def test_find_by_run_by_step_and_by_folder(run: Path) -> None:
    assert find(run).name == "step-00000006" and find(run, 2).name == "step-00000002"
    assert find(run / "checkpoints" / "step-00000004") == find(run, 4) == find(run / "checkpoints" / "step-00000004", 4)


@pytest.mark.parametrize(
    ("place", "step", "message"),
    [
        ("run", 5, "has no checkpoint of step 5; existing steps: 6, 4, 2"),
        ("nowhere", None, "nowhere contains no valid checkpoint; give a run folder"),
        ("nowhere", 3, "has no checkpoint of step 3; existing steps: none"),
        ("run/checkpoints", None, "contains no valid checkpoint"),
        ("run/checkpoints/step-00000006", 4, "is of step 6, but step 4 was requested"),
    ],
)
def test_find_lists_the_existing_checkpoints(copied: Path, place: str, step: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find(copied.parent / place, step)


def test_find_names_the_damage(copied: Path) -> None:
    flipped(find(copied))
    for place, step in ((copied / "checkpoints" / "step-00000006", None), (copied, 6)):
        with pytest.raises(UserError, match=r"step-00000006 is damaged: rank-.* does not match its digest; choose another step"):
            find(place, step)
    shutil.rmtree(copied / "checkpoints" / "step-00000004")
    shutil.rmtree(copied / "checkpoints" / "step-00000002")
    with pytest.raises(UserError, match=r"no valid checkpoint; .*step-00000006: rank-.* does not match its digest; give a run folder"):
        find(copied)


def test_an_unknown_format_is_distinguished_from_a_missing_checkpoint(copied: Path) -> None:
    path = find(copied)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "format": 99}))
    with pytest.raises(UserError, match="checkpoint format 99, but this version reads format 1"):
        checkpoint.read_state(path)
    for content in ("[]", "3", "null"):
        (path / "state.json").write_text(content)
        with pytest.raises(UserError, match="checkpoint format None"):
            checkpoint.read_state(path)
    (path / "state.json").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"is not a checkpoint: state\.json cannot be read"):
        checkpoint.read_state(path)


def test_a_checkpoint_of_a_later_version_is_refused_and_not_skipped(copied: Path) -> None:
    path = find(copied)
    manifest = checkpoint.unseal((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_bytes(checkpoint.seal({**manifest, "format": 2}))
    for place in (copied, path):
        with pytest.raises(UserError, match=r"step-00000006.*format 2, but this version reads format 1"):
            find(place)
    (path / "manifest.json").write_bytes((path / "manifest.json").read_bytes() + b" ")
    assert find_newest_valid(copied)[0] == path.with_name("step-00000004"), "damage that only looks like a later format is damage"


def test_the_state_identifies_the_run(run: Path) -> None:
    state = checkpoint.read_state(find(run))
    assert set(checkpoint.SAME_RUN) <= set(state)
    moved = {**state, "base": {**state["base"], "source": "/elsewhere"}, "recipe": "other/place/byte_model"}
    assert checkpoint.find_differences(state, moved) == []
    for key in checkpoint.SAME_RUN:
        changed = {"base": {"files": {"config.json": "another"}}, "data": {"digest": "another"}}
        other = {**state[key], **changed[key]} if key in changed else "another"
        assert checkpoint.find_differences(state, {**state, key: other}) == [key]


def test_bases_are_compared_by_their_files(run: Path) -> None:
    state = checkpoint.read_state(find(run))
    known = state["base"]["files"]
    assert known.keys() == {"config.json", "model.safetensors"}
    for changed, words in (
        ({**known, "config.json": "other"}, ["config.json was changed"]),
        ({**known, "tokenizer.json": "new"}, ["tokenizer.json was added"]),
        ({"config.json": known["config.json"]}, ["model.safetensors was removed"]),
    ):
        other = {**state, "base": {**state["base"], "files": changed}}
        assert checkpoint.find_differences(state, other) == ["base"] and checkpoint.list_changed_files(known, changed) == words


def test_weights_that_only_one_download_of_a_commit_has_are_no_difference(run: Path) -> None:
    state = checkpoint.read_state(find(run))
    known = state["base"]["files"]
    more = {**known, "consolidated.safetensors": "a second set"}

    def differ(files: dict[str, str], was: str | None, now: str | None) -> list[str]:
        before = {**state, "base": {**state["base"], "revision": was}}
        return checkpoint.find_differences(before, {**state, "base": {**state["base"], "revision": now, "digest": "other", "files": files}})

    one, other = "1" * 40, "2" * 40
    assert differ(more, one, one) == [] and differ({"config.json": known["config.json"]}, one, one) == []
    assert differ(more, one, other) == differ(more, None, None) == differ(more, "main", "main") == ["base"]
    for changed in ({**more, "model.safetensors": "other"}, {**more, "tokenizer.json": "new"}, {**known, "deeper/a.safetensors": "new"}):
        assert differ(changed, one, one) == ["base"]


# --- prune


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: None, 50: 2.5, 60: 1.0}
    made = {step: fake(tmp_path, step, loss) for step, loss in losses.items()}
    assert prune(tmp_path, 2, made[60]) == [made[40], made[30], made[10]]
    assert checkpoint.list_checkpoints(tmp_path) == [made[60], made[50], made[20]], "of equals the first is the best"
    assert prune(tmp_path, 3, made[60]) == []


def test_without_evaluation_only_the_newest_are_kept(tmp_path: Path) -> None:
    made = [fake(tmp_path, step) for step in range(1, 6)]
    prune(tmp_path, 3, made[-1])
    assert checkpoint.list_checkpoints(tmp_path) == made[:1:-1]


def test_damaged_later_checkpoints_do_not_displace_the_one_just_saved(tmp_path: Path) -> None:
    """The three newest are damaged, the run went on from step 10 and has just saved step 15."""
    made = [fake(tmp_path, step) for step in (10, 15, 20, 30, 40)]
    for path in made[2:]:
        (path / "state.json").write_text("damaged")
    prune(tmp_path, 3, made[1])
    assert [path for path in checkpoint.list_checkpoints(tmp_path) if find_problem(path) is None] == [made[1], made[0]]


def test_checkpoints_of_other_runs_are_neither_counted_nor_deleted(tmp_path: Path) -> None:
    mine = [fake(tmp_path, step) for step in (1, 2, 3, 4)]
    others = [fake(tmp_path, 11, data="other"), fake(tmp_path, 12, 0.1, data="other"), tmp_path / "step-9", tmp_path / "notes"]
    damaged = fake(tmp_path, 13)
    (damaged / "state.json").write_text("damaged")
    for path in others[2:]:
        path.mkdir()
    last = fake(tmp_path, 20)
    assert prune(tmp_path, 2, last) == mine[2::-1]
    assert all(path.is_dir() for path in [*others, damaged, mine[3], last])


def test_an_interrupted_prune_leaves_no_folder_that_looks_complete(tmp_path: Path) -> None:
    made = [fake(tmp_path, step) for step in (1, 2, 3)]

    def dies(operation: str, path: Path) -> None:
        if operation == "remove":
            raise KeyboardInterrupt

    with files.watch(dies), pytest.raises(KeyboardInterrupt):
        prune(tmp_path, 2, made[-1])
    assert checkpoint.list_checkpoints(tmp_path) == [made[2], made[1]] and len(files.remove_unfinished(tmp_path)) == 1


def test_only_the_keys_in_which_two_data_states_differ_are_shown() -> None:
    was = {"digest": "equal", "rows": 3, "positions": 40, "sources": []}
    assert checkpoint.describe_difference("data", was, {**was, "positions": 50}) == "data was {'positions': 40}, now {'positions': 50}"


def test_a_run_without_adapters_of_its_experts_is_another_run() -> None:
    """As one that began with experts that are layers, in another version of transformers."""
    adapted = [{"name": f"layers.{number}.experts.up_proj", "transposed": False} for number in range(2)]
    was, now = tiny.state(3), tiny.state(3, experts=adapted)
    assert checkpoint.find_differences(was, now) == ["experts"] and not checkpoint.find_differences(now, now)
    said = checkpoint.describe_difference("experts", [], adapted)
    assert "were none, now 2 (layers.0.experts.up_proj, …) (use the transformers version of the start)" in said


def test_later_checkpoints_with_damaged_weights_do_not_count_for_retention(tmp_path: Path) -> None:
    """Their state.json is readable. The run resumed from step 10 and has just saved step 15."""
    made = [fake(tmp_path, step) for step in (10, 15, 20, 30, 40)]
    prune(tmp_path, 3, made[1])
    assert checkpoint.list_checkpoints(tmp_path) == made[::-1]
