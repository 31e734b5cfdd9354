"""Both engines offer the same."""

from __future__ import annotations

import inspect

import pytest

from overtone.data_prep.alignment import ctc_aligner, interface, pocketsphinx_aligner


@pytest.mark.parametrize("engine", [ctc_aligner.LoadedCtcAligner, pocketsphinx_aligner.LoadedPocketsphinxAligner])
@pytest.mark.parametrize("method", ["align", "locate"])
def test_an_engine_has_the_methods_of_the_interface(engine: type, method: str) -> None:
    assert inspect.signature(getattr(engine, method)) == inspect.signature(getattr(interface.LoadedAligner, method))
