"""Loading a base into trainable shards: every value is loaded, every mismatch is named, adapters start the same on any sharding."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from overtone.finetune.config import Config
from overtone.finetune.distributed import sharding, tensor_parallel
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import loading, lora_adapters, trained_parameters
from overtone.finetune.recipe import Loaded
from overtone.finetune.storage import demo_models
from overtone.finetune.storage.tensor_layouts import TensorLayout
from tests.byte_model.recipe import write_base
from tests.finetune import fork_server, tiny


def sharded(config: Config, world: World) -> Loaded:
    """As `setup.build` does it, up to the filling."""
    loaded = tiny.RECIPE.load(config)
    trained_parameters.choose_trained(loaded, tiny.RECIPE, config.model, sharding.compute_dtype(config.train.precision))
    sharding.shard(loaded.model, loaded.blocks, "fsdp", config.parallel, sharding.compute_dtype(config.train.precision), world)
    return loaded


def fill(loaded: Loaded, base: Path, seed: int = 0) -> dict[str, Tensor]:
    loading.materialise(loaded.model, base, loaded.buffers, torch.device("cpu"), seed)
    return {sharding.plain_name(name): full(parameter) for name, parameter in loaded.model.named_parameters()}


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


# --- names


def test_parameters_are_composed_of_the_tensors_that_the_base_has(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    expected = fill(tiny.RECIPE.load(tiny.config_in(tmp_path)), base)
    own = load_file(base / "model.safetensors")
    rows = own.pop("blocks.0.up.weight").split(4)
    parts = {f"stored.up.{number}": part.clone() for number, part in enumerate(rows)}
    save_file({"stored.head": own.pop("head.weight"), **own, **parts}, base / "model.safetensors")
    joined: Any = torch.cat([TensorLayout.of(name, part.shape) for name, part in parts.items()])
    layouts = {"blocks.0.up.weight": joined, "head.weight": TensorLayout.of("stored.head", expected["head.weight"].shape)}
    loaded = tiny.RECIPE.load(tiny.config_in(tmp_path))
    loading.materialise(loaded.model, base, loaded.buffers, torch.device("cpu"), 0, layouts=layouts)
    found = dict(loaded.model.named_parameters())
    assert len(parts) > 2 and all(torch.equal(found[name], value) for name, value in expected.items())
    meta = tiny.RECIPE.load(tiny.config_in(tmp_path)).model
    assert loading.find_misfits(meta, base, layouts=layouts) == []
    assert loading.find_misfits(meta, base, layouts={"head.weight": layouts["head.weight"]}) == ["blocks.0.up.weight is missing"]
    other = {**layouts, "head.weight": TensorLayout.of("stored.up.0", parts["stored.up.0"].shape)}
    assert loading.find_misfits(meta, base, layouts=other)[0].startswith("stored.up.0 is (4, ")


# --- the source


def test_a_buffer_without_values_is_refused(tmp_path: Path) -> None:
    """Its memory would not be initialized: a rotary table of such numbers trains without an error."""
    with torch.device("meta"):
        model = nn.Linear(2, 2, bias=False)
        model.register_buffer("inv_freq", torch.ones(2), persistent=False)
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"load leaves buffers on the meta device: inv_freq; .*include_buffers=False"):
        loading.materialise(model, tmp_path, {}, torch.device("cpu"), 0)
    loading.materialise(model, tmp_path, {"inv_freq": torch.ones(2)}, torch.device("cpu"), 0)


def test_a_folder_is_its_own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base")
    assert loading.resolve_source(str(base), None) == base
    monkeypatch.chdir(tmp_path)
    assert loading.resolve_source("base", None) == base


def test_a_demo_model_is_a_source_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = write_base(tmp_path / "base")
    (base / "README.md").write_text("# toy\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").write_bytes(demo_models.pack(base))
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert loading.file_digests(loading.resolve_source("toy", None)) == loading.file_digests(base)
    with pytest.raises(UserError, match=r"toyy: no such folder, and not a hub name \(owner/model\) nor a demo model \(toy\)"):
        loading.resolve_source("toyy", None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "model.source is not set: give a hub name or a folder, as in --model.source"),
        ("./nowhere", r"model.source ./nowhere: no such folder, and not a hub name"),
        ("/nowhere/at/all", "no such folder, and not a hub name"),
        ("a/b/c", "no such folder, and not a hub name"),
        ("gpt2", "no such folder, and not a hub name"),
    ],
)
def test_an_impossible_source_is_refused(source: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loading.resolve_source(source, None)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"contains no config\.json, so it is not a model"):
        loading.resolve_source(str(tmp_path), None)


def test_a_failed_download_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"model.source nobody/nothing: no such folder, and the download from the hub failed: \w+"):
        loading.resolve_source("nobody/nothing", None)


def test_only_data_is_fetched() -> None:
    assert not any(pattern.endswith((".py", ".bin", ".pt", ".pkl", "*")) for pattern in loading.MODEL_FILES)
    assert "*.safetensors" in loading.MODEL_FILES and "*.json" in loading.MODEL_FILES


def test_the_digest_follows_every_byte_and_name_of_weights_and_config(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")

    def digest() -> str:
        return loading.content_digest(loading.file_digests(base))

    seen = {digest()}
    (base / "tokenizer.json").write_text("not weights")
    assert digest() in seen
    weights = bytearray((base / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (base / "model.safetensors").write_bytes(weights)
    seen.add(digest())
    (base / "config.json").write_text((base / "config.json").read_text() + " ")
    seen.add(digest())
    (base / "model.safetensors").rename(base / "other.safetensors")
    seen.add(digest())
    save_file({"more": torch.ones(1)}, base / "more.safetensors")
    seen.add(digest())
    assert len(seen) == 5


SHAPING = (
    *("config.json", "model.safetensors", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.4.0.0.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "bpe.codes", "dict.txt"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja", "speech_tokenizer/model.safetensors"),
)
"""What the loaders of transformers and of our recipes read."""


def test_the_files_of_a_base_are_those_that_loaders_read(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    beside = ("README.md", "LICENSE.txt", "model.safetensors.index.json", "trainer_state.json", "runs/me/exit.json", ".cache/refs.json")
    for name in (*SHAPING, *beside):
        path = base / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if not path.exists():
            path.write_text(name)
    before = loading.file_digests(base, ("additional_chat_templates", "speech_tokenizer", "not_there"))
    assert before.keys() == set(SHAPING) and len(before) == 22
    for name in (*SHAPING, *beside):
        with (base / name).open("ab") as file:
            file.write(b" ")
        after = loading.file_digests(base, ("additional_chat_templates", "speech_tokenizer"))
        assert [key for key in before if before[key] != after[key]] == ([name] if name in SHAPING else []), name
        before = after


def test_every_file_of_a_tokenizer_of_transformers_is_of_a_type_that_counts() -> None:
    """But of `prophetnet.tokenizer`, which has no fast form and so trains in no recipe."""
    folder = Path(transformers.__file__).parent / "models"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*/tokenization_*.py"))
    names = set(re.findall(r'"\w+_file": ?"([\w.-]+)"', text)) - {"prophetnet.tokenizer"}
    assert len(names) > 15 and {Path(name).suffix for name in names} <= loading.SHAPING


def test_a_folder_without_config_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no config.json, so it is not a model"):
        loading.file_digests(tmp_path)


def test_weights_in_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UserError, match=r"contains no \*\.safetensors weights; other formats can run code when read"):
        loading.tensor_files(tmp_path)


def test_a_tensor_in_two_files_is_named_with_both(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.zeros(1)}, tmp_path / "model-2.safetensors")
    with pytest.raises(UserError, match=r"b is in model-1\.safetensors and in model-2\.safetensors \(1 such tensors\)"):
        loading.tensor_files(tmp_path)


# --- filling


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_parameter_is_the_base_and_buffers_keep_their_values(tmp_path: Path, world: World, precision: str) -> None:
    config = tiny.config_in(tmp_path, ("train.precision", precision))
    loaded = sharded(config, world)
    loaded.model.register_buffer("table", torch.arange(3.0), persistent=False)
    values = fill(loaded, loaded.base)
    expected = load_file(loaded.base / "model.safetensors")
    assert values.keys() == expected.keys() and len(values) == 17
    assert all(torch.equal(values[name], expected[name]) and values[name].dtype == torch.float32 for name in expected)
    buffers = dict(loaded.model.named_buffers())
    assert buffers["scale"] == 1.0 and torch.equal(buffers["table"], torch.arange(3.0)), "a wiped table trains without an error"
    assert not any(tensor.is_meta for tensor in [*loaded.model.parameters(), *loaded.model.buffers()])


def test_tied_parameters_stay_at_home_and_buffers_go_to_the_device(tmp_path: Path, world: World) -> None:
    """`parallel.offload` keeps weights in host memory, where `fully_shard` demands all of them. Here meta stands for the GPU."""
    model = nn.Module()
    model.table, model.head = nn.Embedding(4, 2, device="meta"), nn.Linear(2, 4, bias=False, device="meta")
    model.head.weight = model.table.weight
    model.register_buffer("rotary", torch.ones(3))
    fully_shard(model, mesh=init_device_mesh(world.device.type, (world.size,)))
    save_file({"table.weight": torch.arange(8.0).reshape(4, 2)}, tmp_path / "model.safetensors")
    loading.materialise(model, tmp_path, {}, device=torch.device("meta"), seed=0, home=torch.device("cpu"))
    assert model.head.weight is model.table.weight and torch.equal(full(model.head.weight), torch.arange(8.0).reshape(4, 2))
    assert model.rotary.device.type == "meta"


def test_a_base_in_several_files_and_in_half_precision(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path)
    base = tmp_path / "base"
    tensors = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    names = sorted(tensors)
    save_file({name: tensors[name].bfloat16() for name in names[:5]}, base / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[5:]}, base / "model-00002-of-00002.safetensors")
    values = fill(sharded(config, world), base)
    assert all(torch.equal(values[name], tensors[name].bfloat16().float() if name in names[:5] else tensors[name]) for name in names)
    assert all(value.dtype == torch.float32 for value in values.values()), "masters are fp32 whatever the base is"


def test_everything_that_does_not_fit_is_named(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path)
    base = tmp_path / "base"
    tensors = load_file(base / "model.safetensors")
    del tensors["head.bias"], tensors["blocks.1.up.weight"]
    tensors["embedding.weight"] = torch.zeros(300, 15)
    tensors["after_next.weight"] = torch.zeros(256, 14)
    tensors["after_next.bias"] = torch.zeros(256, 1)
    tensors["unused"] = torch.zeros(1)
    save_file(tensors, base / "model.safetensors")
    with pytest.raises(UserError) as caught:
        fill(sharded(config, world), base)
    assert str(caught.value).splitlines() == [
        f"{base} does not match the model in 5 tensors:",
        "  blocks.1.up.weight is missing",
        "  head.bias is missing",
        "  embedding.weight is (300, 15) there, the model has (256, 15)",
        "  after_next.weight is (256, 14) there, the model has (256, 15)",
        "  after_next.bias is (256, 1) there, the model has (256,)",
    ]


# --- freezing


def meta(bias: bool = True) -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(2, 2, bias=bias), nn.Linear(2, 2, bias=bias))


def test_frozen_parameters_are_kept_in_the_compute_dtype() -> None:
    model = meta()
    loading.freeze(model, lambda name: name == "1.weight", torch.bfloat16)
    assert {name: (p.requires_grad, p.dtype) for name, p in model.named_parameters()} == {
        "0.weight": (False, torch.bfloat16),
        "0.bias": (False, torch.bfloat16),
        "1.weight": (True, torch.float32),
        "1.bias": (False, torch.bfloat16),
    }


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="nothing would be trained: every parameter is frozen"):
        loading.freeze(meta(), lambda name: False, torch.float32)


# --- adapters


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_adapters_are_trained_in_fp32_and_start_at_zero(tmp_path: Path, world: World, precision: str) -> None:
    config = tiny.config_in(tmp_path, *tiny.LORA, ("train.precision", precision))
    loaded = sharded(config, world)
    values = fill(loaded, loaded.base)
    trained = {sharding.plain_name(name): p for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert len(trained) == 12, "A and B of two layers in two blocks and of two heads"
    assert all(lora_adapters.is_adapter(name) and p.dtype == torch.float32 for name, p in trained.items())
    frozen = torch.bfloat16 if precision == "bf16" else torch.float32
    assert all(p.dtype == frozen for name, p in loaded.model.named_parameters() if not p.requires_grad)
    base = load_file(loaded.base / "model.safetensors")
    others = {loading.base_name(name): value for name, value in values.items() if not lora_adapters.is_adapter(name)}
    assert others.keys() == base.keys() and all(torch.equal(others[name], base[name].to(frozen)) for name in base)
    for name in trained:
        if ".lora_B." in name:
            assert not values[name].any(), "the first step must start from the base"
        else:
            bound = 1 / math.sqrt(values[name].shape[1])
            assert 0.7 * bound < values[name].abs().max() <= bound and abs(values[name].mean()) < bound / 2


def test_adapters_start_the_same_on_any_sharding_and_differ_by_name_and_seed(tmp_path: Path, world: World) -> None:
    config = tiny.config_in(tmp_path, *tiny.LORA)
    wrapped = tiny.config_in(tmp_path, *tiny.LORA, ("train.activation_checkpointing", "full"))
    first, second, other = (
        fill(sharded(chosen, world), tmp_path / "base", seed) for chosen, seed in ((config, 0), (wrapped, 0), (config, 1))
    )
    assert first.keys() == second.keys()
    down = [name for name in first if ".lora_A." in name]
    assert len(down) == 6 and all(torch.equal(first[name], second[name]) and not torch.equal(first[name], other[name]) for name in down)
    assert len({float(first[name].detach().sum()) for name in down}) == 6


def test_base_name_removes_wrapper_names() -> None:
    wrapped = "blocks.0._checkpoint_wrapped_module.up.base_layer.weight"
    assert loading.base_name(wrapped) == "blocks.0.up.weight"


def test_the_slices_of_a_plain_tensor_cover_it() -> None:
    assert loading.local_slices(torch.ones(2, 3)) == ((2, 3), (slice(0, 2), slice(0, 3)))
    assert loading.local_slices(torch.tensor(1.0)) == ((), ())


# --- slices


def own_slices(rank: int, groups: int, neighbours: int) -> list[tuple[str, list[list[int]], bool]]:
    """(name, [first, last + 1] in each dimension, whether this rank holds just that) of a matrix cut by outputs, by inputs, and not at all.

    In a world that does not communicate, so each rank has to begin with the whole.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=groups * neighbours)
    mesh = init_device_mesh("cpu", (groups, neighbours), mesh_dim_names=("shard", "tensor"))
    layers = {"outputs": nn.Linear(3, 10 * neighbours), "inputs": nn.Linear(2 * neighbours, 5), "neither": nn.Linear(2, 7)}
    found = []
    for cut, layer in layers.items():
        whole = {name: torch.arange(1.0 * tensor.numel()).reshape(tensor.shape) for name, tensor in layer.named_parameters()}
        layer.load_state_dict(whole)
        if cut in tensor_parallel.STYLES:
            parallelize_module(layer, mesh["tensor"], tensor_parallel.STYLES[cut](), src_data_rank=None)  # type: ignore[index]
        fully_shard(layer, mesh=mesh["shard"])
        for name, parameter in layer.named_parameters():
            shape, slices = loading.local_slices(parameter)
            assert isinstance(parameter, DTensor)
            right = tuple(parameter.to_local().shape) == shape and torch.equal(parameter.to_local(), whole[name][slices])
            found.append((f"{cut}.{name}", [[part.start, part.stop] for part in slices], right))
    return found


LAYOUTS = [(1, 2), (2, 2), (3, 2), (2, 4), (5, 1)]
EVERY_RANK = """
import json, multiprocessing, sys
from tests.finetune.modeling.test_loading import LAYOUTS, own_slices

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # torch remembers a mesh's coordinates in a process
        for groups, neighbours in LAYOUTS:
            todo = [(rank, groups, neighbours) for rank in range(groups * neighbours)]
            sys.stdout.write(json.dumps(pool.starmap(own_slices, todo, chunksize=1)) + chr(10))
"""


def test_slices_locate_the_part_of_each_rank() -> None:
    """Also where tensor parallelism and `fully_shard` cut the same dimension, and the pieces are uneven or empty."""
    # Forks of this process could inherit a lock that one of torch's threads holds.
    done = fork_server.run_command("-c", EVERY_RANK)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(LAYOUTS) == 5
    for (groups, neighbours), ranks in zip(LAYOUTS, found, strict=True):
        assert len(ranks) == groups * neighbours
        assert [(rank, name) for rank, parts in enumerate(ranks) for name, _, right in parts if not right] == []
        sizes = {"outputs.weight": 30 * neighbours, "outputs.bias": 10 * neighbours, "inputs.weight": 10 * neighbours}
        alike = {"inputs.bias": 5, "neither.weight": 14, "neither.bias": 7}
        for number, (name, _, _) in enumerate(ranks[0]):
            boxes = {tuple(map(tuple, parts[number][1])) for parts in ranks}
            assert sum(math.prod(stop - start for start, stop in box) for box in boxes) == (sizes | alike)[name], f"parts of {name} overlap"
