"""How many graphs torch compiles, and what is executed of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.partitioners import min_cut_rematerialization_partition


def unique_graphs() -> int:
    """Compiled so far in this process."""
    return int(counters["stats"]["unique_graphs"])


class Counting:
    """A backend that cuts forward and backward as Inductor does, runs both as they are, and counts their operations."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.backend = aot_autograd(fw_compiler=self.compiled, bw_compiler=self.compiled, partition_fn=min_cut_rematerialization_partition)

    def compiled(self, graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]

        def run(given: list[Any]) -> Any:
            self.operations.update(names)
            return graph.forward(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def executed(self, operation: str) -> int:
        """Calls of operations whose name, without the namespace and the overload, ends so (mm, addmm)."""
        return sum(count for name, count in self.operations.items() if name.split(".")[-2].endswith(operation))
