"""What `perfcast profile` runs when nothing is named: operators of several sizes, and small networks."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.models.corpus.built_graphs import graph_key
from predictor.types import Mode, Optimizer, Precision


@dataclass(frozen=True, slots=True)
class Case:
    """A graph, as predictor.models.profiling.rows names it, and how it runs."""

    graph: str
    batch: int
    mode: Mode = Mode.INFER
    precision: Precision = Precision.FP32
    optimizer: Optimizer = Optimizer.SGD


def _operators() -> tuple[Case, ...]:
    matmul = [(256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (64, 4096, 4096), (4096, 512, 128)]
    convolution: list[dict[str, int]] = [
        {"channels": 64, "filters": 64, "image": 56},
        {"channels": 256, "filters": 256, "image": 14},
        {"channels": 256, "filters": 64, "image": 56, "kernel": 1},
        {"channels": 144, "filters": 144, "image": 56, "groups": 144},
    ]
    return (
        *(Case(graph_key("micro_matmul", m=m, k=k, n=n), 1) for m, k, n in matmul),
        Case(graph_key("micro_batched_matmul", m=128, k=64, n=128), 96),
        *(Case(graph_key("micro_convolution", **sizes), 8) for sizes in convolution),
        *(
            Case(graph_key("micro_addition", elements=elements), 1)
            for elements in (1 << 16, 1 << 20, 1 << 24)
        ),
        Case(graph_key("micro_layer_norm", width=1024), 4096),
        Case(graph_key("micro_softmax", width=1024), 4096),
        Case("micro_launches", 1),
    )


OPERATORS = _operators()
MODELS = (
    Case("squeezenet1_1", 1),
    Case("mobilenet_v2", 1),
    Case("mobilenet_v2", 8),
    Case("shufflenet_v2_x1_0", 4),
    Case("mnasnet1_0", 2),
    Case("efficientnet_b0", 2),
    Case("resnet18", 1),
    Case("resnet18", 8),
    Case("resnet50", 4),
    Case("densenet121", 2),
    Case("googlenet", 4),
    Case("vgg11", 2),
    Case(graph_key("bert_base", sequence=128), 2),
    Case("mobilenet_v2", 4, Mode.TRAIN),
    Case("resnet18", 4, Mode.TRAIN),
    Case("squeezenet1_1", 4, Mode.TRAIN),
    Case("densenet121", 2, Mode.TRAIN, optimizer=Optimizer.MOMENTUM),
    Case("resnet50", 2, Mode.TRAIN, optimizer=Optimizer.ADAM),
)
STANDARD = OPERATORS + MODELS
