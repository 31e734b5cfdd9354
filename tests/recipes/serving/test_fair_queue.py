"""Tests of `overtone.recipes.serving.fair_queue`."""

from __future__ import annotations

import pytest

from overtone.recipes.serving.fair_queue import FairQueue


def test_clients_take_turns_and_their_own_requests_keep_their_order() -> None:
    queue = FairQueue[str]()
    for client, item in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]:
        queue.put(client, item)
    assert [queue.take() for _ in range(2)] == ["a1", "b1"]
    queue.put("d", "d1")  # after c, who waits, and after a and b, whose next turns come before
    assert [queue.take() for _ in range(len(queue))] == ["c1", "a2", "b2", "d1", "a3"]
    with pytest.raises(IndexError, match="empty"):
        queue.take()


def test_a_removed_request_is_not_served() -> None:
    queue = FairQueue[str]()
    for client, item in [("a", "a1"), ("b", "b1"), ("b", "b2")]:
        queue.put(client, item)
    assert queue.remove("b", "b1") and queue.remove("a", "a1")
    assert not queue.remove("b", "b1") and not queue.remove("nobody", "b2")
    assert len(queue) == 1 and queue.take() == "b2" and len(queue) == 0


def test_the_client_with_most_requests_gives_up_its_last_one_for_a_client_with_fewer() -> None:
    queue = FairQueue[str]()
    assert queue.displace("a") is None
    for client, item in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")]:
        queue.put(client, item)
    assert queue.displace("a") is None, "it has the most itself"
    assert queue.displace("b") == "a3"
    assert queue.displace("b") is None, "the exchange would only turn the two around"
    assert queue.displace("c") == "a2" and queue.displace("c") is None
    assert [queue.take() for _ in range(len(queue))] == ["a1", "b1"]
