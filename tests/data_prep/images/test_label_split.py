"""Every label has its share in validation."""

from __future__ import annotations

from collections import Counter

import pytest

from overtone.data_prep.images.label_split import choose_validation

IMAGES = [(f"{label}-{number}", label) for label, count in (("a", 100), ("b", 13), ("c", 2), ("d", 1)) for number in range(count)]


@pytest.mark.parametrize(("share", "expected"), [(0.1, {"a": 10, "b": 1, "c": 1}), (0.5, {"a": 50, "b": 6, "c": 1}), (0.0, {})])
def test_each_label_gives_its_share_and_at_least_one(share: float, expected: dict[str, int]) -> None:
    chosen = choose_validation(IMAGES, share)
    assert Counter(IMAGES[number][1] for number in chosen) == expected


def test_the_order_does_not_matter_and_more_images_move_few() -> None:
    chosen = {IMAGES[number] for number in choose_validation(IMAGES, 0.1)}
    turned = IMAGES[::-1]
    assert {turned[number] for number in choose_validation(turned, 0.1)} == chosen
    more = [*IMAGES, *((f"new-{number}", "a") for number in range(20))]
    assert len(chosen - {more[number] for number in choose_validation(more, 0.1)}) <= 3
