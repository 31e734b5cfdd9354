"""Finds out whether requests to a model can share one running batch: by its config, and by a comparison on the model itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from overtone.recipes.language.modeling.attention_selection import EXPERT_COUNTS
from overtone.recipes.speech.decoding.cuda_graphs import FrameGraphs

from .ragged_transformers_cache import StockRowCache

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary positions whose frequencies depend on the longest row of the batch."""
SLIDING_IN_ALL_LAYERS = frozenset({"mistral", "phi3", "starcoder2"})
SLIDING_BY_LAYER = frozenset(
    {"cohere2", "exaone4", "gemma2", "gemma3_text", "ministral", "olmo3", "qwen2", "qwen3", "smollm3", "vaultgemma"}
)
"""Model types with a sliding window whose stock code takes the masks that `StockRowCache` makes."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest difference of scores as a share of the largest score: other shapes of the same products round otherwise."""
PROMPTS = ((1, 4, 2, 3, 5), (3, 1, 2))
"""Token ids of two rows of different length, for the comparison."""
FOLLOWING = (2, 5, 1)


def find_obstacle(model: PreTrainedModel) -> str | None:
    """Return why requests cannot share a batch of this model; None if they can."""
    config = model.config.get_text_config()
    return find_config_obstacle(config) or find_difference(model, None)


def find_graph_difference(model: PreTrainedModel) -> str | None:
    """Return why steps of a batch of this model must not be replayed as CUDA graphs; None if they may be, or if there are no graphs."""
    graphs = FrameGraphs.open(model.device)
    if graphs is None:
        return None
    difference = find_difference(model, graphs)
    return difference or (None if graphs.count else "a step cannot be captured")


def find_config_obstacle(config: PretrainedConfig) -> str | None:
    """Return what the config of a model says against a batch whose rows are independent."""
    if any(getattr(config, key, None) for key in EXPERT_COUNTS):
        return "its experts compute the tokens of all requests together, so an answer would depend on the others"
    if variable := find_rope_types(config) & LENGTH_DEPENDENT_ROPE:
        return f"its rotary positions ({', '.join(sorted(variable))}) depend on the longest request"
    if (name := config._attn_implementation) != "sdpa":
        return f"its attention is {name}, whose sums depend on the length of the longest request"
    kinds = set(getattr(config, "layer_types", None) or ())
    if others := kinds - {"full_attention", "sliding_attention"}:
        return f"it has layers of the type {', '.join(sorted(others))}"
    is_sliding = "sliding_attention" in kinds if kinds else bool(getattr(config, "sliding_window", None))
    if is_sliding and config.model_type not in (SLIDING_BY_LAYER if kinds else SLIDING_IN_ALL_LAYERS):
        return f"sliding windows of {config.model_type} are not supported"
    return None


def find_rope_types(config: PretrainedConfig) -> set[str]:
    """The kinds of rotary positions in a config: of all layers, or of each type of layer."""
    found = set[str]()
    for name in ("rope_scaling", "rope_parameters"):
        settings = getattr(config, name, None) or {}
        for one in (settings, *(value for value in settings.values() if isinstance(value, dict))):
            found.add(str(one.get("rope_type", one.get("type", "default"))))
    return found


@torch.inference_mode()
def find_difference(model: PreTrainedModel, graphs: FrameGraphs | None) -> str | None:
    """Compare a batch of two rows with the model on each sequence alone, with steps that are replayed as graphs if `graphs` are given.

    This finds architectures of which `StockRowCache` knows nothing: with a state instead of keys, with positions that they count
    themselves, with masks of their own. A replay repeats the operations of an earlier step, which shows whether a model counts outside of
    its tensors."""
    try:
        cache = StockRowCache(model, 4)
        cache.reserve(max(map(len, PROMPTS)) + len(FOLLOWING))
        rows, window = (0, 2), cache.find_window(1)
        tokens = torch.zeros(cache.rows, dtype=torch.int64, device=model.device)
        scores = torch.zeros(cache.rows, model.config.get_text_config().vocab_size, device=model.device)

        def step() -> None:
            scores.copy_(cache.read_tokens(tokens, window))

        for row, prompt in zip(rows, PROMPTS, strict=True):
            cache.read_prompt(row, torch.tensor(prompt, device=model.device))
        for count in range(1, len(FOLLOWING) + 1):
            tokens.fill_(FOLLOWING[count - 1])
            step() if graphs is None else graphs.run(step, "step")
            taken = [row in rows for row in range(cache.rows)]
            cache.advance(taken, 1)
            cache.lengths.add_(torch.tensor(taken, device=model.device))
            for row, prompt in zip(rows, PROMPTS, strict=True):
                expected = model(input_ids=torch.tensor([[*prompt, *FOLLOWING[:count]]], device=model.device)).logits[0, -1].float()
                difference, largest = (scores[row] - expected).abs().max(), expected.abs().max()
                if not difference <= TOLERANCE.get(model.dtype, 5e-2) * largest:  # also NaN
                    return "its scores in a batch differ from those of the request alone"
    except torch.OutOfMemoryError:
        return "the GPU has no memory for the comparison of a batch with each request alone"
    except Exception as error:  # each architecture refuses the rows in its own way
        return f"its code takes no rows of different lengths ({type(error).__name__}: {str(error).partition(chr(10))[0]:.100})"
    return None
