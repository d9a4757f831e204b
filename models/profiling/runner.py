"""A graph as something that torch runs: random weights, inputs, one iteration at a time."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any

from predictor.errors import InvalidRequest, UnsupportedOp
from predictor.features.graph import Graph
from predictor.models.profiling.torch_ops import OPS, torch_types
from predictor.types import Mode, Optimizer, Precision

if TYPE_CHECKING:
    import torch

_PRECISIONS = (Precision.FP64, Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16, Precision.AMP)


def iteration(
    graph: Graph, *, mode: Mode, precision: Precision, optimizer: Optimizer, device: str
) -> Callable[[], None]:
    """One iteration of `graph` on a torch device, as a function without arguments; it does not wait for it.

    Training is a forward pass, a sum over the outputs as loss, backward, and the optimizer's step.
    Raises UnsupportedOp, naming every operator that has no torch call here, and InvalidRequest for a
    precision that torch cannot be asked for.
    """
    import torch

    if missing := sorted({node.op_type for node in graph.nodes if node.op_type not in OPS}):
        raise UnsupportedOp(
            f"no torch call here for {', '.join(missing)}; profile a module of your own instead, with its "
            "times in the row format",
            ops=",".join(missing),
        )
    if precision not in _PRECISIONS:
        raise InvalidRequest(f"precision {precision} cannot be profiled", field="precision")
    _set_tf32(torch, precision)
    job = _Job(graph, precision, device, torch, training=mode is Mode.TRAIN)
    if mode is Mode.INFER:
        return job.infer
    step = _optimizer(torch, optimizer, job.parameters)
    return lambda: job.train(step)


def _set_tf32(torch: Any, precision: Precision) -> None:
    allowed = precision is Precision.TF32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True


def _optimizer(torch: Any, optimizer: Optimizer, parameters: list[torch.Tensor]) -> Any:
    makers: dict[Optimizer, Callable[[], Any]] = {
        Optimizer.SGD: lambda: torch.optim.SGD(parameters, lr=1e-6),
        Optimizer.MOMENTUM: lambda: torch.optim.SGD(parameters, lr=1e-6, momentum=0.9),
        Optimizer.ADAM: lambda: torch.optim.Adam(parameters, lr=1e-6),
        Optimizer.ADAMW: lambda: torch.optim.AdamW(parameters, lr=1e-6),
    }
    return makers[optimizer]() if optimizer in makers and parameters else None


class _Job:
    def __init__(
        self, graph: Graph, precision: Precision, device: str, torch: Any, *, training: bool
    ) -> None:
        self.graph = graph
        self.torch = torch
        self.autocast = precision is Precision.AMP
        self.device = device
        types = torch_types(torch)
        uniform = {
            Precision.FP64: torch.float64,
            Precision.FP16: torch.float16,
            Precision.BF16: torch.bfloat16,
        }.get(precision)
        self.float = uniform or torch.float32
        generator = torch.Generator().manual_seed(0)
        self.fixed: dict[str, Any] = {}
        self.parameters: list[Any] = []
        leaves = {name for node in graph.nodes for name in node.inputs if name} - {
            name for node in graph.nodes for name in node.outputs
        }
        scales = _scales(graph)
        for name in sorted(leaves):
            value = graph.values[name]
            if not value.dtype.is_float:
                made = _integers(torch, graph, name, generator, types)
            elif name in scales:
                made = torch.randn(value.shape, generator=generator) * scales[name]
            else:
                made = torch.full(value.shape, 1.0) if name in graph.buffers else torch.ones(value.shape)
                if name in graph.inputs:
                    made = torch.randn(value.shape, generator=generator)
            if value.dtype.is_float:
                made = made.to(self.float)
            made = made.to(device)
            if training and name in graph.parameters:
                made.requires_grad_(True)
                self.parameters.append(made)
            self.fixed[name] = made

    def infer(self) -> None:
        with self.torch.no_grad():
            self._run()

    def train(self, step: Any) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        loss = sum(output.float().sum() for output in self._run() if output.requires_grad)
        if self.torch.is_tensor(loss):
            loss.backward()
        if step is not None:
            step.step()

    def _run(self) -> list[Any]:
        values = dict(self.fixed)
        context = self.torch.autocast(self.device.split(":")[0], enabled=self.autocast)
        with context:
            for node in self.graph.nodes:
                operands = [values[name] if name else None for name in node.inputs]
                made = OPS[node.op_type](operands, node, self.graph, self.torch)
                outputs = made if isinstance(made, tuple | list) else (made,)
                values.update(zip(node.outputs, outputs, strict=False))
        return [values[name] for name in self.graph.outputs]


def _scales(graph: Graph) -> dict[str, float]:
    """Spread of the weights of products, so that activations neither vanish into denormals nor overflow."""
    found: dict[str, float] = {}
    for node in graph.nodes:
        for name in node.inputs[1:2]:
            if name in graph.parameters and node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
                shape = graph.values[name].shape
                fan_in = graph.values[name].elements // max(
                    1, shape[0] if node.op_type == "Conv" else shape[-1]
                )
                found[name] = 1.0 / sqrt(max(1, fan_in))
    return found


def _integers(torch: Any, graph: Graph, name: str, generator: Any, types: Any) -> Any:
    value = graph.values[name]
    if name in graph.constants:
        return torch.tensor(graph.constants[name], dtype=types[value.dtype]).reshape(value.shape)
    rows = [
        graph.values[graph.nodes[index].inputs[0]].shape[0]
        for index in graph.consumers.get(name, ())
        if graph.nodes[index].op_type == "Gather"
    ]
    if types[value.dtype] is torch.bool:
        return torch.ones(value.shape, dtype=torch.bool)
    high = min(rows, default=2)
    return torch.randint(0, max(1, high), value.shape, generator=generator, dtype=torch.int64).to(
        types[value.dtype]
    )
