"""Pauses Python's search for reference cycles while a huge graph is worked on.

Every so many new objects the collector goes over all young ones, and now and then over all there are. A graph
of 100,000 nodes is millions of objects that live until the answer, in no cycles: going over them again and
again is a quarter of the time. Reference counts free everything as before.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

HUGE_NODES = 5_000
"""Below this many nodes the collector hardly runs."""

_lock = Lock()
_paused = 0
_was_enabled = False


@contextmanager
def without_collection(node_count: int) -> Iterator[None]:
    """No cyclic collection inside, for at least HUGE_NODES nodes; calls nest and threads overlap."""
    global _paused, _was_enabled
    if node_count < HUGE_NODES:
        yield
        return
    with _lock:
        if _paused == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused += 1
    try:
        yield
    finally:
        with _lock:
            _paused -= 1
            if _paused == 0 and _was_enabled:
                gc.enable()
