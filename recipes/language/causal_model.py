"""A causal language model of transformers under one forward that ends in sums over targets, with the names of its released weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finetune.errors import UserError
from finetune.modeling.loss_head import LossHead, Shaping
from finetune.storage.model_security import Kind, admit
from recipes.language import varlen_attention
from recipes.language.model_checks import check_ends

BUILT_FROM_OTHERS = frozenset({"moshi", "musicgen", "musicgen_melody"})
"""Types that transformers counts among the causal language models, and whose config is made of other models' (they sing and speak)."""


class CausalModel(nn.Module):
    """Decoder and head of a model, called directly: the model's own forward would make full logits."""

    def __init__(self, whole: Any, loss_head: type[LossHead] = LossHead) -> None:
        """Raises `UserError` if the model's own forward does what this one does not."""
        super().__init__()
        head, shaping = whole.get_output_embeddings(), shaping_of(whole.config)
        self.config = whole.config
        self.words: int = head.out_features
        self.decoder_path, self.head_path = path_of(decoder_of(whole), whole), path_of(head, whole)
        check_ends(whole, self.decoder_path, self.head_path, shaping)
        for name, child in whole.named_children():
            self.add_module(name, child)
        self.set_submodule(self.head_path, loss_head(head, shaping))

    def forward(self, tensors: dict[str, Tensor], lengths: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """`ids` [B, S]; `targets` [B, S], the word that follows each position or `IGNORE`; `supervised` [M], the numbers of the flattened
        positions that have one; for packed samples `positions` [1, S], starting from 0 with each sample, `bounds` [N + 1], where they begin
        and end, and their `lengths` on the host → fp32 scalars over all targets: summed negative log-likelihood in nats, and right first
        guesses.

        There is no padding mask: samples are padded on the right, where a causal model's other positions do not look.
        """
        ids, supervised = tensors["ids"], tensors["supervised"]
        # Without a mask, transformers looks at the positions for packed samples, and the host waits; `varlen_attention` needs none.
        apart = self.config._attn_implementation in (varlen_attention.LOOP, varlen_attention.KERNEL)
        with varlen_attention.packed(tensors.get("bounds"), lengths):
            hidden = self.get_submodule(self.decoder_path)(
                input_ids=ids,
                position_ids=tensors.get("positions"),
                attention_mask=torch.ones_like(ids, dtype=torch.bool) if apart else None,
                use_cache=False,
            ).last_hidden_state
        states, targets = hidden.flatten(0, 1).index_select(0, supervised), tensors["targets"].flatten().index_select(0, supervised)
        nll, hits = self.get_submodule(self.head_path)(states, targets)
        return nll, hits


def decoder_of(whole: Any) -> nn.Module:
    """The part below the head. Some older models know it only by the name of their base."""
    found = whole.get_decoder()
    lower: nn.Module = whole.base_model if found is whole else found
    return lower


def path_of(module: nn.Module, whole: nn.Module) -> str:
    """Where in `whole` a module lies."""
    return next(path for path, each in whole.named_modules() if each is module)


def shaping_of(config: Any) -> Shaping:
    """What this architecture does to its logits, by the names that transformers' configs use (Gemma; Cohere; Granite)."""
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return Shaping(scale, getattr(config, "final_logit_softcapping", None))


def language_model() -> Kind:
    """The folders that llm_sft reads."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    types = frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - BUILT_FROM_OTHERS
    return Kind("a causal language model of transformers", types, is_part)


def is_part(kind: str, inner: str) -> bool:
    """Whether a type's own config holds one of the type `inner`, as gemma3's holds that of its vision part."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    parts = getattr(CONFIG_MAPPING[kind], "sub_configs", {}).values()
    return inner in {getattr(part, "model_type", "") for part in parts}


def read_config(base: Path) -> Any:
    """The base's own config. Raises `UserError` for anything but a causal language model that transformers itself carries."""
    from transformers import AutoConfig

    with admit(base, language_model()) as clean:
        try:
            return AutoConfig.from_pretrained(clean, trust_remote_code=False)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{base}: config.json cannot be used ({type(error).__name__}: {error}); fetch the model again") from error


def on_meta(base: Path, attention: str | None, loss_head: type[LossHead] = LossHead) -> CausalModel:
    """The model in shape only; buffers are real. Moving to meta unties, so a tie is made again."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config = read_config(base)
    with init_empty_weights(include_buffers=False):
        try:
            whole = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{base}: config.json cannot be built ({type(error).__name__}: {error}); fetch the model again") from error
        if not isinstance(whole.get_output_embeddings(), nn.Linear):
            raise UserError(f"{base}: {type(whole).__name__} has no linear output head, which llm_sft needs")
        model = CausalModel(whole, loss_head)
    if config.get_text_config().tie_word_embeddings:
        model.get_submodule(model.head_path).weight = whole.get_input_embeddings().weight
    return model


def block_classes(model: CausalModel) -> tuple[type[nn.Module], ...]:
    """The decoder layers' classes, as the model itself names what must not be split. Raises `UserError` if it names none."""
    decoder = model.get_submodule(model.decoder_path)
    named = set(getattr(decoder, "_no_split_modules", None) or ())
    found = {type(module) for module in model.modules() if type(module).__name__ in named}
    if not found:
        raise UserError(f"{type(decoder).__name__} does not say which modules are its blocks, so it cannot be sharded")
    return tuple(sorted(found, key=lambda each: each.__name__))


def choose_loss_head(asked: str) -> type[LossHead]:
    """The class behind `options.loss_head`. Raises `UserError` where it cannot run."""
    if asked == "chunked":
        return LossHead
    from recipes.language.liger_loss import LigerHead, check_runnable

    check_runnable()
    return LigerHead
