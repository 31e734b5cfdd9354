"""A config of the same architecture with small widths, few layers and low thresholds: a model that is built and run in about a second.

Names are matched by their parts, since each architecture of transformers has its own. Ratios between widths are kept where possible: they
are divided by one number. A config that cannot be built or run after that is given up, never repaired by architecture.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WIDTHS = re.compile(
    r"hidden|intermediate|ffn|inner|embd|d_model|d_ff|d_ssm|width|heads?(_kv)?$|lora_rank|proj_dim|conv_dim|block_(ff_)?dim"
)
NO_WIDTHS = re.compile(r"head_dim|d_head|layers|experts|_act|prob|dropout|window")
FREE_WIDTHS = re.compile(r"intermediate|ffn|inner|d_ff")
"""Names of widths for which any multiple of 8 fits the other sizes."""
HEADS = ("head", "heads", "heads_kv", "head_kv")
EXPERTS = re.compile(r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$")
CHOSEN_EXPERTS = re.compile(r"experts_per_tok|moe_(top)?k$|top_?k_experts|moe_topk")
GROUPS = re.compile(r"^(n_group|topk_group)$")
THRESHOLDS = re.compile(r"max_position|n_positions|n_ctx|window|chunk_size|max_seq_len|seq_length|floor_scale|max_sequence_length")
NO_THRESHOLDS = re.compile(r"layers|pattern|use_")
VOCABULARY = 128
NARROWEST = 32
"""Hidden size below which nothing is divided."""
MOST_LAYERS = 12
FIRST, APART = 16, 12
"""The lowest threshold, and the distance to the next."""
OUT_OF_REACH = 1024
"""For thresholds that no row of the run reaches. More positions than any row of the check has."""
NUMBERS = re.compile(r"(^|_)(idx|index|id|number)$")
PLAIN = (bool, int, str, type(None))


@dataclass(frozen=True)
class ShrunkConfig:
    """A config, and the samples to try with it."""

    config: PretrainedConfig
    lengths: tuple[int, ...]
    """On both sides of each threshold that a sample of the run can reach; their row is longer than each that a row can reach."""


def shrink(
    config: PretrainedConfig, decoder: nn.Module, blocks: tuple[type[nn.Module], ...], sample: int, row: int
) -> Iterator[ShrunkConfig]:
    """Candidates, the smallest first. `config`: of the causal language model or of its text part. `decoder`, `blocks`: of the model at its
    real size, on meta. `sample`, `row`: the most positions of a sample and of a row in the run."""
    text = copy.deepcopy(config)
    for each in [text, *(value for value in vars(text).values() if hasattr(value, "to_dict"))]:
        if getattr(each, "quantization_config", None) is not None:
            del each.quantization_config
    own = text.get_text_config()
    _shorten(own, *_count_layers(decoder, blocks))
    _reduce_vocabulary(own)
    _reduce_experts(own)
    lengths = _lower_thresholds(own, sample, row)
    for divisor in _divisors(own):
        candidate = copy.deepcopy(text)
        _divide_widths(candidate.get_text_config(), divisor)
        yield ShrunkConfig(candidate, lengths)


def _count_layers(decoder: nn.Module, blocks: tuple[type[nn.Module], ...]) -> tuple[int, int]:
    """Return how many layers the model has, and how many of the first ones contain each kind of layer."""
    stacks = [
        module for module in decoder.modules() if isinstance(module, nn.ModuleList) and any(isinstance(each, blocks) for each in module)
    ]
    longest: list[nn.Module] = max(map(list, stacks), key=len, default=[])
    kinds = [_describe(layer) for layer in longest]
    needed = max((kinds.index(kind) + 1 for kind in set(kinds)), default=1)
    return len(longest), min(max(needed, 2), MOST_LAYERS, max(1, len(longest)))


def _describe(layer: nn.Module) -> frozenset[Any]:
    """The modules in a layer, and their plain attributes, without its number."""
    return frozenset(
        (path, type(module).__name__, name, value)
        for path, module in layer.named_modules()
        for name, value in [("", ""), *vars(module).items()]
        if isinstance(value, PLAIN) and not NUMBERS.search(name)
    )


def _shorten(config: PretrainedConfig, layers: int, kept: int) -> None:
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(config, name, value[:kept])
        elif isinstance(value, list) and "layer" in name and all(isinstance(each, int) for each in value):
            setattr(config, name, [each for each in value if each < kept])
        elif value == layers and isinstance(value, int) and "layer" in name:
            setattr(config, name, kept)


def _reduce_vocabulary(config: PretrainedConfig) -> None:
    for name, value in list(vars(config).items()):
        if name.startswith("vocab_size") and isinstance(value, int):
            setattr(config, name, min(value, VOCABULARY))
        elif name.endswith("token_id") and isinstance(value, int):
            setattr(config, name, min(max(value, 0), VOCABULARY - 1) if value < VOCABULARY else 0)


def _reduce_experts(config: PretrainedConfig) -> None:
    """Experts in one group, at least twice as many as each position is routed to."""
    numbers = {name: value for name, value in vars(config).items() if isinstance(value, int) and not isinstance(value, bool)}
    chosen = max((value for name, value in numbers.items() if CHOSEN_EXPERTS.search(name)), default=2)
    for name, value in numbers.items():
        if EXPERTS.match(name):
            setattr(config, name, min(value, max(4, 2 * chosen)))
        elif GROUPS.match(name):
            setattr(config, name, 1)


def _lower_thresholds(config: PretrainedConfig, sample: int, row: int) -> tuple[int, ...]:
    """Map thresholds to low numbers in the same order, in place; returns the lengths of samples to try."""
    places = list(_thresholds(config))
    values = sorted({holder[name] for holder, name in places})
    lowered: dict[float, int] = {}
    lengths, before = [7, 13], FIRST - APART
    for value in (each for each in values if each < sample):
        lowered[value] = before = int(min(value, before + APART))
        lengths += [before + 3, max(before, 2)]
    longest = max(lengths)
    for number, value in enumerate(each for each in values if sample <= each < row):
        lowered[value] = longest + 1 + number
    while sum(lengths) < longest + len(values) + 9:
        lengths.append(11)
    for holder, name in places:
        holder[name] = lowered.get(holder[name], OUT_OF_REACH)
    return (*lengths, 9)


def _thresholds(config: PretrainedConfig) -> Iterator[tuple[dict[str, Any], str]]:
    """Dictionaries of the config, rotary parameters included, with the key of each threshold in them."""
    waiting = [vars(config)]
    while waiting:
        holder = waiting.pop()
        waiting += [value for name, value in holder.items() if isinstance(value, dict) and "map" not in name]
        for name, value in holder.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1
            if number and THRESHOLDS.search(name) and not NO_THRESHOLDS.search(name):
                yield holder, name


def _divisors(config: PretrainedConfig) -> list[int]:
    """Numbers by which widths can be divided, the largest first. Heads are whole, and keep their size."""
    hidden, heads = getattr(config, "hidden_size", 0), getattr(config, "num_attention_heads", 0)
    if not isinstance(hidden, int) or hidden < 2 * NARROWEST:
        return [1]
    heads = heads if isinstance(heads, int) and heads > 1 else hidden // NARROWEST
    found = [number for number in range(heads // 2, 1, -1) if heads % number == 0 and hidden % number == 0]
    return [*[number for number in found if hidden // number >= NARROWEST][:6], 1]


def _divide_widths(config: PretrainedConfig, divisor: int) -> None:
    for name, value in list(vars(config).items()):
        number = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not number or not WIDTHS.search(name) or NO_WIDTHS.search(name):
            continue
        if FREE_WIDTHS.search(name):
            setattr(config, name, max(8, value // divisor // 8 * 8))
        elif value % divisor == 0:
            setattr(config, name, value // divisor)
        elif name.endswith(HEADS) and value < divisor:
            setattr(config, name, 1)
