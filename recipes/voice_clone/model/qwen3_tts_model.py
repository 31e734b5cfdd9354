"""The training forward of Qwen3-TTS: one talker over text and speech, one code predictor inside each frame.

    main = −Σ log p(codebook 0 or end of speech | everything before)         T + 1 targets a clip
    sub  = −Σ log p(codebook i | codebooks before it, talker's state)        15·T targets a clip

These are the two factors of what generation samples from, so that their sum is the likelihood of a clip under generation itself.
The package's own training forward is not used: it shifts the labels of both factors once too often, and it conditions the second on
the state after the frame, which does not exist yet when a frame is generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from finetune.modeling.loss_head import LossHead, of_logits

ATTENTION = "overtone_causal"
"""Name in transformers of sdpa without a mask. For the name `sdpa` itself it looks whether a mask is all true, and a GPU's host waits."""


class SpeechModel(nn.Module):
    """Everything that is trained, and the speaker vectors, under one forward."""

    def __init__(
        self, talker: nn.Module, speaker_vectors: Tensor, sub_weight: float, sub_frames: float, frame_dropout: float = 0.0
    ) -> None:
        """`talker` is the package's Qwen3TTSTalkerForConditionalGeneration; `speaker_vectors` is [speakers, H] fp32; of a share
        `sub_frames` (0, 1] of the frames the other codebooks are learned, and a share `frame_dropout` [0, 1) the talker does not hear."""
        super().__init__()
        self.speaker_vectors: Tensor
        self.talker = talker
        self.register_buffer("speaker_vectors", speaker_vectors)
        self.sub_frames, self.frame_dropout = sub_frames, frame_dropout
        self.weights = {"main": 1.0, "sub": sub_weight, "main_accuracy": 0.0, "sub_accuracy": 0.0}

    def forward(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of `sequence_layout.collate` → fp32 sums over the targets: two negative log-likelihoods in nats, two numbers of right
        guesses.

        If only some frames are drawn for the other codebooks, their sums are scaled up to what all would give, in expectation.
        """
        talker: Any = self.talker
        codes = rows_of(tensors["codes"], tensors["frame_rows"])
        embedded = frame_embeddings(talker, codes)
        heard = dropped(embedded, self.frame_dropout) if self.training and self.frame_dropout else embedded
        hidden = talker_states(talker, input_embeddings(talker, self.speaker_vectors, tensors, heard))
        main, main_hits = asked(talker.codec_head, *first_codebook(hidden, tensors["labels"], tensors["target_rows"]))
        states = states_before_frames(hidden, tensors["frame_rows"])
        # What is measured is measured on all frames.
        chosen, scale = drawn(len(codes), self.sub_frames if self.training else 1.0, codes.device)
        learned = other_codebooks(talker.code_predictor, states[chosen], embedded[chosen], codes[chosen])
        sub, sub_hits = by_book(talker.code_predictor.lm_head, *learned)
        return {"main": main, "sub": sub * scale, "main_accuracy": main_hits, "sub_accuracy": sub_hits * scale}


def rows_of(positions: Tensor, rows: Tensor) -> Tensor:
    """[B, S, …] and the numbers [N] of positions, counted through all samples → [N, …].

    Not by a mask: on a GPU the host would wait to learn how many positions it chooses.
    """
    return positions.flatten(0, 1).index_select(0, rows)


def frame_embeddings(talker: Any, codes: Tensor) -> Tensor:
    """[N, 16] codes → [N, 16, H]: each codebook has its own table, the first in the talker and the others in the predictor."""
    tables = [talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding]
    return torch.stack([table(codes[:, book]) for book, table in enumerate(tables)], dim=1)


def input_embeddings(talker: Any, speaker_vectors: Tensor, tensors: dict[str, Tensor], embedded: Tensor) -> Tensor:
    """What the talker reads, [B, S, H]: the text channel plus the codec channel."""
    return text_channel(talker, tensors["text"], tensors["valid"]) + codec_channel(talker, speaker_vectors, tensors, embedded)


def text_channel(talker: Any, text: Tensor, valid: Tensor) -> Tensor:
    """Projected text embeddings, zero at padding. The mask comes after the projection, whose biases would fill the padding again."""
    return talker.text_projection(talker.model.text_embedding(text)) * valid.unsqueeze(-1)


def codec_channel(talker: Any, speaker_vectors: Tensor, tensors: dict[str, Tensor], embedded: Tensor) -> Tensor:
    """Control ids, the speaker's vector in its slot, and each frame as the sum of its codebooks' embeddings; zero elsewhere."""
    control = talker.model.codec_embedding(tensors["codec"]) * tensors["codec_mask"].unsqueeze(-1)
    # The buffer stays fp32 under mixed precision, and the sum would silently promote everything after it.
    voice = speaker_vectors[tensors["speaker"]].to(control.dtype).unsqueeze(1) * tensors["speaker_mask"].unsqueeze(-1)
    channel = control + voice
    return channel.flatten(0, 1).index_copy(0, tensors["frame_rows"], embedded.sum(1)).view_as(channel)


def talker_states(talker: Any, inputs: Tensor) -> Tensor:
    """Last hidden states after the final norm, [B, S, H].

    Padding is on the right and attention causal, so padding needs no mask, and attention takes its fast causal path (`ATTENTION`).
    """
    return talker.model(inputs_embeds=inputs, use_cache=False).last_hidden_state


def first_codebook(hidden: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """States [M, H] and targets [M] of codebook 0 and end of speech: position p, of `rows`, predicts the label of p+1, one shift in all."""
    return rows_of(hidden, rows), rows_of(labels, rows + 1)


def states_before_frames(hidden: Tensor, rows: Tensor) -> Tensor:
    """For each frame, of `rows`, the talker's state one position earlier, [N, H]: the one that predicted the frame's codebook 0."""
    return rows_of(hidden, rows - 1)


def dropped(embedded: Tensor, share: float) -> Tensor:
    """[N, 16, H] with a share of the frames set to zero, by torch's generator. The rest is not scaled: a frame is heard whole or not."""
    return embedded * (torch.rand(len(embedded), device=embedded.device) >= share)[:, None, None]


def drawn(frames: int, share: float, device: torch.device) -> tuple[Tensor | slice, float]:
    """Which frames the other codebooks are learned from, by torch's generator (which a step seeds by its micro-batch), and how many
    each stands for."""
    if share == 1.0 or not frames:
        return slice(None), 1.0
    count = math.ceil(share * frames)
    return torch.randperm(frames, device=device)[:count], frames / count


def other_codebooks(predictor: Any, states: Tensor, embedded: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """States [N, 15, H] and targets [N, 15] of codebooks 1 … 15, for all frames of the batch at once.

    Each frame is a sequence of its own of 16 steps: the talker's state, then codebooks 0 … 14. Step i predicts codebook i, no shift.
    """
    steps = predictor.small_to_mtp_projection(torch.cat([states.unsqueeze(1), embedded[:, :-1]], dim=1))
    return predictor.model(inputs_embeds=steps, use_cache=False).last_hidden_state[:, 1:], codes[:, 1:]


def by_book(heads: nn.ModuleList, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What the heads of codebooks 1 … 15 say of their states [N, 15, H] and targets [N, 15], added up."""
    # Not by slices: the gradient of each would be a tensor of the whole's size.
    each = [asked(head, *given) for head, *given in zip(heads, states.unbind(1), targets.unbind(1), strict=True)]
    nll, hits = zip(*each, strict=True)
    return torch.stack(nll).sum(), torch.stack(hits).sum()


def asked(head: nn.Module, states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What a head says of states [M, H] and targets [M]: summed negative log-likelihood in nats, and right first guesses, both fp32."""
    if isinstance(head, LossHead):
        nll, hits = head(states, targets)
        return nll, hits
    return of_logits(head(states), targets)


def ask_heads(model: SpeechModel, adapted: Callable[[str], bool]) -> None:
    """Put `LossHead`s in the place of the output heads, whose logits (15 · 2,048 for each frame) training does not need. Heads that are
    `adapted`, by their name in the model, stay the linear layers that adapters want."""
    talker: Any = model.talker
    for name in ["talker.codec_head", *(f"talker.code_predictor.lm_head.{book}" for book in range(len(talker.code_predictor.lm_head)))]:
        linear: Any = model.get_submodule(name)
        if not adapted(name):
            model.set_submodule(name, LossHead(linear))


def no_head(_: str) -> bool:
    """Adapters are elsewhere."""
    return False


def on_meta(
    config: dict[str, Any],
    speaker_vectors: Tensor,
    sub_weight: float,
    sub_frames: float,
    frame_dropout: float = 0.0,
    adapted: Callable[[str], bool] = no_head,
) -> SpeechModel:
    """The model of a `config.json` in shape only: parameters on meta; buffers real, since rotary frequencies are computed, not loaded.
    `adapted`: which output heads, by name, will get adapters."""
    from accelerate import init_empty_weights
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    import_qwen_tts()
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSTalkerConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSTalkerForConditionalGeneration

    talker_config = Qwen3TTSTalkerConfig(**config["talker_config"])
    AttentionInterface.register(ATTENTION, sdpa_attention_forward)  # and no mask under that name, so that none is made
    talker_config._attn_implementation = ATTENTION
    with init_empty_weights(include_buffers=False):
        talker = Qwen3TTSTalkerForConditionalGeneration(talker_config)
    model = SpeechModel(talker, speaker_vectors, sub_weight, sub_frames, frame_dropout)
    ask_heads(model, adapted)
    return model


def block_classes() -> tuple[type[nn.Module], ...]:
    """The repeated layers: the talker's and the predictor's."""
    from data_prep.audio_codecs.qwen_tts_import import import_qwen_tts

    import_qwen_tts()
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSDecoderLayer, Qwen3TTSTalkerDecoderLayer

    return Qwen3TTSTalkerDecoderLayer, Qwen3TTSDecoderLayer
