"""The front door of features/: an ONNX path or bytes in, a bound and clean Graph out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto

from predictor.errors import InvalidGraph
from predictor.features.collector import without_collection
from predictor.features.fingerprint import fingerprint
from predictor.features.graph import Graph, Node
from predictor.features.reading.binding import bind, file_symbols
from predictor.features.reading.body_weights import with_outer_weights
from predictor.features.reading.cleanup import clean_up
from predictor.features.reading.hints import NO_HINTS, split_dims
from predictor.features.reading.model_file import ModelSource, load_model
from predictor.features.reading.onnx_convert import to_graph
from predictor.features.reading.structure import check_initializers, inline_functions, normal_domain
from predictor.features.reading.type_inference import infer_types

_NONE: Mapping[str, int] = MappingProxyType({})
_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})
_LISTED = 8
_FIRST_WITH_SHAPES = 7


def read_graph(
    source: ModelSource,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] = _NONE,
    input_shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
) -> Graph:
    """Reads a model, binds its symbols, infers every shape, drops exporter noise. Weights are never loaded.

    Args:
        source: path of an .onnx file, or its bytes. External weight files may be absent.
        batch: number for the leading dimension of the inputs; None keeps the file's own, or 1 where symbolic.
        dims: numbers for symbolic dimensions by name. Beside them, what depends on data
            (predictor.features.reading.hints): sizes, trip counts, branches, elements of integer inputs.
        input_shapes: whole shapes by input name. Numbers that contradict each other are refused.

    Raises:
        InvalidGraph: not ONNX, damaged, badly wired, or shapes that depend on data.
        InvalidRequest: numbers that the graph contradicts.
        UnboundSymbol: dimensions are left without a number; all are listed.
        UnknownName: an input or symbol that the graph does not have.
    """
    model = load_model(source)
    try:
        graph = graph_of(model, batch=batch, dims=dims, input_shapes=input_shapes)
    except (UnicodeError, DecodeError, EncodeError) as error:
        raise InvalidGraph(
            f"the model's names or fields are damaged: {' '.join(str(error).split())}"
        ) from None
    return graph


def graph_of(
    model: ModelProto,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] = _NONE,
    input_shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
) -> Graph:
    """`read_graph` for a model already loaded by `model_file.load_model`; the model is left as it is."""
    with without_collection(len(model.graph.node)):
        return _graph_of(model, batch, dims, input_shapes)


def _graph_of(
    model: ModelProto,
    batch: int | None,
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[int, ...]],
) -> Graph:
    model = with_outer_weights(inline_functions(model))
    check_initializers(model.graph)
    opsets = {normal_domain(item.domain): item.version for item in model.opset_import}
    numbers, hints = split_dims(dims, file_symbols(model)) if dims else ({}, NO_HINTS)
    binding = bind(model, batch, numbers, input_shapes, hints.lengths)
    typed = infer_types(model, binding, opsets, hints)
    graph = clean_up(to_graph(model, binding, typed, opsets))
    _check_complete(graph)
    return replace(graph, fingerprint=fingerprint(graph))


def _check_complete(graph: Graph) -> None:
    """Raises InvalidGraph listing every value that is used, given or returned and has no known type."""
    operands = (name for node in graph.nodes for name in (*node.inputs, *node.outputs))
    weights = sorted((graph.parameters | graph.buffers) - graph.values.keys())
    named = chain(operands, graph.inputs, graph.outputs, weights)
    unknown = list(dict.fromkeys(name for name in named if name and name not in graph.values))
    if not unknown:
        return
    producers = {name: node for node in graph.nodes for name in node.outputs}
    # The first in a chain of unknown values is the cause; the rest only follow from it.
    causes = [
        name
        for name in unknown
        if name not in producers or all(given in graph.values for given in producers[name].inputs if given)
    ]
    listed = ", ".join(
        f"{name!r} (from {producers[name].op_type} {producers[name].name!r})"
        if name in producers
        else repr(name)
        for name in (causes or unknown)[:_LISTED]
    )
    causing = [producers[name] for name in causes if name in producers]
    raise InvalidGraph(
        f"{len(unknown)} {'value has' if len(unknown) == 1 else 'values have'} a shape or element type that "
        f"cannot be known before running: {listed}. {_remedy(graph, causing)}",
        values=",".join(unknown),
    )


def _remedy(graph: Graph, causing: Sequence[Node]) -> str:
    """What to try, by what the nodes lack that make the first unknown values."""
    absent = dict.fromkeys(
        name
        for node in causing
        for name in node.inputs
        if name in graph.parameters | graph.buffers
        and name not in graph.constants
        and name in graph.values
        and not graph.values[name].dtype.is_float
    )
    if absent:
        listed = ", ".join(map(repr, list(absent)[:_LISTED]))
        return (
            f"The numbers of {listed} lie outside the file, and such files are not read; save the model with "
            "small tensors inside (onnx.save_model with size_threshold=1024)"
        )
    version = graph.opsets.get("", _FIRST_WITH_SHAPES)
    if version < _FIRST_WITH_SHAPES:
        return (
            f"ONNX infers no shapes for many operators of operator set {version}; convert the file with "
            "onnx.version_converter"
        )
    return (
        "Give sizes that depend on data with --dim NODE.out.0=N, the elements of an integer input with --dim "
        "INPUT[0]=N, or declare the shape (value_info) in the file"
    )
