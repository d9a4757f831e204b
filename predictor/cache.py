"""A bounded, thread-safe memo: the least recently used entry leaves first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class Memo(Generic[Key, Item]):
    """Remembers up to `capacity` results. Two threads may compute the same miss; both get an equal result."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
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
        """Remembers `item`, dropping the oldest one when full."""
        with self._lock:
            self._items[key] = item
            self._items.move_to_end(key)
            if len(self._items) > self._capacity:
                self._items.popitem(last=False)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._items

    def __len__(self) -> int:
        return len(self._items)
