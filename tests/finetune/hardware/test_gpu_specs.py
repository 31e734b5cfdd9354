"""Clusters by name."""

from __future__ import annotations

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.hardware.gpu_specs import GPUS, make_cluster


def test_a_cluster_counts_its_ranks() -> None:
    two = make_cluster("h100-80gb", 8, 2)
    assert two.ranks == 16 and str(two) == "2 machines of 8 × h100-80gb (79.1 GiB)"
    assert two.budget == pytest.approx(79.1 * 2**30)
    assert str(make_cluster("a10g", 1, 1)) == "1 × a10g (22 GiB)"


def test_the_error_for_an_unknown_gpu_names_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"--gpu h100: unknown; did you mean h100-80gb\?"):
        make_cluster("h100", 8, 1)
    with pytest.raises(UserError, match="at least one GPU"):
        make_cluster("h100-80gb", 0, 1)


def test_every_gpu_is_plausible() -> None:
    assert len(GPUS) == 11
    for gpu in GPUS.values():
        assert 20 < gpu.memory < 200 and 50 < gpu.speed < 3000 and gpu.link >= 32 and gpu.fabric > 0
