"""What a family builds from: the graph under construction, the fields, and the sizes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from predictor.errors import InvalidRequest
from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType


class Task(StrEnum):
    """What follows the body of the model."""

    BASE = "base"
    """The body alone (with its pooler, where the family has one)."""
    LANGUAGE = "language"
    """A score for every word at every position: causal, masked, or of a decoder."""
    PRETRAINING = "pretraining"
    """The heads that the family was pre-trained with."""
    CLASSIFIER = "classifier"
    """One class per sample."""
    TOKENS = "tokens"
    """One class per token."""
    SPANS = "spans"
    """Start and end of an answer."""
    PROJECTION = "projection"
    """The pooled output in the space that text and images share."""


@dataclass(frozen=True, slots=True)
class Job:
    """One graph to build; `sequence` counts tokens where the model reads tokens.

    Attributes:
        past: tokens whose keys and values are cached already; None for a graph without a cache.
        source: tokens that an encoder has read; of no meaning without one.
        last_only: scores of words are those of the last token alone.
        shared: what all layers of one graph read: tables of angles, masks.
        caches: the updated caches, in the order of the layers.
    """

    b: GraphBuilder
    fields: Fields
    batch: int | str
    sequence: int
    task: Task
    past: int | None = None
    source: int = 0
    last_only: bool = False
    shared: dict[Any, Any] = field(default_factory=dict)
    caches: list[Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens that the last one may look at: cached and new."""
        return (self.past or 0) + self.sequence

    def ids(self, name: str = "input_ids", length: int | None = None) -> Tensor:
        """An input of token ids, (batch, length)."""
        return self.b.input(name, (self.batch, length or self.sequence), DType.INT64)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()` the first time, the same result for an equal key after that."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    def among(self, *tasks: Task) -> Task:
        """The job's task. Raises InvalidRequest when the family has no such head."""
        if self.task not in tasks:
            raise InvalidRequest(
                f"this family has no head for task {str(self.task)!r}; expected one of {', '.join(tasks)}",
                field="task",
            )
        return self.task

    def check_positions(self, longest: int) -> None:
        """Raises InvalidRequest when the sequence is longer than a table of learned positions."""
        if self.length > longest:
            cached = f" after {self.past} cached tokens" if self.past else ""
            raise InvalidRequest(
                f"sequence is {self.sequence}{cached}; expected at most {longest} tokens in all, the model's "
                "number of positions",
                field="sequence",
            )


Family: TypeAlias = Callable[[Job], Sequence[Tensor]]
"""Builds the graph of one `model_type` and returns its outputs."""
