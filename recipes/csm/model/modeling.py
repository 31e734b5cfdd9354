"""The training forward of CSM: one backbone over text and frames, and one depth decoder within each frame.

    backbone = −Σ log p(codebook 0 | everything before)                            T + 1 targets per clip
    depth    = −Σ log p(codebook i | codebooks before it, the backbone's state)    (C − 1)·(T + 1) targets per clip

The end frame is a frame like the others. Generation samples from these two factors, so their sum is the negative log-likelihood of a clip
under generation. Both are sums over targets: under `num_items_in_batch`, transformers' own loss divides the depth decoder's sum by the
number of frames instead of the number of its targets, which scales it up by C − 1.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.csm.modeling_csm import CsmBackboneModel, CsmDecoderLayer, CsmDepthDecoderForCausalLM

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loss_head import LossHead, of_logits
from overtone.finetune.recipe import BASE_DISTANCE, BASE_STATES
from overtone.finetune.storage.construction_limits import limit_construction

from .model_config import explain_failure

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ATTENTION = "overtone_causal"
"""Name under which transformers knows sdpa without a mask. Under the name `sdpa`, it tests whether a mask is all true, and the host waits
for the GPU."""
COPY = "backbone_model.embed_tokens.embed_audio_tokens.weight"
"""If backbone and depth decoder share the table of codes (`tie_codebooks_embeddings`), it is a parameter of the depth decoder, under which
name transformers saves it, and this is a second name of it."""
BLOCKS: tuple[type[nn.Module], ...] = (CsmDecoderLayer,)
"""Classes of the repeated layers, of backbone and depth decoder."""


class CodebookHeads(nn.Module):
    """The output heads of the codebooks after the first, as a module that returns losses instead of logits."""

    def __init__(self, weight: nn.Parameter) -> None:
        """`weight`: [C-1, H, V], one matrix for each codebook."""
        super().__init__()
        self.weight = weight

    def forward(self, states: Tensor, targets: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """States [M, C-1, H], targets [M, C-1] and a factor for each frame [M] → two fp32 scalars, summed over frames and codebooks with
        their factors: negative log-likelihood in nats, and correct top-1 guesses.

        The logits of one codebook are computed at a time, and again in the backward pass: all of them would be C-1 times as large.
        """
        inputs = zip(states.unbind(1), self.weight.unbind(0), targets.unbind(1), strict=True)
        found = [checkpoint(sum_losses, *each, factors, use_reentrant=False, preserve_rng_state=False) for each in inputs]
        nll, hits = zip(*found, strict=True)
        return torch.stack(nll).sum(), torch.stack(hits).sum()


def sum_losses(states: Tensor, weight: Tensor, targets: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """States [M, H], a head [H, V], targets [M] and factors [M] → the two sums of one codebook."""
    logits = (states @ weight).float()
    nll = functional.cross_entropy(logits, targets, reduction="none")
    return (nll * factors).sum(), ((logits.detach().argmax(-1) == targets) * factors).sum()


class CsmTrainingModel(nn.Module):
    """Backbone, depth decoder, text embedding and first head, under the names of the stock class, without its codec."""

    def __init__(self, config: PretrainedConfig, depth_weight: float, depth_share: float) -> None:
        """`config` is a `CsmConfig`. The depth decoder trains on the share `depth_share` in (0, 1] of the frames."""
        super().__init__()
        self.backbone_model: Any = CsmBackboneModel(config)
        self.depth_decoder: Any = CsmDepthDecoderForCausalLM(config.depth_decoder_config)
        self.lm_head: nn.Module = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.embed_text_tokens = nn.Embedding(config.text_vocab_size, config.hidden_size)
        self.depth_decoder.codebooks_head = CodebookHeads(self.depth_decoder.codebooks_head.weight)
        self.tied: bool = config.tie_codebooks_embeddings
        if self.tied:
            self.backbone_model.embed_tokens = None
        self.vocabulary: int = config.vocab_size
        self.depth_share = depth_share
        self.weights = {"backbone": 1.0, "depth": depth_weight, "backbone_accuracy": 0.0, "depth_accuracy": 0.0, BASE_DISTANCE: 1.0}

    def forward(self, tensors: dict[str, Tensor], result: Literal["sums", "states"] = "sums") -> dict[str, Tensor]:
        """Tensors of `sequence_layout.collate` → fp32 sums over the targets: two negative log-likelihoods in nats, and two counts of
        correct top-1 guesses; with `BASE_STATES`, also the distance to the base on codebook 0. As `result: states`, only the backbone's
        states [N, H] that predict the N targets of codebook 0, as `BASE_STATES`.

        If the depth decoder trains on a share of the frames, its sums are scaled up, so that their expectation is the sum over all frames.
        An evaluation computes all frames: its loss is exact, and comparable between runs with different shares.
        """
        ids, codes, rows = tensors["ids"], tensors["codes"], tensors["frame_rows"]
        frames = self.embed_codes(codes)
        inputs = self.embed_text_tokens(ids)
        inputs = inputs.flatten(0, 1).index_copy(0, rows, frames.sum(1)).view_as(inputs)
        hidden = self.backbone_model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        # The state that predicts a frame is that of the position before it: the frame's own state has already seen its codes.
        states = hidden.flatten(0, 1).index_select(0, rows - 1)
        speech, ends = tensors["speech"], tensors["ends"]
        # All frames, without a copy of them, unless some are only context.
        trained = slice(None) if len(speech) + len(ends) == len(codes) else torch.cat([speech, ends])
        if result == "states":
            return {BASE_STATES: states[trained]}
        nll, hits, *distance = self.compute_first_loss(states[trained], codes[trained, 0], tensors.get(BASE_STATES))
        chosen: Tensor | slice = trained
        factors = torch.ones(len(speech) + len(ends), device=codes.device)
        if (share := self.depth_share if self.training else 1.0) < 1:
            chosen, factors = choose_frames(speech, ends, share)
        depth, depth_hits = self.compute_depth_losses(states[chosen], frames[chosen], codes[chosen], factors)
        sums = {"backbone": nll, "depth": depth, "backbone_accuracy": hits, "depth_accuracy": depth_hits}
        return {**sums, **dict(zip((BASE_DISTANCE,), distance, strict=False))}

    def compute_first_loss(self, states: Tensor, targets: Tensor, base_states: Tensor | None) -> tuple[Tensor, ...]:
        """The sums of codebook 0 for states [N, H] and targets [N]; with the base's states, also the distance to it. A head with an
        adapter is a linear layer."""
        if isinstance(self.lm_head, LossHead):
            sums: tuple[Tensor, ...] = self.lm_head(states, targets, base_states)
            return sums
        return of_logits(self.lm_head(states), targets)

    def embed_codes(self, codes: Tensor) -> Tensor:
        """Codes [N, C] → the backbone's embeddings [N, C, H]. The table has one part for each codebook."""
        table = self.depth_decoder.model.embed_tokens if self.tied else self.backbone_model.embed_tokens.embed_audio_tokens
        return table(self.add_offsets(codes))

    def add_offsets(self, codes: Tensor) -> Tensor:
        """Codes [N, C] → their rows in a table of codes."""
        return codes + torch.arange(codes.shape[1], device=codes.device) * self.vocabulary

    def compute_depth_losses(self, states: Tensor, frames: Tensor, codes: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """The sums over codebooks 1 … C-1 of M frames: the backbone's states before them [M, H], their embeddings [M, C, H], codes [M, C]
        and factors [M].

        Each frame is a separate sequence of C steps: the backbone's state, then codebooks 0 … C-2. Step i predicts codebook i.
        """
        known = frames[:, :-1] if self.tied else self.depth_decoder.model.embed_tokens(self.add_offsets(codes[:, :-1]))
        steps = torch.cat([states.unsqueeze(1), known], dim=1)
        hidden = self.depth_decoder.model(inputs_embeds=steps, use_cache=False).last_hidden_state
        nll, hits = self.depth_decoder.codebooks_head(hidden[:, 1:], codes[:, 1:], factors)
        return nll, hits


def choose_frames(speech: Tensor, ends: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The frames [K] that train the depth decoder, and the factor of each in the sums, fp32 [K]: a random share of the frames `speech` [N]
    (torch's generator, which each step seeds for its micro-batch), and all end frames `ends` [M], because there are few and without them
    speech does not end. K = ⌈share · N⌉ + M."""
    count = math.ceil(share * len(speech))
    factors = torch.ones(count + len(ends), device=speech.device)
    factors[:count] *= len(speech) / count
    return torch.cat([speech[torch.randperm(len(speech), device=speech.device)[:count]], ends]), factors


def build_on_meta(
    config: PretrainedConfig, base: Path, depth_weight: float = 1.0, depth_share: float = 1.0, chunked_head: bool = False
) -> CsmTrainingModel:
    """The model of the `CsmConfig` of a folder with parameters on the meta device. Buffers are real, because rotary frequencies are
    computed, not loaded. `chunked_head`: make the first head a `LossHead`, which can compare with a base and cannot have an adapter. Raises
    `UserError` for a config whose sizes make no model."""
    AttentionInterface.register(ATTENTION, sdpa_attention_forward)  # no mask function has that name, so no mask is created
    for part in (config, config.depth_decoder_config):
        part._attn_implementation = ATTENTION
    try:
        with init_empty_weights(include_buffers=False), limit_construction(base):
            model = CsmTrainingModel(config, depth_weight, depth_share)
    except UserError:
        raise
    except Exception as error:  # sizes that do not fit together fail in many ways
        raise explain_failure(base, error) from error
    if chunked_head:
        head: Any = model.lm_head
        model.lm_head = LossHead(head)
    return model
