"""Parameters that the base lacks are initialized by seed, trained with and without adapters, saved, resumed and exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from overtone.finetune.config import Config
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.modeling import added_parameters
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import Loaded
from overtone.finetune.training import setup
from tests.byte_model.recipe import ByteModel
from tests.finetune import fork_server, tiny

PLAIN = tiny.RECIPE
HEAD = ("head.bias", "head.weight")
KINDS = {"full": tiny.FULL, "lora": tiny.LORA}


def draw(generator: torch.Generator, shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=generator) * 0.02


def load_with_head(config: Config) -> Loaded:
    """The byte model, whose `lora_targets` include the head, with a head that is not from the base."""
    return replace(PLAIN.load(config), added={"head.weight": draw, "head.bias": lambda _, shape: torch.zeros(shape)})


HEADED = replace(PLAIN, load=load_with_head)


def config_without_head(folder: Path, *overrides: tuple[str, str]) -> Config:
    """As `tiny.config_in`, with a base that has no head."""
    own = (("train.steps", "4"), ("checkpoint.every", "2"), ("train.lr", "0.05"))
    config = tiny.config_in(folder, *own, *overrides)
    weights = folder / "base" / "model.safetensors"
    save_file({name: value for name, value in load_file(weights).items() if name not in HEAD}, weights)
    return config


def values_of(training: Any) -> dict[str, Tensor]:
    return {name: p.full_tensor().detach().clone() for name, p in training.model.named_parameters() if p.requires_grad}


def train_headed(folder: Path, strategy: str, steps: int, *overrides: tuple[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """On a rank: the new parameters before the first step of this launch, and all trained values after its last one, as lists."""
    world = join((), folder)
    config = config_without_head(folder, ("parallel.strategy", strategy), ("train.steps", str(steps)), *overrides)
    before = {}

    def build(*arguments: Any) -> Any:
        training, progress = setup_build(*arguments)
        before.update({name: values_of(training)[name].tolist() for name in HEAD})
        return training, progress

    setup_build = setup.build
    with mock.patch.object(tiny, "RECIPE", HEADED), mock.patch.object(tiny.setup, "build", build):
        training, _ = tiny.trained(world, config)
    after = {name: value.tolist() for name, value in values_of(training).items()}
    leave()
    return before, after


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Any, Any]]:
    """Kind, folder, and the values before and after four steps of one process."""
    folder = tmp_path_factory.mktemp(request.param)
    yield request.param, folder, *train_headed(folder, "ddp", 4, *KINDS[request.param])


Trained = tuple[str, Path, dict[str, Any], dict[str, Any]]


def assert_close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(value), rtol=2e-4, atol=2e-6, msg=name)


def test_the_seed_determines_the_values_and_training_changes_them(run: Trained) -> None:
    kind, _, before, after = run
    expected = draw(added_parameters.make_generator(0, "head.weight"), torch.Size([256, 15]))
    assert before == {"head.weight": expected.tolist(), "head.bias": [0.0] * 256}
    assert all(after[name] != before[name] for name in HEAD)
    assert ("embedding.weight" in after) == (kind == "full")
    adapted = {name.partition(".lora_")[0] for name in after if ".lora_" in name}
    assert ("blocks.0.up" in adapted) == (kind == "lora") and "head" not in adapted, "all of the head is trained, so it has no adapter"


def test_two_ranks_train_what_one_does(run: Trained, tmp_path: Path) -> None:
    kind, _, before, after = run
    tiny.config_in(tmp_path)
    config_without_head(tmp_path)
    results = fork_server.run_ranks(2, train_headed, tmp_path, "fsdp", 4, *KINDS[kind])
    assert [result[0] for result in results] == [before, before]
    for result in results:
        assert_close(result[1], after)


def test_a_run_resumes_with_the_trained_values(run: Trained, tmp_path: Path) -> None:
    kind, _, before, _ = run
    _, halfway = train_headed(tmp_path, "ddp", 2, ("train.schedule", "constant"), *KINDS[kind])
    resumed, _ = train_headed(tmp_path, "ddp", 4, ("train.schedule", "constant"), *KINDS[kind])
    assert resumed == {name: halfway[name] for name in HEAD} and resumed != before


def test_an_export_contains_them(run: Trained, tmp_path: Path) -> None:
    _, folder, _, after = run
    exported = load_file(export.export(folder / "run", tmp_path / "out") / "model.safetensors")
    assert exported.keys() == {name for name in ByteModel(0.0).state_dict() if name != "scale"}
    assert all(exported[name].tolist() == after[name] for name in HEAD)


@pytest.mark.parametrize("strength", [0.0, 0.5, 2.0])
def test_they_are_exported_as_trained_at_every_strength(run: Trained, tmp_path: Path, strength: float) -> None:
    _, folder, _, after = run
    exported = load_file(export.export(folder / "run", tmp_path / "out", strength=strength) / "model.safetensors")
    assert all(exported[name].tolist() == after[name] for name in HEAD)
    changed = "blocks.0.up.weight"
    assert torch.equal(exported[changed], load_file(folder / "base" / "model.safetensors")[changed]) == (strength == 0)


def test_stock_peft_loads_an_adapter_with_them(run: Trained, tmp_path: Path) -> None:
    from peft import PeftModel

    kind, folder, _, after = run
    if kind == "full":
        with pytest.raises(UserError, match="this run trained all weights"):
            export.export(folder / "run", tmp_path / "out", adapter_only=True)
        return
    adapter = export.export(folder / "run", tmp_path / "out", adapter_only=True)
    assert json.loads((adapter / "adapter_config.json").read_text())["modules_to_save"] == ["head"]
    model = ByteModel(0.0)
    model.load_state_dict(load_file(folder / "base" / "model.safetensors"), strict=False)
    adapted = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    merged = load_file(export.export(folder / "run", tmp_path / "merged") / "model.safetensors")
    for name, value in adapted.state_dict().items():
        if name != "scale":
            torch.testing.assert_close(value, merged[name], msg=name)
    assert adapted.state_dict()["head.weight"].tolist() == after["head.weight"]


def test_an_adapter_cannot_contain_a_part_of_a_module() -> None:
    export.check_whole_modules({"head.weight"}, {"body.weight", "head.deep.weight"})
    for name in ("head.weight", "query"):
        with pytest.raises(UserError, match=rf"--adapter-only: {name} is new, and other parameters of its module are not"):
            export.check_whole_modules({name}, {"head.bias"})


def test_the_plan_counts_them_and_misses_nothing_in_the_base(tmp_path: Path) -> None:
    for kind, overrides in KINDS.items():
        config = config_without_head(tmp_path / kind, *overrides)
        planned, without = estimate_run(config, HEADED), estimate_run(config, tiny.RECIPE)
        assert planned.misfits == () and without.misfits == ("head.weight is missing", "head.bias is missing")
        adapter = 3 * (15 + 256) if kind == "lora" else 0
        assert planned.outline.trained == without.outline.trained + (256 * 15 + 256 - adapter if kind == "lora" else 0)


def test_a_matrix_has_weight_decay_and_a_bias_none(tmp_path: Path, world: World) -> None:
    with mock.patch.object(tiny, "RECIPE", HEADED):
        training, _ = tiny.built(world, config_without_head(tmp_path, *tiny.LORA, ("train.weight_decay", "0.1")))
    named = {id(parameter): name for name, parameter in training.model.named_parameters()}
    decay = {named[id(each)]: group["weight_decay"] for group in training.optimizer.param_groups for each in group["of"]}
    assert (decay["head.weight"], decay["head.bias"]) == (0.1, 0.0)


def test_a_missing_tensor_that_is_not_added_is_an_error(tmp_path: Path, world: World) -> None:
    with pytest.raises(UserError, match=r"(?s)does not match the model in 2 tensors:.*head\.weight is missing"):
        tiny.built(world, config_without_head(tmp_path))


def test_a_head_of_another_shape_is_replaced_and_that_is_logged(tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"))
    weights = tmp_path / "base" / "model.safetensors"
    save_file({**load_file(weights), "head.weight": torch.ones(7, 15), "head.bias": torch.ones(7)}, weights)
    with mock.patch.object(tiny, "RECIPE", HEADED):
        training, progress = tiny.trained(world, config)
    setup.report_start(training, replace(progress, step=0), Events(tmp_path / "run", world.accelerator, 1, 0, {}))
    said = (
        "new parameters, initialized by run.seed: head.bias [256] in place of the base's [7], head.weight [256, 15] in place of the base's"
    )
    assert f"{said} [7, 15]\n" in capsys.readouterr().out
    exported = load_file(export.export(tmp_path / "run", tmp_path / "out") / "model.safetensors")
    assert exported["head.weight"].shape == (256, 15)
    half = load_file(export.export(tmp_path / "run", tmp_path / "half", strength=0.5) / "model.safetensors")
    assert torch.equal(half["head.weight"], exported["head.weight"])
    assert not torch.equal(half["embedding.weight"], exported["embedding.weight"])


def test_names_and_shapes_of_the_recipe_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Loaded\.added of the recipe names head\.wieght, which the model does not have"):
        added_parameters.check_names(ByteModel(0.0), ["head.weight", "head.wieght"])
    with pytest.raises(UserError, match=r"returned head\.weight as \[15, 256\]; the model has \[256, 15\]"):
        added_parameters.initialize("head.weight", torch.Size([256, 15]), 0, lambda _, shape: torch.zeros(*reversed(shape)))


def test_each_parameter_and_seed_has_values_of_its_own() -> None:
    keys = ((0, "a"), (1, "a"), (0, "b"), (0, "a"))
    first, *others = (added_parameters.initialize(name, torch.Size([8]), seed, draw) for seed, name in keys)
    assert [bool(torch.equal(first, other)) for other in others] == [False, False, True]
