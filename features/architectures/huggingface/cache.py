"""The cache of keys and values that a decoder carries from step to step: its layers' sizes, and its updates.

One step reads `past` tokens from the cache and writes its new ones into it, in place, as serving engines and
static caches do. Every layer's cache is an input of the graph with room for the new tokens, and the updated
one is an output in the same memory. A window bounds the cache: it is a ring of as many rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.architectures.huggingface.job import Job
from predictor.features.builder import Tensor
from predictor.features.dtype import DType


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps per token: `heads` keys of `key_dim` elements and values of `value_dim`.

    Attributes:
        window: the most tokens that the layer looks at; None for all.
    """

    heads: int
    key_dim: int
    value_dim: int
    window: int | None = None

    @property
    def elements_per_token(self) -> int:
        """Numbers that one token adds."""
        return self.heads * (self.key_dim + self.value_dim)

    def tokens(self, length: int) -> int:
        """Tokens kept of a sequence of `length`."""
        return length if self.window is None else min(length, self.window)


Caches: TypeAlias = Callable[[Fields], tuple[LayerCache, ...]]
"""A configuration to the caches of its decoder, layer by layer."""


def extended(job: Job, name: str, new: Tensor, window: int | None = None) -> Tensor:
    """What the layer attends to: the cached rows and the `new` ones, (batch, heads, rows, head size).

    `new` is written into the cache; without a cache it is all there is.
    """
    if job.past is None:
        return new
    b, count = job.b, new.size(2)
    rows = job.length if window is None else min(job.length, window)
    cache = b.input(f"past_key_values.{name}", (job.batch, new.size(1), rows, new.size(3)))
    seen = new
    # Several new tokens push rows out of the ring that the first of them still look at.
    if overflows := count > 1 and job.length > rows:
        kept = min(job.past, rows - 1)
        seen = b.concat([b.slice(cache, 0, kept, axis=2), new], axis=2) if kept else new
    update = new if count <= rows else b.slice(new, count - rows, count, axis=2)
    present: Tensor = b.op(
        "TensorScatter",
        [cache, update, _place(job)],
        name=f"present.{name}",
        axis=2,
        mode="linear" if window is None else "circular",
    )
    job.caches.append(present)
    return seen if overflows else present


def next_layer(job: Job) -> int:
    """Number of the layer whose caches are made now."""
    return sum(tensor.name.endswith((".key", ".latent")) for tensor in job.caches)


def _place(job: Job) -> Tensor | None:
    """Where each sample's new rows go; an empty cache is filled from its start."""
    if not job.past:
        return None
    place: Tensor = job.once(
        "cache_position", lambda: job.b.input("cache_position", (job.batch,), DType.INT64)
    )
    return place
