"""CUDA allocator setting: enables `expandable_segments` through the environment, which torch's allocator reads once at startup.

With `expandable_segments` a segment grows page by page, instead of many segments of fixed sizes, so micro-batches of different shapes
cause less fragmentation. It needs the driver's virtual memory management, which some virtual GPUs lack: there the first allocation would
fail. Such memory cannot be shared with other processes in containers that forbid `pidfd_getfd`, nor be registered with NCCL segment by
segment; training never does the former, and the latter only on request. Processes that capture CUDA graphs, such as speech generation,
keep the default allocator.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import MutableMapping

VARIABLE, SETTING = "PYTORCH_ALLOC_CONF", "expandable_segments:True"
OLDER = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Older names, which torch 2.11 to 2.13 read if `VARIABLE` is not set."""
NCCL_REGISTRATION = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
VIRTUAL_MEMORY = 102
"""`CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`, in cuda.h."""


def use_expandable_segments(environ: MutableMapping[str, str]) -> str | None:
    """Set `expandable_segments` in `environ` if all visible GPUs support it; returns a log line. Call before torch is imported. Returns
    None, and changes nothing, without a GPU or if the allocator is configured already.
    """
    if "torch" in sys.modules or any(name in environ for name in (VARIABLE, *OLDER, NCCL_REGISTRATION)):
        return None
    library = load_driver()
    if library is None or not has_virtual_memory(library):
        return None
    environ[VARIABLE] = SETTING
    return f"GPU memory: {VARIABLE}={SETTING}; set {VARIABLE} yourself to choose otherwise"


def load_driver() -> ctypes.CDLL | None:
    """CUDA's driver library, None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def has_virtual_memory(library: ctypes.CDLL) -> bool:
    """Return whether there is a visible GPU, and all of them support virtual memory management. Initializes the driver, but no GPU
    context."""
    count, device, supported = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return False
    for number in range(count.value):
        if library.cuDeviceGet(ctypes.byref(device), number):
            return False
        if library.cuDeviceGetAttribute(ctypes.byref(supported), VIRTUAL_MEMORY, device) or not supported.value:
            return False
    return count.value > 0
