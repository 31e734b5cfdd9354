"""Settings of torch's allocator of GPU memory, which reads them from the environment once, when it starts.

With `expandable_segments` a segment of the allocator grows page by page in place of many segments of fixed sizes: micro-batches of
different shapes leave no gaps between them that fit nobody. It needs the driver's virtual memory management, which some virtual GPUs do
not have: there the first allocation would fail. Such memory cannot be shared with other processes in containers that forbid `pidfd_getfd`,
nor be registered with NCCL segment by segment; training does the former never, and the latter only on request. Processes that capture
CUDA graphs, as those that speak, keep the plain allocator.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import MutableMapping
from typing import Any

VARIABLE, SETTING = "PYTORCH_ALLOC_CONF", "expandable_segments:True"
OLDER = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Names that torch 2.11 and 2.13 still read, but only where `VARIABLE` is not set."""
NCCL_REGISTRATION = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
VIRTUAL_MEMORY = 102
"""`CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`, in cuda.h."""


def use_expandable_segments(environ: MutableMapping[str, str]) -> str | None:
    """Set `expandable_segments` in `environ` if all visible GPUs allow it; returns a line that says so, for people. Call before torch is
    imported. What somebody has set already is kept, and then, as without a GPU, nothing is returned.
    """
    if "torch" in sys.modules or any(name in environ for name in (VARIABLE, *OLDER, NCCL_REGISTRATION)):
        return None
    library = driver()
    if library is None or not has_virtual_memory(library):
        return None
    environ[VARIABLE] = SETTING
    return f"GPU memory: {VARIABLE}={SETTING}; set {VARIABLE} yourself to choose otherwise"


def driver() -> Any | None:
    """CUDA's driver library, None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def has_virtual_memory(library: Any) -> bool:
    """Whether there is a visible GPU, and every one has virtual memory management. Starts the driver, but no context on a GPU."""
    count, device, supported = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)):
        return False
    for number in range(count.value):
        if library.cuDeviceGet(ctypes.byref(device), number):
            return False
        if library.cuDeviceGetAttribute(ctypes.byref(supported), VIRTUAL_MEMORY, device) or not supported.value:
            return False
    return count.value > 0
