"""Loads a causal language model: for training on the meta device, for generation as transformers' own class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.hardware import cudnn_sdpa
from overtone.finetune.recipe import Loaded, ProcessorT, Sketch
from overtone.finetune.storage.base_quantization import find_form
from overtone.finetune.storage.foreign_model_formats import explain_foreign_model
from overtone.finetune.storage.model_security import CONFIG, admit, read_object, require_safetensors, require_weights
from overtone.recipes.language import collation
from overtone.recipes.language.causal_lm_export_files import GENERATION
from overtone.recipes.language.modeling.architecture_problems import ArchitectureProblems, find_architecture_problems
from overtone.recipes.language.modeling.attention_selection import AttentionChoice, explain_recompilation, find_stand_in, list_attentions
from overtone.recipes.language.modeling.causal_model import (
    CausalModel,
    build_on_meta,
    build_stock,
    causal_language_model,
    choose_loss_head,
    find_block_classes,
    read_config,
)
from overtone.recipes.language.modeling.expert_balance import WEIGHT, decide_weight
from overtone.recipes.language.modeling.expert_summary import describe_experts
from overtone.recipes.language.options import BalancedExpertOptions, LanguageOptions, LanguageOptionsT
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from overtone.recipes.transformers_meta_models import explain_loading
from overtone.recipes.transformers_weight_names import find_layouts, read_buffers

if TYPE_CHECKING:
    from overtone.finetune.config import Config
    from overtone.finetune.modeling.loss_head import LossHead


def load_for_training(config: Config[LanguageOptionsT]) -> Loaded:
    """Return the model on meta as its config.json describes it, without a processor. Raises `UserError` for one that cannot be trained."""
    # These import accelerate and torch.distributed.tensor, for which `generate --help` would wait if they were at the top.
    from overtone.finetune.modeling.loading import resolve_source
    from overtone.recipes.language.modeling.tensor_parallel_plans import PLANS

    loss_head = choose_loss_head(config.options.loss_head)
    base = resolve_source(config.model.source, config.model.revision)
    attention, model, remarks = build_checked(config, base, loss_head)
    varies = explain_recompilation(attention.name, config.data.packing, model.config)
    stock = build_stock(base)
    layouts = find_layouts(stock, base)
    frozen = {name for name, parameter in stock.named_parameters() if not parameter.requires_grad}  # as a bias that only chooses experts
    return Loaded(
        model=model,
        processor=None,
        blocks=find_block_classes(model),
        base=base,
        trainable=lambda name: name not in frozen,
        layouts=layouts,
        buffers=read_buffers(stock, layouts, base),
        tensor_plans=PLANS,
        varies=varies,
        remarks=(
            *remarks,
            *filter(None, [describe_experts(model, model.config.get_text_config()), balance_experts(model, config.options, base)]),
        ),
    )


def balance_experts(model: CausalModel, options: LanguageOptions, base: Path) -> str | None:
    """Give the loss the term that balances the experts, if options or base say so; returns a line for the log. Raises `UserError` if the
    options say so and the model has no experts, or none that can be balanced."""
    content = read_object(base / CONFIG)
    nested = content.get("text_config")
    stated = (nested if isinstance(nested, dict) else content).get(WEIGHT)
    if not isinstance(options, BalancedExpertOptions):
        return f"{WEIGHT}: {stated} of config.json is not used: this recipe's loss does not balance experts" if stated else None
    decoder = model.get_submodule(model.decoder_path)
    weight, remark = decide_weight(model.config.get_text_config(), decoder, options.router_aux_loss_coef, stated)
    if weight:
        model.balance_experts(weight)
    return remark


def build_checked(
    config: Config[LanguageOptionsT], base: Path, loss_head: type[LossHead]
) -> tuple[AttentionChoice, CausalModel, tuple[str, ...]]:
    """Return the model on meta, with an attention for which its architecture is right, and lines for the log. `auto` tries the
    implementations of transformers after the one that it prefers. Raises `UserError` if none is right."""
    model_config = read_config(base)
    sample = config.data.sequence_length or config.train.micro_tokens
    row, packing = max(sample, config.train.micro_tokens), config.data.packing
    problems: list[str] = []
    for attention in list_attentions(config, model_config):
        model = build_on_meta(base, attention.name, loss_head)
        found = find_architecture_problems(model, find_stand_in(attention.name, model_config), packing, sample, row)
        if found.unchecked is not None:
            unchecked = f"not checked on a small model of this architecture: packing and loss ({found.unchecked})"
            return attention, model, (attention.remark, unchecked)
        if (problem := explain_problem(found, packing, attention.name)) is None:
            return attention, model, (attention.remark,)
        problems.append(problem)
    raise UserError(f"{base}: {problems[0]}")


def explain_problem(found: ArchitectureProblems, packing: bool, attention: str) -> str | None:
    """Return what to tell the user about an architecture; None if it is right."""
    if found.loss is not None:
        return f"this model cannot be trained, because its loss would not be that of transformers ({found.loss}; attention: {attention})"
    if found.together is None:
        return None
    advice = "train with data.packing: false" if packing else "train with data.packing: true"
    how = "packed" if packing else "padded"
    return f"this model computes {how} samples otherwise than each alone ({found.together}; attention: {attention}); {advice}"


def sketch_model(config: Config[LanguageOptionsT], load_processor: Callable[[LanguageOptionsT, Loaded], ProcessorT]) -> Sketch[ProcessorT]:
    """For `overtone plan`, with batches of filler samples. `load_processor`: the recipe's, called only if rows are to be read."""
    make_batch = collation.pack if config.data.packing else collation.collate
    loaded = load_for_training(config)
    return Sketch(
        loaded=loaded,
        batch=lambda count, positions: make_batch([collation.make_filler(positions)] * count),
        processor=lambda: load_processor(config.options, loaded),
    )


def load_for_generation(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a folder that AutoModelForCausalLM reads: in its own dtype on a GPU, in fp32 on a CPU.

    Raises `UserError` if that fails.
    """
    import transformers  # takes seconds, and `--help` imports the modules that import this one

    if not (folder / CONFIG).is_file():
        if (foreign := explain_foreign_model(folder)) is not None:
            raise UserError(f"--model {folder}: {foreign}")
        export = overtone_command("export", "RUN", "--to", folder)
        raise UserError(f"--model {folder}: is not a model (it has no config.json); `{export}` makes one from a run")
    transformers.logging.set_verbosity_error()  # otherwise it comments on every default setting of generation
    quantized = find_form(read_object(folder / CONFIG), folder) is not None
    tokenizer = load_tokenizer(folder, None)
    if not quantized:
        require_safetensors(folder, "--model")
    cudnn_sdpa.disable_cudnn()
    placement = {"device_map": "auto", "dtype": "auto"} if torch.cuda.is_available() else {"dtype": torch.float32}
    if quantized:
        return load_dequantized(folder, placement), tokenizer
    with admit(folder, causal_language_model()) as clean, explain_loading(folder):
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            clean, trust_remote_code=False, use_safetensors=True, output_loading_info=True, **placement
        )
        require_weights(loaded["missing_keys"], ())
    return model.eval(), tokenizer


def load_dequantized(folder: Path, placement: dict[str, Any]) -> Any:
    """Return the model of a folder with quantized weights, as plain numbers, of which memory holds two copies for a moment. Raises
    `UserError` if that fails. transformers' own dequantization needs its version 5, and computes the size of an fp8 block from the shapes,
    which is wrong if the last block is smaller."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from overtone.finetune.modeling.loading import find_tensors, open_base

    with admit(folder, causal_language_model()) as clean, explain_loading(folder), open_base(folder) as read:
        config = transformers.AutoConfig.from_pretrained(clean, trust_remote_code=False)
        dtype = getattr(config, "dtype", None) or torch.bfloat16
        weights = {name: read(name, None).to(dtype) for name in find_tensors(folder)}
        built: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        model, loaded = built.from_pretrained(
            None, config=config, state_dict=weights, trust_remote_code=False, output_loading_info=True, **placement
        )
        require_weights(loaded["missing_keys"], ())
        if (clean / GENERATION).is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(clean, trust_remote_code=False)
    return model.eval()
