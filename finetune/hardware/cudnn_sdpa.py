"""Selection of torch's backends for scaled_dot_product_attention (SDPA): disables cuDNN."""

from __future__ import annotations


def disable_cudnn() -> None:
    """Disable cuDNN's SDPA backend in this process; torch selects among its other fused kernels.

    From torch 2.11 on, it is preferred on compute capability 9.0 and 10.0. It builds a plan for each new combination of sizes and strides,
    which blocks the host for tens of milliseconds, and here nearly every call has its own: single samples, clips padded to the longest, a
    cache that grows with each token.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
