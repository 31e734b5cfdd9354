"""Sharded tensors on disk: any slice of any sharding is read by this package, by safetensors and by torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor, init_device_mesh

from overtone.finetune.checkpointing import rank_shards
from overtone.finetune.checkpointing.rank_shards import TensorEntry, TensorShard
from overtone.finetune.config import resolve
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.modeling import loading
from overtone.finetune.storage import files
from tests.byte_model.recipe import Options
from tests.finetune import fork_server

TENSORS = {
    "odd.bf16": torch.randn(5, 3).bfloat16(),
    "matrix": torch.randn(7, 3),
    "vector": torch.randn(11),
    "scalar": torch.tensor(2.5),
    "count": torch.tensor([[1, -(2**40)]]),
    "cube": torch.randn(2, 3, 5).double(),
    "half": torch.randn(3).half(),
    "bits": torch.tensor([True, False, True]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "ints": torch.tensor([1, -2], dtype=torch.int32),
}


def whole(tensors: dict[str, Tensor]) -> dict[str, TensorShard]:
    return {name: TensorShard(tensor, (0,) * tensor.dim()) for name, tensor in tensors.items()}


def cut(tensors: dict[str, Tensor], places: dict[str, int]) -> list[dict[str, TensorShard]]:
    """Two files' parts: each tensor cut in its first dimension."""
    first = {name: TensorShard(tensors[name][:at], (0,) * tensors[name].dim()) for name, at in places.items() if at}
    second = {
        name: TensorShard(tensors[name][at:], (at, *(0,) * (tensors[name].dim() - 1)))
        for name, at in places.items()
        if at < len(tensors[name])
    }
    return [first, second]


def test_moments_are_last_and_what_precedes_has_its_own_digest(tmp_path: Path) -> None:
    mixed = {"optimizer.exp_avg.a": torch.ones(3), "a": torch.zeros(3), "optimizer.exp_avg_sq.a": torch.ones(3), "buffer": torch.ones(2)}
    for tensors, named in ((mixed, b"a"), ({"optimizer.exp_avg.a": torch.ones(3)}, b""), ({"a": torch.zeros(3)}, b"a"), ({}, b"")):
        path = tmp_path / "shard.safetensors"
        written = rank_shards.write_shard(path, whole(tensors))
        data, values = path.read_bytes(), sum(tensor.nbytes for name, tensor in tensors.items() if not name.startswith("optimizer."))
        header = 8 + int.from_bytes(data[:8], "little")
        assert (written.bytes, written.weights_bytes) == (len(data), header + values)
        assert written.digest == files.digest(path) == hashlib.sha256(data).hexdigest()
        assert written.weights_digest == files.digest(path, written.weights_bytes) == hashlib.sha256(data[: header + values]).hexdigest()
        with safe_open(path, framework="pt") as file:
            assert {name: file.get_tensor(name).tolist() for name in file.keys()} == {name: one.tolist() for name, one in tensors.items()}  # noqa: SIM118
        assert data[header : header + 12] == bytes(12) if named else values == 0


def write(folder: Path, ranks: list[dict[str, TensorShard]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, parts in enumerate(ranks, start=1):
        rank_shards.write_shard(folder / f"rank-{rank:05d}-of-{len(ranks):05d}.safetensors", parts)
    return folder


def test_every_tensor_is_read_back(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", [whole(TENSORS)])
    with rank_shards.open_shards(folder) as (read, shapes):
        assert shapes == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
        for name, tensor in TENSORS.items():
            found = read(name, None)
            assert found.dtype == tensor.dtype and torch.equal(found, tensor)
        with pytest.raises(KeyError):
            read("nothing", None)


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    written = rank_shards.write_shard(tmp_path / "file", whole(TENSORS))
    assert (written.bytes, written.digest) == ((tmp_path / "file").stat().st_size, files.digest(tmp_path / "file"))


@settings(max_examples=60)
@given(st.data())
def test_any_slice_of_two_pieces_is_the_slice_of_the_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    tensor = torch.arange(1, 1 + int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape)
    folder = tmp_path_factory.mktemp("pieces")
    write(folder, cut({"t": tensor}, {"t": data.draw(st.integers(0, shape[0]))}))
    starts = [data.draw(st.integers(0, size)) for size in shape]
    wanted = tuple(slice(start, data.draw(st.integers(start, size))) for start, size in zip(starts, shape, strict=True))
    with rank_shards.open_shards(folder) as (read, _):
        found = read("t", wanted)
        assert found.shape == tensor[wanted].shape and torch.equal(found, tensor[wanted])
        assert torch.equal(read("t", None), tensor)


def test_pieces_in_a_grid_of_two_dimensions(tmp_path: Path) -> None:
    tensor = torch.randn(5, 7)
    corners = [(rows, columns) for rows in (slice(0, 2), slice(2, 5)) for columns in (slice(0, 4), slice(4, 7))]
    write(tmp_path, [{"t": TensorShard(tensor[rows, columns], (rows.start, columns.start))} for rows, columns in corners])
    with rank_shards.open_shards(tmp_path) as (read, shapes):
        assert shapes == {"t": (5, 7)} and torch.equal(read("t", None), tensor)
        assert torch.equal(read("t", (slice(1, 4), slice(3, 6))), tensor[1:4, 3:6])


def test_safetensors_reads_it(tmp_path: Path) -> None:
    folder = write(tmp_path, [whole(TENSORS)])
    with safe_open(next(folder.glob("*.safetensors")), framework="pt") as file:
        assert set(file.keys()) == set(TENSORS)
        assert file.metadata()["format"] == "pt"
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in TENSORS.items())
        assert torch.equal(file.get_slice("matrix")[2:5, 1:], TENSORS["matrix"][2:5, 1:])


def test_torch_reads_it(tmp_path: Path) -> None:
    tensors = {name: TENSORS[name] for name in ("matrix", "vector", "odd.bf16", "count", "scalar")}
    folder = write(
        tmp_path, cut({name: tensors[name] for name in ("matrix", "vector", "odd.bf16")}, {"matrix": 4, "vector": 6, "odd.bf16": 1})
    )
    write(tmp_path / "plain", [whole({"count": tensors["count"], "scalar": tensors["scalar"]})])
    for place, names in ((folder, ("matrix", "vector", "odd.bf16")), (tmp_path / "plain", ("count", "scalar"))):
        state = {name: torch.zeros_like(tensors[name]) for name in names}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(str(place)), no_dist=True)
        assert all(torch.equal(state[name], tensors[name]) for name in names)


def test_a_file_may_be_empty(tmp_path: Path) -> None:
    folder = write(tmp_path, [whole({"a": torch.ones(2)}), {}])
    with rank_shards.open_shards(folder) as (read, shapes):
        assert shapes == {"a": (2,)} and torch.equal(read("a", None), torch.ones(2))


def test_a_stream_that_does_not_match_its_header_is_refused(tmp_path: Path) -> None:
    entries = [TensorEntry("a", torch.float32, (2, 3))]
    rank_shards.write_stream(tmp_path / "blocks", entries, iter([torch.ones(1, 3), torch.zeros(1, 3)]), {})
    with safe_open(tmp_path / "blocks", framework="pt") as file:
        assert torch.equal(file.get_tensor("a"), torch.tensor([[1.0] * 3, [0.0] * 3]))
    for values in ([torch.ones(1, 3)], [torch.ones(3, 3)], [torch.ones(2, 3).bfloat16()], []):
        with pytest.raises(RuntimeError, match="bytes of values were written, the header says 24"):
            rank_shards.write_stream(tmp_path / "wrong", entries, iter(values), {})


def test_a_transposed_or_grad_requiring_tensor_is_written_in_its_own_order(tmp_path: Path) -> None:
    tensor = torch.randn(3, 4, requires_grad=True).T
    write(tmp_path, [whole({"t": tensor})])
    with rank_shards.open_shards(tmp_path) as (read, _):
        assert torch.equal(read("t", None), tensor)


def test_plain_tensors_are_written_once_each_in_turn() -> None:
    tensors = {str(number): torch.ones(number + 1) for number in range(7)}
    shares = [rank_shards.select_own_parts(tensors, rank, 3) for rank in range(3)]
    assert [list(share) for share in shares] == [["0", "3", "6"], ["1", "4"], ["2", "5"]]


def test_own_parts_of_a_sharded_and_of_a_replicated_tensor(world: World) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    tensor = torch.randn(4, 2)
    sharded = DTensor.from_local(tensor, mesh, [Replicate(), Shard(0)])
    parts = rank_shards.select_own_parts({"a": sharded, "empty": torch.empty(0, 3)}, world.rank, world.size)
    assert set(parts) == {"a"}, "nothing is nothing to write"
    assert parts["a"].offset == (0, 0) and torch.equal(parts["a"].value, tensor) and not isinstance(parts["a"].value, DTensor)


def test_the_header_holds_the_offset_of_each_shard(tmp_path: Path) -> None:
    folder = write(tmp_path, cut({"matrix": TENSORS["matrix"]}, {"matrix": 4}))
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found.append(json.loads(file.metadata()[rank_shards.OFFSETS_KEY]))
        header = int.from_bytes(path.read_bytes()[:8], "little")
        assert header % 8 == 0, "values begin at a multiple of eight, so that they can be mapped"
    assert found == [{"matrix": {"saved_offsets": [0, 0]}}, {"matrix": {"saved_offsets": [4, 0]}}]


WHOLE = {"a": torch.arange(15.0).reshape(5, 3), "b": torch.arange(3.0), "one": torch.ones(1, 4), "c": torch.arange(8)}


def parts_of_rank(folder: Path) -> dict[str, dict[str, list[list[int]]]]:
    """On one of two ranks: offset and shape of what it writes of each tensor, under two strategies; what it reads back is its own part."""
    world, found = join((), folder), dict[str, dict[str, list[list[int]]]]()
    config = resolve("tests/byte_model", Options, [], [])
    strategies: dict[Literal["fsdp", "ddp"], list[Placement]] = {"fsdp": [Shard(0)], "ddp": [Replicate(), Shard(0)]}
    for strategy, placements in strategies.items():
        mesh = sharding.make_layout(strategy, config.parallel, world).whole
        tensors = {name: distribute_tensor(tensor, mesh, placements) for name, tensor in WHOLE.items()} | {"plain": torch.ones(2)}
        parts = rank_shards.select_own_parts(tensors, world.rank, world.size)
        found[strategy] = {name: [list(part.offset), list(part.value.shape)] for name, part in parts.items()}
        rank_shards.write_shard(folder / strategy / f"rank-{world.rank}.safetensors", parts)
        torch.distributed.barrier()
        with rank_shards.open_shards(folder / strategy) as (read, shapes):
            assert all(torch.equal(read(name, None), tensor) for name, tensor in WHOLE.items()) and len(shapes) == len(WHOLE) + 1
            for name, tensor in tensors.items():
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                assert torch.equal(read(name, loading.local_slices(tensor)[1]), local), name
    leave()
    return found


def test_two_ranks_write_every_tensor_once_and_read_their_own_part(tmp_path: Path) -> None:
    for strategy in ("fsdp", "ddp"):
        (tmp_path / strategy).mkdir()
    first, second = fork_server.run_ranks(2, parts_of_rank, tmp_path)
    assert first["fsdp"] == {"a": [[0, 0], [3, 3]], "b": [[0], [2]], "one": [[0, 0], [1, 4]], "c": [[0], [4]], "plain": [[0], [2]]}
    assert second["fsdp"] == {"a": [[3, 0], [2, 3]], "b": [[2], [1]], "c": [[4], [4]]}
    assert (list(first["ddp"]), list(second["ddp"])) == (["a", "one", "plain"], ["b", "c"]), "replicas share the work"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_tensor_with_nan_or_an_infinity_of_either_sign_is_not_finite(value: float) -> None:
    assert rank_shards.is_finite(torch.tensor([-1e38, 0.0, 1e38]))
    assert not rank_shards.is_finite(torch.tensor([0.0, value, 1.0]))
