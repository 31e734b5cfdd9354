"""An export is a complete folder: nothing trained is lost, nothing partial remains, the numbers are exact."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from overtone.finetune import config as config_of
from overtone.finetune import recipe
from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.checkpointing.rank_shards import TensorEntry, TensorShard
from overtone.finetune.cli.export import main as export_main
from overtone.finetune.config import Lora
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export, hub_upload
from overtone.finetune.exporting.model_card_metadata import THIS_MODEL
from overtone.finetune.modeling import loading, lora_adapters
from overtone.finetune.modeling.expert_adapters import AdaptedExperts
from overtone.finetune.recipe import ExportPlan
from overtone.finetune.storage import files
from overtone.finetune.training import run as training_run
from tests.causal_lm import recipe as causal_lm
from tests.finetune import tiny


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A full and a LoRA run of three steps at a high rate, each with its base beside it. Copy before changing."""
    made = {}
    for name, kind in (("full", tiny.FULL), ("lora", tiny.LORA)):
        folder = tmp_path_factory.mktemp(name)
        tiny.trained(join((), folder), tiny.config_in(folder, *kind, ("train.steps", "3"), ("checkpoint.every", "2"), ("train.lr", "0.1")))
        leave()
        made[name] = folder / "run"
    return made


def trained_tensors(run: Path) -> dict[str, Tensor]:
    with checkpoint.rank_shards.open_shards(checkpoint.find(run)) as (read, shapes):
        return {name: read(name, None) for name in shapes if not name.startswith("optimizer.")}


def base_of(run: Path) -> Path:
    return run.parent / "base"


def planned(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The byte model's recipe with another plan."""

    def plan(base: Path, state: dict[str, Any], buffers: dict[str, Tensor], form: str) -> ExportPlan:
        return replace(tiny.RECIPE.export(base, state, buffers, form), **changes)

    monkeypatch.setattr(export, "load_recipe", lambda _: replace(tiny.RECIPE, export=plan))


def everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- the names


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_tensors_of_base_and_checkpoint_are_renamed_alike(
    kind: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load_file(export.export(runs[kind], tmp_path / "plain") / "model.safetensors")
    planned(monkeypatch, translate_name=lambda name: f"renamed.{name}", keep=lambda name: name != "renamed.nothing")
    renamed = load_file(export.export(runs[kind], tmp_path / "renamed") / "model.safetensors")
    assert renamed.keys() == {f"renamed.{name}" for name in plain}
    assert all(torch.equal(renamed[f"renamed.{name}"], value) for name, value in plain.items())
    planned(monkeypatch, translate_name=lambda _: "one.weight")
    with pytest.raises(UserError, match="two tensors the same name"):
        export.export(runs[kind], tmp_path / "never")


# --- the values


def test_a_full_export_is_the_trained_parameters_bit_by_bit(runs: dict[str, Path], tmp_path: Path) -> None:
    target = export.export(runs["full"], tmp_path / "out")
    assert sorted(everything(target)) == ["README.md", "config.json", "model.safetensors", "overtone.json"]
    found, trained = load_file(target / "model.safetensors"), trained_tensors(runs["full"])
    base = load_file(base_of(runs["full"]) / "model.safetensors")
    assert found.keys() == base.keys() == trained.keys() - {"scale"} and len(found) == 17
    assert all(torch.equal(found[name], trained[name]) and not torch.equal(found[name], base[name]) for name in found)
    assert json.loads((target / "config.json").read_text()) == {"width": 15, "scale": 1.0}


@pytest.mark.parametrize("block_bytes", [export.BLOCK_BYTES, 4 * 15 * 7])
def test_a_lora_export_is_the_base_plus_the_scaled_product(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(export, "BLOCK_BYTES", block_bytes)
    found = load_file(export.export(runs["lora"], tmp_path / "out") / "model.safetensors")
    base, trained = load_file(base_of(runs["lora"]) / "model.safetensors"), trained_tensors(runs["lora"])
    merged = 0
    for name, value in base.items():
        module = name.removesuffix(".weight")
        expected = value.double()
        if f"{module}.lora_A.default.weight" in trained and name.endswith(".weight"):
            a, b = (trained[f"{module}.lora_{side}.default.weight"].double() for side in "AB")
            expected = expected + 6 / 3 * (b @ a)
            assert float((expected - value).abs().max()) > 1e-2
            merged += 1
        assert float((found[name].double() - expected).abs().max()) <= 1e-6, name
    assert merged == 6


@pytest.mark.parametrize("block_bytes", [export.BLOCK_BYTES, 4 * 15 * 7])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_the_strength_scales_the_update(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, block_bytes: int
) -> None:
    monkeypatch.setattr(export, "BLOCK_BYTES", block_bytes)
    base = load_file(base_of(runs[kind]) / "model.safetensors")
    found = {
        strength: load_file(export.export(runs[kind], tmp_path / f"{strength}", strength=strength, name="me") / "model.safetensors")
        for strength in (0.0, 0.3, 1.0, 2.0)
    }
    plain = export.export(runs[kind], tmp_path / "plain", name="me")
    assert everything(plain) == everything(tmp_path / "1.0"), "1 changes nothing, in no file"
    changed = 0
    for name, value in base.items():
        assert torch.equal(found[0.0][name].view(torch.int32), value.view(torch.int32)), "0 gives the bits of the base"
        update = found[1.0][name].double() - value.double()
        for strength in (0.3, 2.0):
            assert float((found[strength][name].double() - (value.double() + strength * update)).abs().max()) <= 1e-6, name
        changed += bool(update.abs().max() > 1e-2)
    assert changed == (17 if kind == "full" else 6)
    assert json.loads((tmp_path / "0.3" / "overtone.json").read_text())["strength"] == 0.3
    assert "strength" not in json.loads((plain / "overtone.json").read_text())


@pytest.mark.parametrize("strength", [-0.1, 2.5, math.nan, math.inf])
def test_a_strength_out_of_range_is_refused(runs: dict[str, Path], tmp_path: Path, strength: float) -> None:
    with pytest.raises(UserError, match=r"--strength .*: give a number from 0 to 2; 0 is the base"):
        export.export(runs["full"], tmp_path / "out", strength=strength)
    assert not (tmp_path / "out").exists()


def test_an_edit_is_applied_at_every_strength(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a recipe inserts is not an update of the base: a half of it would be another voice, not a weaker one."""
    planned(monkeypatch, edit={"head.weight": lambda value: torch.full_like(value, 7.0)}, files={"README.md": b"# A model\n"})
    target = export.export(runs["full"], tmp_path / "edited", strength=0.25)
    assert torch.equal(load_file(target / "model.safetensors")["head.weight"], torch.full((256, 15), 7.0))
    assert (
        "\n## Strength\nThe update of the training was applied with strength 0.25 (0: the base model" in (target / "README.md").read_text()
    )


@pytest.mark.parametrize(("dtype", "expected"), [(None, torch.float32), ("bf16", torch.bfloat16), ("fp32", torch.float32)])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_the_type_is_the_requested_one(runs: dict[str, Path], tmp_path: Path, kind: str, dtype: str | None, expected: torch.dtype) -> None:
    found = load_file(export.export(runs[kind], tmp_path / "out", dtype=dtype) / "model.safetensors")
    exact = load_file(export.export(runs[kind], tmp_path / "exact") / "model.safetensors")
    assert all(found[name].dtype == expected and torch.equal(found[name], exact[name].to(expected)) for name in exact)


def test_by_default_each_tensor_keeps_the_bases_type(tmp_path: Path) -> None:
    config = tiny.config_in(tmp_path, ("train.steps", "1"))
    base = load_file(tmp_path / "base" / "model.safetensors")
    mixed = {name: value.bfloat16() if "blocks" in name else value for name, value in base.items()}
    save_file({**mixed, "vocabulary": torch.arange(3)}, tmp_path / "base" / "model.safetensors")
    tiny.trained(join((), tmp_path), config)
    leave()
    found = load_file(export.export(tmp_path / "run", tmp_path / "out") / "model.safetensors")
    assert {name: value.dtype for name, value in found.items()} == {
        **{name: value.dtype for name, value in mixed.items()},
        "vocabulary": torch.int64,
    }
    cast = load_file(export.export(tmp_path / "run", tmp_path / "cast", dtype="bf16") / "model.safetensors")
    assert cast["vocabulary"].dtype == torch.int64 and cast["head.weight"].dtype == torch.bfloat16


def test_an_edit_is_applied_last_and_in_fp32(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = load_file(export.export(runs["lora"], tmp_path / "plain") / "model.safetensors")
    planned(monkeypatch, edit={"head.weight": lambda value: value * 2 if value.dtype == torch.float32 else value})
    monkeypatch.setattr(export, "BLOCK_BYTES", 4 * 15 * 50)
    found = load_file(export.export(runs["lora"], tmp_path / "edited") / "model.safetensors")
    assert torch.equal(found["head.weight"], plain["head.weight"] * 2) and torch.equal(found["head.bias"], plain["head.bias"])


def test_an_edit_of_a_frozen_half_precision_tensor_is_in_fp32_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny.config_in(tmp_path, *tiny.LORA, ("train.steps", "1"))
    base = load_file(tmp_path / "base" / "model.safetensors")
    save_file({name: value.bfloat16() for name, value in base.items()}, tmp_path / "base" / "model.safetensors")
    tiny.trained(join((), tmp_path), config)
    leave()
    seen: list[torch.dtype] = []
    planned(monkeypatch, edit={"embedding.weight": lambda value: seen.append(value.dtype) or value / 3})  # type: ignore[func-returns-value]  # note, then divide
    found = load_file(export.export(tmp_path / "run", tmp_path / "out") / "model.safetensors")["embedding.weight"]
    assert seen == [torch.float32] and torch.equal(found, (base["embedding.weight"].bfloat16().float() / 3).bfloat16())


def test_a_split_export_has_an_index_that_loads(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_file(export.export(runs["lora"], tmp_path / "whole") / "model.safetensors")
    monkeypatch.setattr(export, "LARGEST_FILE_BYTES", 20_000)
    target = export.export(runs["lora"], tmp_path / "split")
    parts = sorted(path.name for path in target.glob("*.safetensors"))
    assert parts == [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)] and len(parts) == 4
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    assert index["weight_map"].keys() == whole.keys() and set(index["weight_map"].values()) == set(parts)
    for name, part in index["weight_map"].items():
        with safe_open(target / part, framework="pt") as file:
            assert torch.equal(file.get_tensor(name), whole[name])
    assert all(sum(value.nbytes for value in load_file(target / part).values()) <= 20_000 for part in parts)


def test_the_card_names_the_origin_of_the_model(runs: dict[str, Path], tmp_path: Path) -> None:
    target = export.export(runs["lora"], tmp_path / "out", step=2)
    card = json.loads((target / export.CARD).read_text())
    assert (card["recipe"], card["format"], card["step"]) == (str(tiny.FOLDER), "plain", 2)
    assert card["lora"]["rank"] == 3 and card["data"]["rows"] == 20 and (target / card["base"]["source"]).resolve() == base_of(runs["lora"])
    assert card["weights"] == {"model.safetensors": files.digest(target / "model.safetensors")}


def test_the_example_in_the_card_names_the_model_as_it_was_typed(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, files={"README.md": f"load {THIS_MODEL}".encode()})
    monkeypatch.setattr(hub_upload, "check_repository", lambda _: None)
    monkeypatch.setattr(hub_upload, "push", lambda *_: "https://hub/me/voice")
    monkeypatch.chdir(tmp_path)
    hub = ("--push-to-hub", "me/voice")
    for target, more, name in (("exports/me", (), "exports/me"), (str(tmp_path / "me"), (), "me"), ("pushed", hub, "me/voice")):
        Path("exports").mkdir(exist_ok=True)
        assert export_main([str(runs["full"]), "--to", target, *more]) == 0
        assert Path(target, "README.md").read_text() == f"load {name}"


def test_files_and_folders_of_the_base_are_copied(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(runs["full"].parent, tmp_path / "copy") / "run"
    base = base_of(runs["full"])
    planned(monkeypatch, copy=("config.json",), files={"deep/er/README.md": b"hello"})
    found = everything(export.export(run, tmp_path / "out"))
    assert found["config.json"] == (base / "config.json").read_bytes() and found["deep/er/README.md"] == b"hello"


# --- the adapter alone


@pytest.fixture(
    scope="module", params=["{rank: 3, alpha: 6}", "{rank: 3, alpha: 6, dora: true, rslora: true}"], ids=["lora", "dora, rslora"]
)
def language_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA run of a real Qwen3 in miniature."""
    folder = tmp_path_factory.mktemp("language")
    base = causal_lm.write_base(folder / "base", "qwen3")
    rows = tiny.write_rows(folder / "train.jsonl", tiny.texts(12, shortest=8))
    here = Path(causal_lm.__file__).parent
    own = (("model.source", str(base)), ("data.train", str(rows)), ("run.dir", str(folder / "run")), ("log.trackers", "[]"))
    short = (("train.steps", "2"), ("train.lr", "0.1"), ("train.warmup", "0"), ("train.precision", "fp32"), ("model.lora", request.param))
    config = config_of.resolve(str(here), causal_lm.RECIPE.Options, [here / "config.yaml"], [*own, *short])
    training_run.train(join((), folder), config, recipe.load_recipe(here))
    leave()
    return folder / "run"


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(30).reshape(2, 15) * 7).logits


def test_stock_peft_loads_the_adapter_alone_and_computes_what_the_merged_model_does(language_run: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = export.export(language_run, tmp_path / "merged")
    adapter = export.export(language_run, tmp_path / "adapter", adapter_only=True)
    assert sorted(everything(adapter)) == ["adapter_config.json", "adapter_model.safetensors", "overtone.json"]
    base = AutoModelForCausalLM.from_pretrained(base_of(language_run), dtype=torch.float32)
    plain = logits(base)
    adapted = PeftModel.from_pretrained(base, adapter)
    held = {name: value for name, value in adapted.named_parameters() if "lora_" in name}
    written = load_file(adapter / "adapter_model.safetensors")
    named = {name.replace(".default.", ".").replace("_vector.weight", "_vector"): value for name, value in held.items()}
    assert named.keys() == written.keys() and len(written) >= 8
    assert all(torch.equal(value, written[name]) for name, value in named.items())
    expected = logits(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32))
    assert float((expected - plain).abs().max()) > 1e-2, "the adapter does something"
    assert float((logits(adapted) - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_an_adapter_can_name_its_base_for_others(language_run: Path, tmp_path: Path) -> None:
    for given, written in ((None, str(base_of(language_run))), ("owner/base", "owner/base")):
        adapter = export.export(language_run, tmp_path / f"{given}".replace("/", "-"), adapter_only=True, base_name=given)
        config = json.loads((adapter / "adapter_config.json").read_text())
        assert (config["base_model_name_or_path"], config["revision"]) == (written, None)


def test_the_strength_of_an_adapter_is_that_of_the_merged_model(language_run: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    merged = export.export(language_run, tmp_path / "merged", strength=0.5)
    if checkpoint.read_state(checkpoint.find(language_run))["lora"]["dora"]:
        with pytest.raises(UserError, match="--strength 0.5 --adapter-only: the lengths of DoRA cannot be scaled"):
            export.export(language_run, tmp_path / "adapter", adapter_only=True, strength=0.5)
        base, full = (
            load_file(path / "model.safetensors") for path in (base_of(language_run), export.export(language_run, tmp_path / "1"))
        )
        half = load_file(merged / "model.safetensors")
        assert all(float((half[name] - (base[name].float() + full[name].float()) / 2).abs().max()) <= 1e-6 for name in half)
        return
    adapter = export.export(language_run, tmp_path / "adapter", adapter_only=True, strength=0.5)
    none = export.export(language_run, tmp_path / "none", adapter_only=True, strength=0.0)
    assert json.loads((none / "adapter_config.json").read_text())["lora_alpha"] == 0
    adapted = logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base_of(language_run), dtype=torch.float32), adapter))
    expected = logits(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32))
    assert float((adapted - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_the_type_of_an_adapter_is_the_requested_one(language_run: Path, tmp_path: Path) -> None:
    exact = load_file(export.export(language_run, tmp_path / "exact", adapter_only=True) / "adapter_model.safetensors")
    short = load_file(export.export(language_run, tmp_path / "short", dtype="bf16", adapter_only=True) / "adapter_model.safetensors")
    assert all(short[name].dtype == torch.bfloat16 and torch.equal(short[name], exact[name].bfloat16()) for name in exact)


def test_a_full_model_cannot_be_exported_as_an_adapter(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--adapter-only: this run trained all weights and has no adapter; export the whole model"):
        export.export(runs["full"], tmp_path / "out", adapter_only=True)
    planned(monkeypatch, edit={"head.bias": lambda value: value + 1})
    with pytest.raises(UserError, match=r"--adapter-only: the format plain also changes head\.bias, which an adapter cannot contain"):
        export.export(runs["lora"], tmp_path / "out", adapter_only=True)
    assert list(tmp_path.iterdir()) == []


# --- refusals


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_an_existing_target_is_not_changed(runs: dict[str, Path], tmp_path: Path, taken: str) -> None:
    target = tmp_path / "out"
    target.write_text("mine") if taken == "file" else target.mkdir()
    with pytest.raises(UserError, match=r"--to .*out already exists; choose another folder"):
        export.export(runs["full"], target)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_unknown_formats_steps_and_folders_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    for message, arguments in (
        (r"--format onnx: the recipe offers plain", (runs["full"], tmp_path / "out", "onnx")),
        (r"has no checkpoint of step 9; existing steps: 3, 2", (runs["full"], tmp_path / "out", None, 9)),
        (r"nowhere contains no valid checkpoint", (tmp_path / "nowhere", tmp_path / "out")),
    ):
        with pytest.raises(UserError, match=message):
            export.export(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"buffers": ["scale", "gone"]}, "state.json lists gone, but no file contains them; choose another checkpoint"),
        ({"buffers": "scale"}, r"state.json cannot be read \(buffers: Input should be a valid list"),
        ({"base": {"source": 3}}, r"state.json cannot be read \(base.source: Input should be a valid string \(found 3\), and 3 more\)"),
        ({"lora": {"rank": 10**400}}, r"state.json cannot be read \(lora: Value error, the rank exceeds the size of any matrix"),
        ({"step": 2}, "state.json belongs to step 2"),
        (
            {"experts": [{"name": "a.b", "transposed": 1}]},
            r"state.json cannot be read \(experts.0.transposed: Input should be a valid bool",
        ),
        (
            {"experts": [{"name": "a.b", "transposed": False}]},
            r"adapters of state.json are not those of its files \(a.lora_A.b, a.lora_B.b\)",
        ),
    ],
)
def test_a_crafted_state_is_refused_by_its_key(runs: dict[str, Path], tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    run = shutil.copytree(runs["full"], tmp_path / "run")
    newest = checkpoint.find(run)
    tiny.reseal(newest, **changes)
    with pytest.raises(UserError, match=words):
        export.export(newest, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("down", "up", "words"),
    [
        ((3, 2, 5), (3, 6, 2), None),
        ((3, 4, 5), (3, 6, 2), r"a.lora_A.b \[3, 4, 5\] and a.lora_B.b \[3, 6, 2\] are no adapter of rank 2"),
        ((3, 2, 5), (4, 6, 2), r"are no adapter of rank 2; choose another checkpoint"),
        ((6, 5), (6, 6), r"are no adapter of rank 2; choose another checkpoint"),
    ],
)
def test_adapters_of_experts_in_crafted_shapes_are_refused(
    down: tuple[int, ...], up: tuple[int, ...], words: str | None, tmp_path: Path
) -> None:
    state = tiny.state(1, lora=Lora(rank=2).model_dump(), experts=[{"name": "a.b", "transposed": False}])
    shapes = {"a.lora_A.b": down, "a.lora_B.b": up, "optimizer.exp_avg.a.lora_A.b": down}
    with contextlib.nullcontext() if words is None else pytest.raises(UserError, match=words):
        export.check_checkpoint(tmp_path, state, shapes)


def test_another_base_is_refused(tmp_path: Path, runs: dict[str, Path]) -> None:
    state = checkpoint.read_state(checkpoint.find(runs["lora"]))
    other = shutil.copytree(base_of(runs["lora"]), tmp_path / "base")
    tensors = load_file(other / "model.safetensors")
    tensors["embedding.weight"][0, 0] += 1
    save_file(tensors, other / "model.safetensors")
    with pytest.raises(UserError, match=r"the base model at .*base is not the one that was trained on \(model.safetensors was changed\)"):
        export.find_base({**state, "base": {**state["base"], "source": str(other)}}, ())
    with pytest.raises(UserError, match="no such folder"):
        export.find_base({**state, "base": {**state["base"], "source": str(tmp_path / "gone")}}, ())


def test_another_tokenizer_beside_the_same_weights_is_refused(tmp_path: Path, runs: dict[str, Path]) -> None:
    other = shutil.copytree(base_of(runs["full"]), tmp_path / "base")
    (other / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"\(tokenizer_config.json was added\); restore that one, or give its folder with --base"):
        export.export(runs["full"], tmp_path / "out", moved_base=other)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_an_export_that_would_drop_trained_tensors_is_refused(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    planned(monkeypatch, keep=lambda name: not name.startswith("head."))
    with pytest.raises(UserError, match=r"the export would lose trained tensors: head\.\w+.*; the recipe's export plan does not keep them"):
        export.export(runs[kind], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_tensor_may_be_dropped(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, keep=lambda name: name != "embedding.weight")
    found = load_file(export.export(runs["lora"], tmp_path / "out") / "model.safetensors")
    assert len(found) == 16 and "embedding.weight" not in found


def test_an_edit_that_changes_the_shape_is_noticed(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, edit={"head.bias": lambda value: value[:-1]})
    with pytest.raises(RuntimeError, match="bytes of values were written, the header says"):
        export.export(runs["full"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_not_exported(runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["full"], tmp_path / "run")
    shard = next(checkpoint.find(run).glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-8])
    export.export(run, tmp_path / "older")
    assert json.loads((tmp_path / "older" / export.CARD).read_text())["step"] == 2
    with pytest.raises(UserError, match="step-00000003 is damaged"):
        export.export(run, tmp_path / "out", step=3)


# --- memory


@pytest.mark.parametrize("kind", ["full", "lora", "experts"])
def test_memory_holds_blocks_and_never_a_whole_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(export, "BLOCK_BYTES", 2**20)
    shape = (128, 64, 1024) if kind == "experts" else (8192, 1024)
    shapes = [TensorEntry(f"{name}.weight", torch.float32, shape) for name in ("first", "second")]
    grown: list[int] = []
    with held_by_two(tmp_path, shapes, kind) as source:
        entries = export.exported_entries(source, tmp_path / "base")
        blocks = (block for entry in entries for block in export.blocks_of(source, entry))
        before = anonymous_bytes()

        def noted() -> Iterator[Tensor]:
            for block in blocks:
                grown.append(anonymous_bytes() - before)
                yield block

        rank_shards.write_stream(tmp_path / "out.safetensors", entries, noted(), {})
    assert len(grown) == 64, "256 rows at a time"
    assert max(grown) < 16 * 2**20, "a few blocks of 1 MiB, and what the allocator keeps; a tensor has 32"
    with safe_open(tmp_path / "out.safetensors", framework="pt") as file:
        assert all(float(file.get_tensor(entry.name).min()) == float(file.get_tensor(entry.name).max()) == 3 for entry in entries)


@contextlib.contextmanager
def held_by_two(folder: Path, entries: list[TensorEntry], kind: str) -> Iterator[export.Source]:
    """A checkpoint of two ranks, of whole tensors, or of adapters of layers or experts, over a base; every exported value is 3."""
    base = {entry.name: torch.ones(entry.shape) for entry in entries}
    trained = {name: value * 3 for name, value in base.items()}
    if kind == "lora":
        trained = {}
        for entry in entries:
            layer, (high, wide) = entry.name.removesuffix(".weight"), entry.shape
            trained |= {layer + lora_adapters.DOWN: torch.ones(2, wide), layer + lora_adapters.UP: torch.ones(high, 2)}
    experts = [AdaptedExperts(entry.name, False) for entry in entries if kind == "experts"]
    if experts:
        trained = {}
        for entry, each in zip(entries, experts, strict=True):
            count, high, wide = entry.shape
            trained |= {each.down: torch.ones(count, 2, wide), each.up: torch.ones(count, high, 2)}
    (folder / "base").mkdir()
    (folder / "step").mkdir()
    save_file(base, folder / "base" / "model.safetensors")
    for rank in range(2):
        halves = {name: value.chunk(2)[rank] for name, value in trained.items()}
        parts = {name: TensorShard(half, (rank * len(half), *[0] * (half.dim() - 1))) for name, half in halves.items()}
        rank_shards.write_shard(folder / "step" / f"rank-{rank}.safetensors", parts)
    lora = None if kind == "full" else Lora(rank=2, alpha=2).model_dump()
    state = {"lora": lora, "quantization": None, "added": [], "buffers": [], "experts": [each._asdict() for each in experts]}
    del base, trained, halves, parts
    with rank_shards.open_shards(folder / "step") as (read, shapes), loading.open_base(folder / "base") as read_base:
        yield export.Source(state, read, shapes, read_base, ExportPlan(), None)


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


# --- failure


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_failure_at_any_disk_operation_leaves_nothing(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(export, "LARGEST_FILE_BYTES", 20_000)
    planned(monkeypatch, copy=("config.json",), files={"card/README.md": b"hello"})
    before = everything(runs["lora"])
    operations: list[str] = []
    with files.watch(lambda operation, _: operations.append(operation)):
        export.export(runs["lora"], tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    last = len(operations) - 1 - operations[::-1].index("rename")
    assert operations.count("rename") == 1 and last >= 15
    for number in range(last + 1):
        count = iter(range(10**6))

        def fail(_: str, __: Path, count: Any = count, number: int = number) -> None:
            if next(count) == number:
                raise error

        with files.watch(fail), pytest.raises((UserError, type(error))):
            export.export(runs["lora"], tmp_path / "out")
        assert list(tmp_path.iterdir()) == [], operations[number]
    assert everything(runs["lora"]) == before
    export.export(runs["lora"], tmp_path / "out")


def test_a_disk_without_room_is_refused_before_anything_is_written(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(UserError, match=r"the export needs 1,[0-9,]+ bytes at .*, and 1,048,576 are free"):
        export.export(runs["full"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_data_that_a_disk_changes_is_found_before_the_commit(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: Callable[..., files.Written] = rank_shards.write_stream

    def lies(path: Path, *arguments: Any) -> files.Written:
        truth = written(path, *arguments)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        return truth

    monkeypatch.setattr(rank_shards, "write_stream", lies)
    with pytest.raises(UserError, match=r"model\.safetensors does not read back as it was written"):
        export.export(runs["full"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_exporting_needs_no_process_group(runs: dict[str, Path], tmp_path: Path) -> None:
    assert not torch.distributed.is_initialized()
    assert recipe.load_recipe(tiny.FOLDER) is tiny.RECIPE
    export.export(runs["full"] / "checkpoints" / "step-00000003", tmp_path / "out")
    assert not torch.distributed.is_initialized()


def test_the_card_does_not_reveal_folders_of_this_machine(runs: dict[str, Path], tmp_path: Path) -> None:
    target = export.export(runs["full"], tmp_path / "out", step=2)
    assert json.loads((target / export.CARD).read_text())["checkpoint"] == f"{runs['full'].name}/checkpoints/step-00000002"
