"""The literature's textbook cases of choosing a strategy, and the reasons that the planner gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overtone.finetune.hardware.gpu_specs import Cluster, Gpu, make_cluster
from overtone.finetune.planning.activation_memory import Activations, Recomputing
from overtone.finetune.planning.memory import Arrangement, Outline, ParameterOutline, Unit, estimate_memory
from overtone.finetune.planning.parallelism_planner import (
    LayoutEstimate,
    Work,
    choose_layouts,
    estimate_layout,
    explain_rejection,
    largest_micro_batch,
    list_arrangements,
)

PER_LAYER: dict[Recomputing, float] = {"none": 49.0, "selective": 25.0, "full": 2.0}
"""Bytes of a block's activations for each position and channel of a Llama in bf16."""
RECOMPUTED: dict[Recomputing, float] = {"none": 1.0, "selective": 1.02, "full": 4 / 3}


def llama(layers: int, hidden: int, mlp: int, keys: int, words: int, trained: bool = True) -> Outline:
    """A Llama's parameters; with `trained` false an adapter of rank 16 on everything instead."""

    def weight(rows: int, columns: int, divided: int | None, in_block: bool = True) -> ParameterOutline:
        return ParameterOutline(rows, columns, trained, 4 if trained else 2, 2, divided, in_block)

    square = [(hidden, hidden, 0), (keys, hidden, 0), (keys, hidden, 0), (hidden, hidden, 1)]
    wide = [(mlp, hidden, 0), (mlp, hidden, 0), (hidden, mlp, 1)]
    adapter = [] if trained else [ParameterOutline(16, rows + columns, True, 4, 2, None, True) for rows, columns, _ in square + wide]
    block = Unit((*(weight(*each) for each in square + wide), weight(hidden, 1, None), weight(hidden, 1, None), *adapter))
    table = Unit((weight(words, hidden, None, False),))
    return Outline(Unit((weight(hidden, 1, None, False),)), (*[block] * layers, table, table), layers, hidden)


SHAPES = {
    "1B": (16, 2048, 8192, 512, 128256),
    "3B": (28, 3072, 8192, 1024, 128256),
    "8B": (32, 4096, 14336, 1024, 128256),
    "13B": (40, 5120, 13824, 5120, 32000),
    "34B": (48, 8192, 22016, 1024, 32000),
    "70B": (80, 8192, 28672, 1024, 128256),
}


def work(name: str, micro: int, batch: int, recomputing: Recomputing = "full", trained: bool = True) -> Work:
    """A step of `batch` positions in micro-batches of `micro`."""
    model = llama(*SHAPES[name], trained=trained)

    def needs(how: Recomputing, tensor: int) -> Activations:
        blocks = int(model.blocks * micro * model.hidden * PER_LAYER[how] / (1 if how == "full" else tensor))
        again = int(micro * model.hidden * PER_LAYER["none"] / tensor) if how == "full" else 0
        flops = (6 if trained else 4) * model.total * micro * RECOMPUTED[how] / tensor
        return Activations(blocks, int(2e9 + 1e4 * micro), again, blocks, flops, micro)

    return Work(model, needs, micro, batch, 2, recomputing)


def chosen(of: Work, on: Cluster) -> list[LayoutEstimate]:
    return choose_layouts(of, on, list(list_arrangements(on, of.refuses_tensor)))


H100, H100S, TWO, EIGHT = (make_cluster("h100-80gb", *size) for size in ((1, 1), (8, 1), (8, 2), (8, 8)))
# Four machines with one 100 Gb/s card each: what crosses between them decides.
SLOW = Cluster("h100-80gb", Gpu(79.1, 989, 450, 12.5), 8, 4)
TEXTBOOK = [
    ("one GPU has nobody to share with", work("1B", 4096, 65536), H100, "ddp"),
    ("a small model on a machine: replicas, which talk least", work("1B", 8192, 2**19), H100S, "ddp"),
    ("replicas of adapters, whatever the model's size", work("8B", 4096, 2**19, trained=False), H100S, "ddp"),
    ("the states do not fit: ZeRO-1", work("3B", 8192, 2**19), make_cluster("a100-40gb", 8, 1), "zero1"),
    ("nor do they beside activations: ZeRO-1", work("3B", 4096, 2**19, "none"), make_cluster("h100-80gb", 4, 1), "zero1"),
    ("states and whole gradients do not fit: ZeRO-2", work("8B", 4096, 2**19, "none"), H100S, "zero2"),
    ("not even the gathered weights fit: ZeRO-3", work("13B", 2048, 2**18), make_cluster("a100-40gb", 8, 1), "fsdp"),
    ("70B on a few machines: ZeRO-3 over all of them", work("70B", 8192, 2**21), make_cluster("h100-80gb", 8, 4), "fsdp"),
    ("slow wires between machines: shard within one, copy across", work("34B", 2048, 2**20), SLOW, "hsdp, 4 copies"),
    ("fewer micro-batches than GPUs: share matrices instead", work("70B", 8192, 2**18), EIGHT, "fsdp × tp 2"),
    ("activations of long samples do not fit: share matrices", work("8B", 65536, 2**22, "selective"), H100S, "fsdp × tp 4"),
    ("hundreds of GPUs: full sharding waits for its ring", work("8B", 2048, 2**20), make_cluster("h100-80gb", 8, 64), "hsdp, 4 copies"),
]


@pytest.mark.parametrize(("of", "on", "right"), [case[1:] for case in TEXTBOOK], ids=[case[0] for case in TEXTBOOK])
def test_the_planner_chooses_the_textbook_strategy(of: Work, on: Cluster, right: str) -> None:
    best, *others = chosen(of, on)
    assert str(best.arrangement) == right and best.fits
    assert on.ranks == 1 or len(others) >= 3
    for other in others:
        said = explain_rejection(other, best)
        assert ("needs" in said) != other.fits and "GiB" in said


def test_there_are_twelve_textbook_cases() -> None:
    assert len(TEXTBOOK) == 12


def test_a_model_that_cannot_fit_is_refused_with_its_largest_term() -> None:
    """70B on eight GPUs: 16 · 70.6 / 8 = 141 GB of states alone."""
    best, *_ = chosen(work("70B", 4096, 2**19), H100S)
    assert not best.fits
    verdicts = {str(each.arrangement): explain_rejection(each, best) for each in chosen(work("70B", 4096, 2**19), H100S)}
    assert (
        "most of it for weights, gradients and optimizer, 131.4 GiB; weights, gradients and optimizer alone take 131.4 GiB"
        in verdicts["fsdp"]
    )
    assert "most of it for full gradients" in verdicts["zero1"]


def test_recomputation_is_proposed_when_nothing_else_helps() -> None:
    long = work("8B", 131072, 2**20, "none")
    best, *_ = chosen(long, H100S)
    assert best.fits and best.recomputing != "none"


def test_strategies_that_the_model_refuses_are_not_offered() -> None:
    offered = [each.tensor for each in list_arrangements(H100S, lambda size: "no" if size > 2 else None)]
    assert set(offered) == {1, 2}
    assert [str(each) for each in list_arrangements(TWO, lambda _: "no")] == ["ddp", "zero1", "zero2", "fsdp", "hsdp, 2 copies"]


def move_peak(positions: int, grows: int = 400_000) -> Activations:
    """As of a language model: in a short micro-batch the peak is in the loss, with 2 GB whatever its length; in a long one in a block's
    backward pass, with `grows` bytes per position."""
    blocks, loss, block = 250_000 * positions, 2 * 10**9, grows * positions
    return Activations(blocks, loss, max(0, block - loss), blocks, 1e9 * positions, positions)


@pytest.mark.parametrize("micro", [256, 8192, 2**17])
@pytest.mark.parametrize("grows", [0, 100_000, 400_000])
def test_the_largest_micro_batch_fills_the_memory_though_the_peak_moves(micro: int, grows: int) -> None:
    """Sought from far below and from above, in few traces. The search ends at 16 times the configured size."""
    of = replace(work("8B", micro, 2**19), activations=lambda *_: move_peak(micro, grows))
    verdict = estimate_layout(of, H100S, Arrangement("fsdp", 8), "full")
    traced: list[int] = []

    def trace(positions: int) -> Activations:
        traced.append(positions)
        return move_peak(positions, grows)

    def fits(positions: int) -> bool:
        return estimate_memory(of.outline, verdict.arrangement, move_peak(positions, grows), of.compute).total <= verdict.budget

    most = largest_micro_batch(of, verdict, trace)
    assert fits(most) and (most == 16 * micro or not fits(round(1.03 * most))) and len(traced) <= 6 and max(traced) <= 16 * micro


def test_no_room_means_no_micro_batch() -> None:
    of = work("70B", 4096, 2**19)
    verdict = next(each for each in chosen(of, H100S) if each.arrangement == Arrangement("fsdp", 8))
    assert largest_micro_batch(of, verdict, move_peak) == 0
    of = replace(work("8B", 4096, 2**19), activations=lambda *_: Activations(0, 10**12, 0, 0, 1.0, 4096))
    verdict = estimate_layout(of, H100S, Arrangement("fsdp", 8), "full")
    assert largest_micro_batch(of, verdict, lambda size: Activations(0, 10**12, 0, 0, 1.0, size)) == 0, "the weights fit, and no position"


def test_a_micro_batch_that_takes_no_memory_fits_up_to_the_end_of_the_search() -> None:
    of = replace(work("8B", 64, 2**19), activations=lambda *_: Activations(0, 0, 0, 0, 1.0, 64))
    verdict = estimate_layout(of, H100S, Arrangement("fsdp", 8), "full")
    assert largest_micro_batch(of, verdict, lambda size: Activations(0, 0, 0, 0, 1.0, size)) == 16 * 64
