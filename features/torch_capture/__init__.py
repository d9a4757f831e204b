"""The torch front end: what a module asks of a device, captured without running it.

    model = TorchModel(module, (torch.empty(8, 3, 224, 224),))
    Predictor.load().predict(PredictionRequest(model, device="h100-sxm-80gb", mode="train"))

A module runs once on fake tensors (shapes without contents), with autograd and the optimizer as they are, and
every operator that reaches the dispatcher is written down: the forward pass, the backward pass that autograd
really runs, and the optimizer's step. Operators are priced by the same rules as ONNX nodes. torch is imported
when a module is captured, never before.
"""

from __future__ import annotations

from predictor.features.torch_capture.calls import Capture
from predictor.features.torch_capture.model import TorchModel

__all__ = ["Capture", "TorchModel"]
