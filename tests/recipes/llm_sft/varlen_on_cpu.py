"""torch's varlen kernel in plain operations for CPUs, where torch has none, so that the code around it can be tested. It computes each
sample separately, with forward and backward as in flash attention (Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4) without tiles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def varlen_on_cpu() -> Iterator[None]:
    """While open, `varlen_attn` computes on CPU tensors."""
    from torch.nn.attention import varlen

    with torch.library._scoped_library("torch_attn", "IMPL") as library:
        library.impl("_varlen_attn", forward, "CPU")
        library.impl("_varlen_attn_backward", backward, "CPU")
        assert varlen._varlen_attn is not None
        yield


def forward(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, _: Tensor, longest: int, __: int, causal: bool = False, scale: Any = None,
    window: Any = None, *more: Any, **named: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Query [S, heads, D], key and value [S, fewer heads, D] → attended [S, heads, D]; NaN outside of samples."""
    attended = torch.full_like(query, torch.nan)
    for part in parts(bounds, longest):
        shares, values = shares_of(query[part], key[part], scale, window), grouped(value[part], query)
        attended[part] = torch.einsum("hqk,khd->qhd", shares, values)
    return attended, query.new_zeros(query.shape[1], len(query), dtype=torch.float), torch.zeros(2, dtype=torch.uint64)


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, attended: Tensor, _: Tensor, bounds: Tensor, __: Tensor, longest: int,
    ___: int, causal: bool, state: Tensor, scale: Any = None, window: Any = None, *more: Any, **named: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key and value."""
    found = [torch.full_like(each, torch.nan) for each in (query, key, value)]
    groups = key.shape[1]
    for part in parts(bounds, longest):
        q, k, v, out, g = query[part], grouped(key[part], query), grouped(value[part], query), attended[part], gradient[part]
        shares = shares_of(q, key[part], scale, window)
        of_shares = torch.einsum("qhd,khd->hqk", g, v)
        of_scores = shares * (of_shares - (g * out).sum(-1).T.unsqueeze(-1)) * scale
        found[0][part] = torch.einsum("hqk,khd->qhd", of_scores, k)
        found[1][part] = torch.einsum("hqk,qhd->khd", of_scores, q).unflatten(1, (groups, -1)).sum(2)
        found[2][part] = torch.einsum("hqk,qhd->khd", shares, g).unflatten(1, (groups, -1)).sum(2)
    return found[0], found[1], found[2]


def parts(bounds: Tensor, longest: int) -> Iterator[slice]:
    """The samples that are not empty. A sample longer than `longest` would not be computed to its end by the kernel."""
    edges = bounds.tolist()
    assert edges[0] == 0 and edges == sorted(edges) and max(b - a for a, b in pairwise(edges)) <= longest
    return (slice(a, b) for a, b in pairwise(edges) if b > a)


def grouped(shared: Tensor, query: Tensor) -> Tensor:
    """[n, fewer heads, D] → [n, heads, D]."""
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], dim=1)


def shares_of(query: Tensor, key: Tensor, scale: float, window: Any) -> Tensor:
    """[heads, n, n], rows that sum to 1."""
    places = torch.arange(len(query))
    behind = places[:, None] - places
    seen = (behind >= 0) & ((behind <= window[0]) if window is not None and window[0] >= 0 else True)
    scores = torch.einsum("qhd,khd->hqk", query, grouped(key, query)) * scale
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)
