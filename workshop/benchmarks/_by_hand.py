"""Loops that one writes by hand, without this project: what its own step stands beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from overtone.finetune.config import Config
from overtone.finetune.modeling import loading
from overtone.finetune.recipe import BASE_DISTANCE, Batch
from overtone.recipes.qwen3_tts.model import modeling
from overtone.recipes.qwen3_tts.model.modeling import align_first_codebook, frame_embeddings, input_embeddings, states_before_frames
from overtone.recipes.voice_clone.recipe import RECIPE

Step = Callable[[], float]
"""An optimizer step; returns its loss."""
Sums = Callable[[nn.Module, dict[str, Tensor]], Mapping[str, Tensor]]
"""Function from a model and a batch's tensors to sums over its targets."""


def load_filled_model(config: Config, device: torch.device) -> nn.Module:
    """The voice model of a config with its weights, as one module that nobody shards."""
    loaded = RECIPE.load(config)
    loading.materialise(loaded.model, loaded.base, loaded.buffers, device, config.run.seed)
    return loaded.model


def optimizer_of(model: nn.Module, config: Config) -> torch.optim.AdamW:
    """Over all parameters, fused as here."""
    train = config.train
    return torch.optim.AdamW(
        model.parameters(), lr=train.lr, betas=(train.beta1, train.beta2), weight_decay=train.weight_decay, fused=True
    )  # fmt: skip


def bare_step(
    model: nn.Module, optimizer: torch.optim.AdamW, config: Config, micros: Sequence[Batch], ranks: int = 1, sums: Sums = nn.Module.__call__
) -> Step:
    """Forward, backward, clip and update, and nothing that could go wrong is looked at. On several ranks with torch's DDP."""
    weights, device = terms_of(model), next(model.parameters()).device
    half = config.train.precision == "bf16"
    counts = {name: sum(batch.targets[name] for batch in micros) for name in weights}
    if ranks > 1:
        model = DistributedDataParallel(model)

    def step() -> float:
        total = torch.zeros((), device=device)
        for batch in micros:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                found = sums(model, {name: tensor.to(device) for name, tensor in batch.tensors.items()})
            loss = torch.stack([weight * found[name] / counts[name] for name, weight in weights.items()]).sum()
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total.item()

    return step


def accelerate_step(whole: nn.Module, config: Config, batch: Batch) -> Step:
    """The loop of accelerate's documentation, on as many ranks as there are. On CPUs."""
    accelerator = Accelerator(cpu=True)
    weights = terms_of(whole)
    model, optimizer = accelerator.prepare(whole, optimizer_of(whole, config))

    def step() -> float:
        with accelerator.accumulate(model):
            found = model(batch.tensors)
            loss = torch.stack([weight * found[name] / batch.targets[name] for name, weight in weights.items()]).sum()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), config.train.clip)
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.item())

    return step


def terms_of(model: Any) -> dict[str, float]:
    """Return what is learned, with its weight. A loop by hand has no base to compare with."""
    return {name: weight for name, weight in model.weights.items() if weight and name != BASE_DISTANCE}


def stock_heads() -> Any:
    """While open, voice models are built with the package's own heads, which give logits, and with attention that heeds a mask."""
    return mock.patch.multiple(modeling, replace_output_heads=lambda *_: None, ATTENTION="sdpa")


def stock_sums(model: Any, tensors: dict[str, Tensor], by_frame: bool) -> dict[str, Tensor]:
    """The right loss in the way of the model's makers: padding by its mask, the package's forward of the code predictor, whole logits.

    `by_frame`: one call of the predictor after the other, as who writes a loop over time steps does.
    """
    talker = model.talker
    codes = tensors["codes"][tensors["frame_mask"]]
    inputs = input_embeddings(talker, model.speaker_vectors, tensors, frame_embeddings(talker, codes))
    hidden = talker.model(inputs_embeds=inputs, attention_mask=tensors["valid"].long(), use_cache=False).last_hidden_state
    states, following = align_first_codebook(hidden, tensors["labels"], tensors["target_rows"])
    before = states_before_frames(hidden, tensors["frame_rows"])
    calls = [slice(frame, frame + 1) for frame in range(len(codes))] if by_frame else [slice(None)]
    sub = torch.stack([stock_others(talker, before[each], codes[each]) for each in calls]).sum()
    return {"main": cross_entropy(talker.codec_head(states), following), "sub": sub}


def stock_others(talker: Any, states: Tensor, codes: Tensor) -> Tensor:
    """Codebooks 1 to 15 of these frames. The package's own function for it embeds the codes of each call anew, too."""
    tables = [talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding][:-1]
    embedded = [table(codes[:, book]) for book, table in enumerate(tables)]
    return cross_entropy(talker.code_predictor.forward_finetune(inputs_embeds=torch.stack([states, *embedded], dim=1)).logits, codes[:, 1:])


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed, in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")


def check_equal_losses(losses: dict[str, float], tolerance: float) -> None:
    """Ways that learn something else would not be ways of doing the same."""
    if max(losses.values()) - min(losses.values()) > tolerance:
        raise SystemExit(f"the ways have different losses, so their times cannot be compared: {losses}")
