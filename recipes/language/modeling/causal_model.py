"""A causal language model of transformers, with a forward that returns sums over targets. Parameters keep the names of the weights' files.

transformers and accelerate are imported inside of functions: they take seconds, and `generate --help` imports this module.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loss_head import LossHead
from overtone.finetune.recipe import BASE_STATES, Batch
from overtone.finetune.storage.model_classes import list_causal_tokenizers
from overtone.finetune.storage.model_security import Kind
from overtone.recipes import transformers_meta_models
from overtone.recipes.language.modeling import expert_balance, rotary_tables, varlen_attention
from overtone.recipes.language.modeling.expert_balance import RouterRecorder
from overtone.recipes.language.modeling.liger_loss import LigerHead, check_runnable
from overtone.recipes.language.modeling.logit_shaping import measure_shaping
from overtone.recipes.transformers_release import name_release

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

COMPOSITES = frozenset({"moshi", "musicgen", "musicgen_melody"})
"""Speech and music models that transformers lists as causal language models. Their configs consist of other models' configs."""


class CausalModel(nn.Module):
    """Decoder and output head of a model. They are called directly, because the model's own forward would compute full logits."""

    def __init__(self, whole: PreTrainedModel, loss_head: type[LossHead] = LossHead) -> None:
        """`whole`: a model of transformers. Raises `UserError` if its own forward computes anything that this one does not."""
        super().__init__()
        varlen_attention.register()
        head = whole.get_output_embeddings()
        self.config = whole.config
        self.vocabulary: int = head.out_features
        """Number of embeddings."""
        self.decoder_path, self.head_path = find_path(find_decoder(whole), whole), find_path(head, whole)
        shaping = measure_shaping(whole, self.decoder_path, self.head_path)
        for name, child in whole.named_children():
            self.add_module(name, child)
        self.set_submodule(self.head_path, loss_head(head, shaping))
        rotary_tables.separate_samples(self)
        self.balance_weight = 0.0
        """Weight of the loss that balances the experts; 0: it is not computed."""
        self._recorders: list[RouterRecorder] = []
        self._accepted = frozenset(inspect.signature(self.get_submodule(self.decoder_path).forward).parameters)

    def balance_experts(self, weight: float) -> None:
        """From now on compute the loss that balances the experts, to which that weight is given. It needs routers that can be read
        (`expert_balance.decide_weight`)."""
        self.balance_weight = weight
        self._recorders = expert_balance.record_routers(self.config.get_text_config(), self.get_submodule(self.decoder_path))

    def forward(
        self, tensors: dict[str, Tensor], lengths: tuple[int, ...] = (), result: Literal["sums", "states", "scores"] = "sums"
    ) -> tuple[Tensor, ...] | Tensor:
        """Sums over all targets: negative log-likelihood in nats, and correct predictions; both fp32 scalars. Third, after a call of
        `balance_experts`, the sum over samples of the loss that balances the experts. With `BASE_STATES` in `tensors`, last, the distance
        to the base. As `result: states`, only the states [M, H] from which the targets are predicted; as
        `result: scores`, only the log-probability of each target [M].

        `tensors`: `ids` [B, S]; `targets` [B, S], the next token or `IGNORE`; `supervised` [M], the indices of the flattened positions with
        a target. For packed samples also `positions` [1, S], from 0 in each sample, and `bounds` [N + 1], where samples begin and end.
        `lengths`: of packed samples, or of each row without its padding, on the host.

        There is no padding mask: padding is on the right, where the other positions of a causal model do not attend.
        """
        ids, supervised, bounds = tensors["ids"], tensors["supervised"], tensors.get("bounds")
        attention = self.config._attn_implementation
        varlen = attention in (varlen_attention.LOOP, varlen_attention.KERNEL)
        given: dict[str, Tensor | None] = {"attention_mask": None}
        if (positions := tensors.get("positions")) is not None and "position_ids" in self._accepted:
            given["position_ids"] = positions
        # Without a mask, transformers would inspect the positions for packed samples, and the host would wait for the device.
        if varlen or (bounds is not None and attention in varlen_attention.MASKED):
            given["attention_mask"] = torch.ones_like(ids, dtype=torch.bool)
        # Some layers compute from the place in the row, which for a sample is that of its position. Masks are made from it, but no spans.
        if varlen and positions is not None and "cache_position" in self._accepted:
            given["cache_position"] = positions[0]
        rows = (lengths,) if bounds is not None else tuple((length,) for length in lengths)
        for module in self.modules():
            if isinstance(module, rotary_tables.SampleTables):
                module.rows = rows if lengths else ()
        balanced = bool(self._recorders) and result == "sums"
        samples = expert_balance.locate_samples(ids, bounds, lengths) if balanced else None
        for recorder in self._recorders:
            recorder.samples = samples
        with varlen_attention.packed_row(bounds, lengths):
            hidden = self.get_submodule(self.decoder_path)(input_ids=ids, use_cache=False, **given).last_hidden_state
        states, targets = hidden.flatten(0, 1).index_select(0, supervised), tensors["targets"].flatten().index_select(0, supervised)
        if result == "states":
            return states
        if result == "scores":
            (scores,) = self.get_submodule(self.head_path)(states, targets, None, each=True)
            return scores
        sums: tuple[Tensor, ...] = self.get_submodule(self.head_path)(states, targets, tensors.get(BASE_STATES))
        return sums if samples is None else (*sums[:2], expert_balance.sum_losses(self._recorders, samples, len(lengths)), *sums[2:])


def find_decoder(whole: PreTrainedModel) -> nn.Module:
    """Return the part of a model below its output head. For some older models only `base_model` returns it, and for some neither."""
    from transformers import PreTrainedModel

    inner = (child for child in whole.children() if isinstance(child, PreTrainedModel))
    decoder: nn.Module = next(found for found in (whole.get_decoder(), whole.base_model, *inner) if found is not whole)
    return decoder


def find_path(module: nn.Module, whole: nn.Module) -> str:
    """Return the path of a module in `whole`."""
    return next(path for path, each in whole.named_modules() if each is module)


def causal_language_model() -> Kind:
    """Return the kind of model folder that these recipes accept."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    types = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - COMPOSITES
    classes = {"tokenizer_class": list_causal_tokenizers(types)}
    return Kind(f"a causal language model of {name_release()}", types, transformers_meta_models.is_part, classes)


def read_config(base: Path) -> PretrainedConfig:
    """Return the base's config. Raises `UserError` for anything but a causal language model whose code is in transformers itself."""
    return transformers_meta_models.read_config(base, causal_language_model())


def build_stock(base: Path, attention: str | None = None) -> PreTrainedModel:
    """Return the stock class with its parameters on the meta device and real buffers. Raises `UserError` for anything but a causal language
    model."""
    from transformers import AutoModelForCausalLM

    config = read_config(base)
    whole = transformers_meta_models.build_on_meta(lambda: AutoModelForCausalLM.from_config(config, attn_implementation=attention), base)
    # As in `from_pretrained`: a router's bias that is rounded to bf16 chooses other experts.
    precise = {*(getattr(whole, "_keep_in_fp32_modules", None) or ()), *(getattr(whole, "_keep_in_fp32_modules_strict", None) or ())}
    for name, buffer in whole.named_buffers():
        if buffer.is_floating_point() and not precise.isdisjoint(name.split(".")):
            buffer.data = buffer.data.float()
    return whole


def build_on_meta(base: Path, attention: str | None, loss_head: type[LossHead] = LossHead) -> CausalModel:
    """Return the model with its parameters on the meta device and real buffers. Moving to meta unties weights, so they are tied again.

    `attention`: name of the implementation in transformers. Raises `UserError` for a model that these recipes cannot train.
    """
    from accelerate import init_empty_weights

    whole = build_stock(base, attention)
    if not isinstance(whole.get_output_embeddings(), nn.Linear):
        raise UserError(f"{base}: {type(whole).__name__} has no linear output head, which training needs")
    with init_empty_weights(include_buffers=False):
        model = CausalModel(whole, loss_head)
    if whole.config.get_text_config().tie_word_embeddings:
        model.get_submodule(model.head_path).weight = whole.get_input_embeddings().weight
    return model


def find_block_classes(model: CausalModel) -> tuple[type[nn.Module], ...]:
    """Return the classes of the decoder layers, which the model lists as modules not to split. Raises `UserError` if it lists none."""
    decoder = model.get_submodule(model.decoder_path)
    listed = set(getattr(decoder, "_no_split_modules", None) or ())
    found = {type(module) for module in model.modules() if type(module).__name__ in listed}
    if not found:
        raise UserError(f"{type(decoder).__name__} does not say which modules are its blocks, so it cannot be sharded")
    return tuple(sorted(found, key=lambda each: each.__name__))


def choose_loss_head(requested: str) -> type[LossHead]:
    """Return the class that `options.loss_head` means. Raises `UserError` if it cannot run here."""
    if requested == "chunked":
        return LossHead
    check_runnable()
    return LigerHead


def score_tokens(model: nn.Module, batch: Batch) -> Tensor:
    """One forward → the log-probability of each token of the answers [M] in nats, answer by answer."""
    scores: Tensor = model(batch.tensors, batch.lengths, result="scores")
    return scores
