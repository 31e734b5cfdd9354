"""A queue that serves its clients in turns: one with many requests delays others by one request, not by all of its own."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Round robin over the clients that have waiting items; each client's items stay in their order. It is not thread-safe."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Item]] = OrderedDict()
        """Client → its items, never empty; the client whose turn is next comes first."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, client: str, item: Item) -> None:
        """Add an item. A client without waiting items gets its turn after the others."""
        self._waiting.setdefault(client, deque()).append(item)

    def take(self) -> Item:
        """Remove and return the next item. Raises `IndexError` if there is none."""
        if not self._waiting:
            raise IndexError("the queue is empty")
        client, items = self._waiting.popitem(last=False)
        item = items.popleft()
        if items:
            self._waiting[client] = items
        return item

    def displace(self, client: str) -> Item | None:
        """Remove and return the last item of the client with the most items, if it has at least two more than `client`; otherwise None.
        So no client can fill the queue alone, and items are not exchanged in a circle."""
        longest = max(self._waiting, key=lambda one: len(self._waiting[one]), default=client)
        items = self._waiting.get(longest, deque())
        if len(items) < len(self._waiting.get(client, ())) + 2:
            return None
        return items.pop()

    def remove(self, client: str, item: Item) -> bool:
        """Remove a waiting item; returns False if it does not wait."""
        items = self._waiting.get(client, deque())
        if item not in items:
            return False
        items.remove(item)
        if not items:
            del self._waiting[client]
        return True
