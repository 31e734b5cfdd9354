"""The load-balancing loss of a mixture of experts, as a sum over samples.

Fedus et al. 2021 (arXiv:2101.03961, eq. 4 to 6) multiply, for each of E experts, the fraction of positions that are routed to it by its
mean probability; the loss is E times the sum over the experts. transformers takes both means over the positions of a micro-batch and of all
layers together. A product of such means depends on how the samples were cut into micro-batches, so here they are over the positions of one
sample and of all layers: for one sample the same number, and as in the sequence-wise loss of DeepSeek-V3 (arXiv:2412.19437, eq. 17) a mean
over samples. Each sample adds the same to its sum on any rank and in any micro-batch. Padding has no part in it.

Routers sum their probabilities within their layer, so activation checkpointing computes them again with the layer.
"""

from __future__ import annotations

import math
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError
from overtone.recipes.transformers_release import is_old

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CHOSEN_COUNTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Names that transformers' configs use for the number of experts that compute a position."""
WEIGHT = "router_aux_loss_coef"
"""Key of transformers' configs, and of the options, with the weight of this loss."""
DEFAULTS = frozenset({"gpt_oss"})
"""Types of models whose released config.json has the weight that is the default of transformers' class (0.9), which their makers do not
mention."""
OTHER_LOSS = frozenset({"doge"})
"""Types of models for which transformers computes another loss under the same name."""


def find_routers(config: PretrainedConfig, decoder: nn.Module) -> tuple[list[nn.Module], int]:
    """Return the modules of the decoder that put out the routers' logits [T, E], and the index of these in the output. No modules if
    transformers does not name them, or computes no such loss for them. `config`: of the language model."""
    recorder = (getattr(decoder, "_can_record_outputs", None) or {}).get("router_logits")
    kind, path, index = (getattr(recorder, name, None) for name in ("target_class", "layer_name", "index"))
    scores = is_old(version("transformers")) and config.model_type == "gpt_oss"  # transformers 4 records other values there
    # Routers without this loss in transformers, such as those of Llama 4, do not choose by a softmax.
    other = config.model_type in OTHER_LOSS or not hasattr(sys.modules[type(decoder).__module__], "load_balancing_loss_func")
    if kind is None or index is None or scores or other or count_chosen(config) is None:
        return [], 0
    named = decoder.named_modules()
    return [module for name, module in named if isinstance(module, kind) and (path is None or path in name)], index


def count_chosen(config: PretrainedConfig) -> int | None:
    """Return the number of experts that compute a position; None if the config of the language model does not state it."""
    return next((count for key in CHOSEN_COUNTS if isinstance(count := getattr(config, key, None), int)), None)


def decide_weight(config: PretrainedConfig, decoder: nn.Module, wanted: float | None, stated: object) -> tuple[float, str | None]:
    """Return the weight of the loss, 0 for none, and a line for the log. `wanted`: of the options; None for that of the base, whose
    config.json has `stated`, None if it has no such key. Raises `UserError` if a weight is wanted and the routers cannot be read."""
    readable = bool(find_routers(config, decoder)[0])
    unreadable = f"transformers {version('transformers')} computes no such loss for {config.model_type}"
    if wanted is not None:
        if wanted and not readable:
            raise UserError(f"options.{WEIGHT}: {wanted:g}, but {unreadable}, or does not name its routers; set it to 0")
        return wanted, f"expert_balance: weight {wanted:g} (options.{WEIGHT})"
    if type(stated) not in (int, float) or not 0 < float(stated) < math.inf:  # type: ignore[arg-type]
        return 0.0, None
    unused = f"{WEIGHT}: {stated} of config.json is not used: "
    if config.model_type in DEFAULTS:
        return 0.0, f"{unused}it is the default of transformers; to balance the experts, set options.{WEIGHT}"
    if not readable:
        return 0.0, unused + unreadable
    return float(stated), f"expert_balance: weight {stated} ({WEIGHT} of config.json; options.{WEIGHT}: 0 omits this term)"  # type: ignore[arg-type]


class RouterRecorder:
    """A forward hook of a router. For the samples that it is given, it records how often each expert is chosen and the sum of its
    probabilities."""

    def __init__(self, index: int, chosen: int) -> None:
        """`index`: of the logits in the router's output. `chosen`: number of experts that compute a position."""
        self.index, self.chosen = index, chosen
        self.samples: Tensor | None = None
        """From `locate_samples`; None: nothing is recorded. It stays for the backward pass, in which activation checkpointing computes the
        same again, and checks that."""
        self.recorded: Tensor | None = None
        """Choices and probabilities [2, N, E], fp32."""

    def __call__(self, _: nn.Module, __: object, output: tuple[Tensor, ...]) -> None:
        if self.samples is None:
            return
        probabilities = output[self.index].flatten(0, -2).float().softmax(-1)
        places = probabilities.detach().topk(self.chosen, dim=-1).indices
        choices = torch.zeros_like(probabilities).scatter_(-1, places, 1.0)
        self.recorded = torch.stack([self.samples @ choices, self.samples @ probabilities])


def record_routers(config: PretrainedConfig, decoder: nn.Module) -> list[RouterRecorder]:
    """Add a recorder to each router of the decoder, which `find_routers` finds. `config`: of the language model."""
    (routers, index), chosen = find_routers(config, decoder), count_chosen(config)
    assert chosen is not None  # otherwise there are no routers
    recorders = [RouterRecorder(index, chosen) for _ in routers]
    for router, recorder in zip(routers, recorders, strict=True):
        router.register_forward_hook(recorder)
    return recorders


def locate_samples(ids: Tensor, bounds: Tensor | None, lengths: tuple[int, ...]) -> Tensor:
    """Return which of the flattened positions of `ids` [B, S] are of which sample: fp32 [N, B · S], 1 or 0. `bounds`: of packed samples;
    otherwise each row is a sample, without its padding. A product with it sums over samples, in an order that does not vary."""
    places = torch.arange(ids.numel(), device=ids.device)
    if bounds is not None:
        return ((places >= bounds[:-1, None]) & (places < bounds[1:, None])).float()
    # Numbers from the host become arguments of kernels; a tensor of them would have to be copied.
    rows = [(places >= row * ids.shape[1]) & (places < row * ids.shape[1] + length) for row, length in enumerate(lengths)]
    return torch.stack(rows).float()


def sum_losses(recorders: list[RouterRecorder], samples: Tensor, count: int) -> Tensor:
    """Return the sum of the losses of the first `count` of these samples (fp32 scalar) from what the routers recorded in this forward."""
    recorded = [recorder.recorded for recorder in recorders if recorder.recorded is not None]  # `plan` traces some of the layers
    for recorder in recorders:
        recorder.recorded = None
    choices, probabilities = torch.stack(recorded).sum(0)[:, :count]
    positions = samples[:count].sum(1) * len(recorded)
    return ((choices * probabilities).sum(1) / positions.square()).sum() * choices.shape[1]
