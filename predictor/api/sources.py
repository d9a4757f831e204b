"""Where graphs come from: paths, bytes, ids of models that were added, or Graph objects; each read once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from predictor.cache import Memo
from predictor.errors import InvalidGraph, UnknownGraph
from predictor.features.graph import Graph
from predictor.features.programs.program_source import ProgramSource
from predictor.request import GraphSource
from predictor.units import MIB

_MODEL_ID = "sha256:"
GraphKey: TypeAlias = Hashable
FileSource: TypeAlias = str | os.PathLike[str] | bytes


@dataclass(frozen=True, slots=True)
class Binding:
    """The numbers that make a model's shapes concrete."""

    batch: int | None
    dims: Mapping[str, int]
    input_shapes: Mapping[str, tuple[int, ...]]

    @property
    def key(self) -> Hashable:
        """Equal for equal bindings."""
        return self.batch, tuple(sorted(self.dims.items())), tuple(sorted(self.input_shapes.items()))


class GraphSources:
    """Resolves graph sources.

    Remembers models (64 MiB without weights) and bound graphs (50,000 nodes), least recently used first out.
    """

    def __init__(self) -> None:
        self._models: Memo[str, bytes] = Memo(64 * MIB, len)
        self._graphs: Memo[GraphKey, Graph] = Memo(50_000, lambda graph: len(graph.nodes))

    def add(self, data: bytes) -> str:
        """Stores a model without its weights; returns its id. Raises InvalidGraph."""
        from predictor.features.reading.strip import strip_model

        stripped = strip_model(data)
        model_id = _MODEL_ID + hashlib.sha256(stripped).hexdigest()
        self._models.put(model_id, stripped)
        return model_id

    def __contains__(self, model_id: object) -> bool:
        return model_id in self._models

    def key(self, source: GraphSource) -> Hashable:
        """Identity of the source's present content; cheap for paths (size and modification time)."""
        if isinstance(source, Graph):
            return source.fingerprint
        if isinstance(source, bytes):
            return hashlib.sha256(source).digest()
        if isinstance(source, str) and source.startswith(_MODEL_ID):
            return source
        if not isinstance(source, str) and isinstance(source, ProgramSource):
            return source.key
        path = os.fspath(source)
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            # ValueError: a zero byte in the path.
            reason = getattr(error, "strerror", None) or error
            raise InvalidGraph(f"{path}: {reason}; expected a readable ONNX file", path=path) from None
        return path, status.st_mtime_ns, status.st_size, status.st_ino

    def graph(self, source: FileSource | Graph, binding: Binding) -> Graph:
        """The bound graph. Raises InvalidGraph, UnboundSymbol or UnknownGraph."""
        if isinstance(source, Graph):
            return source
        return self._graphs.get_or((self.key(source), binding.key), lambda: self._read(source, binding))

    def _read(self, source: FileSource, binding: Binding) -> Graph:
        from predictor.features.reading.reader import read_graph

        if isinstance(source, str) and source.startswith(_MODEL_ID):
            stored = self._models.get(source)
            if stored is None:
                raise UnknownGraph(
                    f"unknown graph {source}: this predictor has not seen it; add the model's bytes first",
                    graph=source,
                )
            source = stored
        content = source if isinstance(source, bytes) else Path(source)
        return read_graph(content, batch=binding.batch, dims=binding.dims, input_shapes=binding.input_shapes)
