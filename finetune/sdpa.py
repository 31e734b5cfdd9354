"""Which of torch's backends compute scaled_dot_product_attention (SDPA) in this process."""

from __future__ import annotations


def disable_cudnn() -> None:
    """Keep cuDNN's backend out of SDPA in this process; torch chooses among its other fused kernels.

    From torch 2.11 it comes first on compute capability 9.0 and 10.0. It builds a plan for each new combination of sizes and strides, which
    holds the host for tens of milliseconds, and here nearly every call has its own: samples apart, clips padded to their longest, a cache
    that grows with each token.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)
