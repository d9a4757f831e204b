"""A bounded, thread-safe memo: the least recently used entries leave first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Memo(Generic[Key, Item]):
    """Remembers results up to a total weight of `capacity`; the newest stays even when it alone exceeds that.

    Two threads may compute the same miss; both get an equal result.

    Args:
        capacity: total weight.
        weigh: weight of one item, constant over its life; 1 each by default.
    """

    def __init__(self, capacity: int, weigh: Callable[[Item], int] = lambda _: 1) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._weight = 0
        self._items: OrderedDict[Key, Item] = OrderedDict()
        self._lock = Lock()

    def get_or(self, key: Key, compute: Callable[[], Item]) -> Item:
        """The remembered item, or `compute()` remembered. Errors are not remembered."""
        found = self.get(key)
        if found is not None:
            return found
        item = compute()
        self.put(key, item)
        return item

    def get(self, key: Key) -> Item | None:
        """The remembered item, or None."""
        with self._lock:
            item = self._items.get(key)
            if item is not None:
                self._items.move_to_end(key)
            return item

    def put(self, key: Key, item: Item) -> None:
        """Remembers `item`, dropping the oldest ones while the total is too heavy."""
        with self._lock:
            replaced = self._items.pop(key, None)
            if replaced is not None:
                self._weight -= self._weigh(replaced)
            self._items[key] = item
            self._weight += self._weigh(item)
            while self._weight > self._capacity and len(self._items) > 1:
                self._weight -= self._weigh(self._items.popitem(last=False)[1])

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._items

    def __len__(self) -> int:
        return len(self._items)
