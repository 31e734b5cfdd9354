"""Where rows end, and the chunks of a stream."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from overtone.recipes.speech.decoding.frame_loop import FrameLoop, growing_chunk_sizes

END = 9


class Replay(FrameLoop):
    """Returns given frames [frames, B, codebooks]. A row has ended after a frame that begins with `END`, as in CSM, or, with `ahead`,
    before that frame is generated, as in Qwen3-TTS."""

    def __init__(self, frames: list[list[list[int]]], ahead: bool = False) -> None:
        self.given, self.ahead = torch.tensor(frames), ahead
        super().__init__(0, torch.zeros_like(self.given))

    @property
    def ended(self) -> Tensor:
        return self.find_ends(self.given[: self.frame_count + self.ahead]).any(0)

    def find_ends(self, codes: Tensor) -> Tensor:
        return codes[..., 0] == END

    def run_frame(self, size: int) -> None:
        assert size == self.frame_count + 1
        self.codes[self.frame_count] = self.given[self.frame_count]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_row_ends_before_its_end_of_speech_code_while_others_continue(ahead: bool) -> None:
    loop = Replay([[[1, 2], [3, 4]], [[END, 5], [6, 7]], [[END, 5], [8, 0]]], ahead)
    assert list(loop.frames()) == [1, 2, 3]
    short, long = loop.results()
    assert (short.codes.tolist(), short.ended) == ([[1, 2]], True)
    assert (long.codes.tolist(), long.ended) == ([[3, 4], [6, 7], [8, 0]], False)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1], [2, 2, 2], [3, 3], [4, 4]])
def test_chunks_are_the_sound_without_the_end_frame(ahead: bool, sizes: list[int]) -> None:
    loop = Replay([[[1]], [[2]], [[3]], [[END]], [[4]]], ahead)
    pieces = [piece.flatten().tolist() for piece in loop.chunks(iter(sizes))]
    assert [*itertools.chain.from_iterable(pieces)] == [1, 2, 3] == loop.results()[0].codes.flatten().tolist()
    assert len(pieces[0]) == min(3, sizes[0]) and loop.frame_count == (3 if ahead else 4) and loop.results()[0].ended


def test_speech_that_ends_at_once_has_no_chunks() -> None:
    for ahead in (False, True):
        loop = Replay([[[END]], [[1]]], ahead)
        assert list(loop.chunks(growing_chunk_sizes())) == [] and loop.results()[0].codes.shape == (0, 1)


def test_chunk_sizes_grow() -> None:
    assert list(itertools.islice(growing_chunk_sizes(), 8)) == [1, 2, 4, 8, 16, 32, 32, 32]
