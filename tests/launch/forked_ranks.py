"""Ranks without a launcher, for tests that do not depend on how processes are started: one process imports the recipes, then forks them."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from overtone.finetune.recipe import find_recipe, load_recipe
from tests import loopback
from tests.reliability import victims

LIMIT_SECONDS = 270
"""Below pytest's own limit, which would end the whole session."""


def run_ranks(work: Callable[..., object], groups: Sequence[tuple[int, tuple[Any, ...]]], recipes: Sequence[str], witness: Path) -> None:
    """Call `work(*arguments)` on each rank of each group, which is (number of ranks, arguments), group after group.

    What the ranks print is in `witness`.
    """
    witness.mkdir(parents=True, exist_ok=True)
    parent = victims.begin(fork_groups, work, groups, recipes, witness)
    assert victims.wait([parent], LIMIT_SECONDS) == [0], victims.said(witness)


# --- inside the parent of the ranks


def fork_groups(work: Callable[..., object], groups: Sequence[tuple[int, tuple[Any, ...]]], recipes: Sequence[str], witness: Path) -> None:
    victims.become(0, 1, 0, witness)
    for name in recipes:
        load_recipe(find_recipe(name))
        if name == "voice_clone":
            import_voice_clone()
        if name == "csm":
            import_csm()
    for size, arguments in groups:
        port = loopback.free_port()
        children = [fork_rank(work, arguments, rank, size, port, witness) for rank in range(size)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            print(f"ranks of a group of {size} ended with {codes}", flush=True)
            os._exit(1)
    os._exit(0)


def import_voice_clone() -> None:
    """What the recipe imports inside its functions."""
    import overtone.recipes.qwen3_tts.model.modeling
    import overtone.recipes.qwen3_tts.model.sequence_layout
    import overtone.recipes.voice_clone.model.speaker_vectors  # noqa: F401

    import_qwen_tts()


def import_csm() -> None:
    """What the recipe imports inside its functions."""
    import overtone.recipes.csm.model.dataset_speakers
    import overtone.recipes.csm.model.modeling
    import overtone.recipes.csm.model.sequence_layout  # noqa: F401


def fork_rank(work: Callable[..., object], arguments: tuple[Any, ...], rank: int, size: int, port: int, witness: Path) -> int:
    """Returns the process id."""
    if child := os.fork():
        return child
    code = 1
    try:
        signal.alarm(LIMIT_SECONDS)  # a rank that waits for one that is gone ends too
        victims.become(rank, size, port, witness)
        victims.draw_no_curve()
        work(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
