"""The training forward of Qwen3-TTS: one talker over text and speech, and one code predictor within each frame.

    main = −Σ log p(codebook 0 or end of speech | everything before)         T + 1 targets per clip
    sub  = −Σ log p(codebook i | codebooks before it, talker's state)        15·T targets per clip

Generation samples from these two factors, so their sum is the negative log-likelihood of a clip under generation. The package's own
training forward is not used: it shifts the labels of both factors once too often, and it conditions the second one on the state after the
frame, which does not exist yet when the frame is generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from overtone.finetune.modeling.loss_head import LossHead, of_logits
from overtone.finetune.recipe import BASE_DISTANCE, BASE_STATES

if TYPE_CHECKING:
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSTalkerForConditionalGeneration

ATTENTION = "overtone_causal"
"""Name under which transformers knows sdpa without a mask. Under the name `sdpa`, it tests whether a mask is all true, and the host waits
for the GPU."""
SCORES = "scores"
"""Key of the log-probabilities that `SpeechModel` returns."""
LORA_TARGETS = r"talker\.(code_predictor\.)?model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
"""The layers of talker and predictor. Embeddings and heads are not adapted: the meaning of a code does not depend on the voice."""


class SpeechModel(nn.Module):
    """The talker with its code predictor, and the speaker vectors, as one module with the training forward."""

    def __init__(
        self, talker: nn.Module, speaker_vectors: Tensor, sub_weight: float, sub_frames: float, frame_dropout: float = 0.0
    ) -> None:
        """`talker` is the package's Qwen3TTSTalkerForConditionalGeneration; `speaker_vectors` is [speakers, H] fp32. The code predictor
        trains on the share `sub_frames` in (0, 1] of the frames. Where the talker predicts codebook 0 in training, its input lacks the
        share `frame_dropout` in [0, 1) of the frames."""
        super().__init__()
        self.speaker_vectors: Tensor
        self.talker = talker
        self.register_buffer("speaker_vectors", speaker_vectors)
        self.sub_frames, self.frame_dropout = sub_frames, frame_dropout
        self.weights = {"main": 1.0, "sub": sub_weight, "main_accuracy": 0.0, "sub_accuracy": 0.0, BASE_DISTANCE: 1.0}

    def forward(self, tensors: dict[str, Tensor], result: Literal["sums", "states", "scores"] = "sums") -> dict[str, Tensor]:
        """Tensors of `sequence_layout.collate` → fp32 sums over the targets: two negative log-likelihoods in nats, and two counts of
        correct top-1 guesses; with `BASE_STATES`, also the distance to the base on codebook 0. As `result: states`, only the talker's
        states [M, H] that predict codebook 0, as `BASE_STATES`. As `result: scores`, only the log-probability of each target in nats, as
        `SCORES` [M + 15·N]: of codebook 0 and end of speech, then of codebooks 1 to 15 frame by frame.

        If codebooks 1 to 15 train on a share of the frames, their sums are scaled up, so that their expectation is the sum over all frames.
        """
        talker: Qwen3TTSTalkerForConditionalGeneration = self.talker
        codes = select_positions(tensors["codes"], tensors["frame_rows"])
        embedded = frame_embeddings(talker, codes)
        inputs = input_embeddings(talker, self.speaker_vectors, tensors, embedded)
        if self.training and self.frame_dropout:
            dropped = input_embeddings(talker, self.speaker_vectors, tensors, drop_frames(embedded, self.frame_dropout))
            # The code predictor starts from the states of complete inputs, as in generation; from the others, it learns a harder task than
            # it will have. One pass over twice the rows: sharded layers are gathered once.
            hidden_for_first, hidden = talker_states(talker, torch.cat([dropped, inputs])).chunk(2)
        else:
            hidden_for_first = hidden = talker_states(talker, inputs)
        first_states, labels = align_first_codebook(hidden_for_first, tensors["labels"], tensors["target_rows"])
        if result == "states":
            return {BASE_STATES: first_states}
        states = states_before_frames(hidden, tensors["frame_rows"])
        if result == "scores":
            steps = run_code_predictor(talker.code_predictor, states, embedded, codes)
            books = [
                score_targets(head, *inputs)
                for head, *inputs in zip(talker.code_predictor.lm_head, *(each.unbind(1) for each in steps), strict=True)
            ]
            return {SCORES: torch.cat([score_targets(talker.codec_head, first_states, labels), torch.stack(books, 1).flatten()])}
        main, main_hits, *distance = compute_head_loss(talker.codec_head, first_states, labels, tensors.get(BASE_STATES))
        # Evaluation uses all frames.
        chosen, scale = choose_frames(len(codes), self.sub_frames if self.training else 1.0, codes.device)
        predicted = run_code_predictor(talker.code_predictor, states[chosen], embedded[chosen], codes[chosen])
        sub, sub_hits = sum_codebook_losses(talker.code_predictor.lm_head, *predicted)
        sums = {"main": main, "sub": sub * scale, "main_accuracy": main_hits, "sub_accuracy": sub_hits * scale}
        return {**sums, **dict(zip((BASE_DISTANCE,), distance, strict=False))}


def select_positions(positions: Tensor, rows: Tensor) -> Tensor:
    """Values [B, S, …] at the flat positions `rows` [N], counted through the whole batch → [N, …].

    Not by a mask: on a GPU, the host would wait to learn how many positions the mask selects.
    """
    return positions.flatten(0, 1).index_select(0, rows)


def frame_embeddings(talker: Qwen3TTSTalkerForConditionalGeneration, codes: Tensor) -> Tensor:
    """Codes [N, 16] → [N, 16, H]. Each codebook has its own table: the first in the talker, the others in the predictor."""
    tables = [talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding]
    return torch.stack([table(codes[:, book]) for book, table in enumerate(tables)], dim=1)


def input_embeddings(
    talker: Qwen3TTSTalkerForConditionalGeneration, speaker_vectors: Tensor, tensors: dict[str, Tensor], embedded: Tensor
) -> Tensor:
    """The talker's input, [B, S, H]: the text channel plus the codec channel."""
    return text_channel(talker, tensors["text"], tensors["valid"]) + codec_channel(talker, speaker_vectors, tensors, embedded)


def text_channel(talker: Qwen3TTSTalkerForConditionalGeneration, text: Tensor, valid: Tensor) -> Tensor:
    """Projected text embeddings [B, S, H], zero at padding. The mask is applied after the projection, whose biases are not zero."""
    return talker.text_projection(talker.model.text_embedding(text)) * valid.unsqueeze(-1)


def codec_channel(
    talker: Qwen3TTSTalkerForConditionalGeneration, speaker_vectors: Tensor, tensors: dict[str, Tensor], embedded: Tensor
) -> Tensor:
    """Control ids, the speaker's vector in its slot, and each frame as the sum of its codebooks' embeddings: [B, S, H], zero at other
    positions."""
    control = talker.model.codec_embedding(tensors["codec"]) * tensors["codec_mask"].unsqueeze(-1)
    # The buffer stays fp32 under mixed precision, and the sum would silently promote everything after it.
    voice = speaker_vectors[tensors["speaker"]].to(control.dtype).unsqueeze(1) * tensors["speaker_mask"].unsqueeze(-1)
    channel = control + voice
    return channel.flatten(0, 1).index_copy(0, tensors["frame_rows"], embedded.sum(1)).view_as(channel)


def talker_states(talker: Qwen3TTSTalkerForConditionalGeneration, inputs: Tensor) -> Tensor:
    """Last hidden states after the final norm, [B, S, H].

    Padding is on the right and attention is causal, so no mask is needed and attention takes its fast causal path (`ATTENTION`).
    """
    return talker.model(inputs_embeds=inputs, use_cache=False).last_hidden_state


def align_first_codebook(hidden: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """States [M, H] and targets [M] of codebook 0 and end of speech: each position p in `rows` predicts the label at p+1. The only
    shift."""
    return select_positions(hidden, rows), select_positions(labels, rows + 1)


def states_before_frames(hidden: Tensor, rows: Tensor) -> Tensor:
    """For each frame position in `rows`, the talker's state one position earlier, [N, H]: the state that predicted the frame's codebook
    0."""
    return select_positions(hidden, rows - 1)


def drop_frames(embedded: Tensor, share: float) -> Tensor:
    """Frames [N, 16, H] with a random share set to zero (torch's generator). The others are not scaled: a frame is either complete or
    absent."""
    return embedded * (torch.rand(len(embedded), device=embedded.device) >= share)[:, None, None]


def choose_frames(frames: int, share: float, device: torch.device) -> tuple[Tensor | slice, float]:
    """Random choice (torch's generator, which each step seeds for its micro-batch) of the frames that train codebooks 1 to 15. Returns
    their indices, int64 [⌈share · frames⌉] or a slice, and the factor that scales their sums to all frames."""
    if share == 1.0 or not frames:
        return slice(None), 1.0
    count = math.ceil(share * frames)
    return torch.randperm(frames, device=device)[:count], frames / count


def run_code_predictor(predictor: Any, states: Tensor, embedded: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """States [N, 15, H] and targets [N, 15] of codebooks 1 … 15, for all frames of the batch at once.

    Each frame is a separate sequence of 16 steps: the talker's state, then codebooks 0 … 14. Step i predicts codebook i, without a shift.
    """
    steps = predictor.small_to_mtp_projection(torch.cat([states.unsqueeze(1), embedded[:, :-1]], dim=1))
    return predictor.model(inputs_embeds=steps, use_cache=False).last_hidden_state[:, 1:], codes[:, 1:]


def sum_codebook_losses(heads: nn.ModuleList, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and the correct guesses of the heads of codebooks 1 … 15, summed, for states [N, 15, H] and targets [N, 15]."""
    # unbind, because the gradient of each slice would be a tensor as large as `states`.
    losses = [compute_head_loss(head, *inputs) for head, *inputs in zip(heads, states.unbind(1), targets.unbind(1), strict=True)]
    nll, hits = zip(*losses, strict=True)
    return torch.stack(nll).sum(), torch.stack(hits).sum()


def compute_head_loss(head: nn.Module, states: Tensor, targets: Tensor, base_states: Tensor | None = None) -> tuple[Tensor, ...]:
    """Summed negative log-likelihood in nats and number of correct top-1 guesses, both fp32, for states [M, H] and targets [M]; with the
    base's states [M, H], also the distance to it."""
    if isinstance(head, LossHead):
        sums: tuple[Tensor, ...] = head(states, targets, base_states)
        return sums
    return of_logits(head(states), targets)


def score_targets(head: nn.Module, states: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target [M] in nats, for states [M, H] and targets [M]."""
    if isinstance(head, LossHead):
        (scores,) = head(states, targets, None, each=True)
        return scores
    return torch.log_softmax(head(states).float(), -1).gather(1, targets.unsqueeze(1)).squeeze(1)


def replace_output_heads(model: SpeechModel, has_adapter: Callable[[str], bool]) -> None:
    """Replace the output heads by `LossHead`s, because training does not need their logits (15 · 2,048 per frame). Heads for which
    `has_adapter(name)` is true stay linear layers, as adapters require."""
    talker: Qwen3TTSTalkerForConditionalGeneration = model.talker
    for name in ["talker.codec_head", *(f"talker.code_predictor.lm_head.{book}" for book in range(len(talker.code_predictor.lm_head)))]:
        linear: Any = model.get_submodule(name)
        if not has_adapter(name):
            model.set_submodule(name, LossHead(linear))


def adapts_no_head(_: str) -> bool:
    """Default of `build_on_meta`: no output head gets an adapter."""
    return False


def build_on_meta(
    config: dict[str, Any],
    speaker_vectors: Tensor,
    sub_weight: float,
    sub_frames: float,
    frame_dropout: float = 0.0,
    has_adapter: Callable[[str], bool] = adapts_no_head,
) -> SpeechModel:
    """The model of a `config.json` with parameters on the meta device. Buffers are real, because rotary frequencies are computed, not
    loaded. `has_adapter` returns, for the name of an output head, whether it will get an adapter."""
    AttentionInterface.register(ATTENTION, sdpa_attention_forward)  # no mask function has that name, so no mask is created
    talker = build_talker_on_meta(config, ATTENTION)
    model = SpeechModel(talker, speaker_vectors, sub_weight, sub_frames, frame_dropout)
    replace_output_heads(model, has_adapter)
    return model


def build_talker_on_meta(config: dict[str, Any], attention: str) -> Qwen3TTSTalkerForConditionalGeneration:
    """The package's talker with its code predictor, as `build_on_meta`. `attention`: name of the implementation in transformers."""
    import_qwen_tts()
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSTalkerConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSTalkerForConditionalGeneration

    talker_config = Qwen3TTSTalkerConfig(**config["talker_config"])
    talker_config._attn_implementation = attention
    with init_empty_weights(include_buffers=False):
        return Qwen3TTSTalkerForConditionalGeneration(talker_config)


def block_classes() -> tuple[type[nn.Module], ...]:
    """Classes of the repeated layers, of the talker and of the predictor."""
    import_qwen_tts()
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSDecoderLayer, Qwen3TTSTalkerDecoderLayer

    return Qwen3TTSTalkerDecoderLayer, Qwen3TTSDecoderLayer
