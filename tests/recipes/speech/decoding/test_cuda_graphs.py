"""Window sizes of the CUDA graphs; tests/recipes/voice_clone/inference/test_graph_replay.py replays them on a GPU."""

from __future__ import annotations

from overtone.recipes.speech.decoding.cuda_graphs import STEP, window_size


def test_window_sizes_grow_in_steps_up_to_the_cache_size() -> None:
    assert [window_size(needed, 600) for needed in (1, STEP, STEP + 1, 512, 513, 600)] == [STEP, STEP, 2 * STEP, 512, 600, 600]
