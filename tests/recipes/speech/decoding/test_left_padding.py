"""A row of a padded batch computes what it computes alone."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaModel

from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers
from overtone.recipes.speech.decoding.left_padding import PaddedSlots, pad_left


def test_prompts_are_padded_on_the_left() -> None:
    padded, pads = pad_left([torch.ones(2, 3), torch.ones(4, 3)])
    assert pads.tolist() == [2, 0] and padded[0].sum(1).tolist() == [0, 0, 3, 3]


@torch.no_grad()
def test_a_row_does_not_see_its_padding_nor_later_slots() -> None:
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48, vocab_size=8))
    layers, rows = CachedDecoderLayers(model, "Llama"), [torch.randn(2, 32), torch.randn(5, 32)]

    def decode(prompts: list[torch.Tensor], steps: list[torch.Tensor]) -> torch.Tensor:
        """The last state of the prompts, then of the steps, in a cache with more slots than are needed: [B, 1 + steps, H]."""
        x, pads = pad_left(prompts)
        start = x.shape[1]
        slots = PaddedSlots(pads, start, layers.make_rotary_table(start + 6))
        cache = layers.make_cache(len(prompts), start + 6)
        states = [layers(x, cache, slots.make_prompt_window())[:, -1:]]
        for index, step in enumerate(steps):
            states.append(layers(step, cache, slots.make_step_window(torch.tensor([index]), start + 4)))
        return torch.cat(states, 1)

    more = torch.randn(3, 2, 1, 32)
    together = decode(rows, list(more))
    for row, prompt in enumerate(rows):
        alone = decode([prompt], list(more[:, row : row + 1]))
        expected = model(inputs_embeds=torch.cat([prompt, more[:, row, 0]])[None]).last_hidden_state[:, -4:]
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together[row : row + 1], expected, atol=1e-5, rtol=1e-5)
