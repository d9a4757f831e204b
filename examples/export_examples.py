"""Exports the reference models of `zoo/` as weight-stripped ONNX files beside this script.

    python examples/export_examples.py [NAME ...]

Needs perfcast with its extra `torch`. ResNet-50, MobileNetV2 and U-Net go through the TorchScript exporter,
the transformers through the `torch.export` one, so that the examples show both styles in the wild. Stripping
keeps every shape and type and replaces the weights by a reference to `weights.bin`, a file that does not
exist and that perfcast never opens.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from zoo.attention import GPT2, BertBase, ViTB16
from zoo.convolutional import MobileNetV2, ResNet50, UNet

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Example:
    """One export: the module, its inputs, the symbolic dimensions by axis, and which exporter runs."""

    module: Callable[[], nn.Module]
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]
    symbols: dict[int, str]
    parameters: int
    torch_export: bool


def image(size: int) -> dict[str, Tensor]:
    """A batch of two square RGB images (two, because torch.export treats a size of one as a constant)."""
    return {"image": torch.zeros(2, 3, size, size)}


def tokens(names: tuple[str, ...], length: int) -> dict[str, Tensor]:
    """A batch of two token sequences under several input names."""
    return {name: torch.zeros(2, length, dtype=torch.int64) for name in names}


BATCH = {0: "batch"}
BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
EXAMPLES = {
    "resnet50": Example(ResNet50, image(224), ("logits",), BATCH, 25_557_032, False),
    "mobilenet_v2": Example(MobileNetV2, image(224), ("logits",), BATCH, 3_504_872, False),
    "unet": Example(UNet, image(256), ("mask",), BATCH, 31_037_698, False),
    # The length of GPT-2 is fixed at its context, so that a prediction needs no `--dim`; BERT shows a symbol.
    "gpt2": Example(GPT2, tokens(("input_ids",), 1024), ("logits",), BATCH, 124_439_808, True),
    "bert_base": Example(
        BertBase,
        tokens(BERT_INPUTS, 128),
        ("hidden", "pooled"),
        {0: "batch", 1: "sequence"},
        109_482_240,
        True,
    ),
    "vit_b16": Example(ViTB16, image(224), ("logits",), BATCH, 86_567_656, True),
}


def export(example: Example) -> bytes:
    """ONNX bytes, weights included. Raises ValueError when the module has another size than published."""
    module = example.module().eval()
    count = sum(parameter.numel() for parameter in module.parameters())
    if count != example.parameters:
        raise ValueError(f"{type(module).__name__} has {count:,} parameters; expected {example.parameters:,}")
    # As after training, no two tensors are equal: the exporters merge equal ones and lose parameters.
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    arguments = tuple(example.inputs.values())
    names = list(example.inputs)
    if not example.torch_export:
        sink = io.BytesIO()
        axes = dict.fromkeys((*names, *example.outputs), example.symbols)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.onnx.export(
                # PRESERVE keeps batch normalisation as a node of its own: a job that trains runs it.
                module, arguments, sink, dynamo=False, opset_version=17, do_constant_folding=False,
                training=torch.onnx.TrainingMode.PRESERVE, input_names=names,
                output_names=list(example.outputs), dynamic_axes=axes,
            )  # fmt: skip
        return sink.getvalue()
    dimensions = {axis: torch.export.Dim(symbol) for axis, symbol in example.symbols.items()}
    with warnings.catch_warnings():
        # Inputs that share a symbol, and a class that torch itself has deprecated.
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            module, arguments, dynamo=True, verbose=False, input_names=names,
            output_names=list(example.outputs), dynamic_shapes=tuple(dimensions for _ in names),
        )  # fmt: skip
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    return program.model_proto.SerializeToString()


def main(selected: list[str]) -> None:
    """Export the named examples, or all of them."""
    from predictor.features.reading.strip import strip_model

    for name in selected or EXAMPLES:
        payload = strip_model(export(EXAMPLES[name]))
        path = HERE / f"{name}.onnx"
        path.write_bytes(payload)
        print(f"{path.name}: {len(payload):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
