"""Image classifiers that tf.keras.applications builds unlike torchvision: bare VGG, ResNet v1.

Keras names a backbone (`include_top=False`) what torchvision calls a network; users put a mean over positions
and one linear layer on it. Facts: keras-team/keras, applications/vgg16.py and resnet.py.
"""

from __future__ import annotations

from predictor.features.architectures.cnn import classifier
from predictor.features.builder import GraphBuilder, Tensor


def keras_vgg16(*, batch: int | str = "batch", image: int = 224, classes: int = 1000) -> bytes:
    """VGG-16 (Simonyan & Zisserman 2014) up to its last pool: 14,714,688 parameters, then one layer."""
    b = GraphBuilder("keras_vgg16")
    x = b.input("image", (batch, 3, image, image))
    for channels, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = b.relu(b.conv(x, channels, kernel=3, bias=True))
        x = b.max_pool(x, kernel=2)
    return b.build([classifier(b, x, classes)])


def keras_resnet50(*, batch: int | str = "batch", image: int = 224, classes: int = 1000) -> bytes:
    """ResNet-50 v1 (He et al. 2015), stride on the first 1x1, biases before norms: 25,583,592 parameters."""
    b = GraphBuilder("keras_resnet50")
    x = b.relu(_conv_norm(b, b.input("image", (batch, 3, image, image)), 64, 7, 2))
    x = b.max_pool(x, kernel=3, stride=2, padding=1)
    for stage, depth in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            y = b.relu(_conv_norm(b, x, width, 1, stride))
            y = _conv_norm(b, b.relu(_conv_norm(b, y, width, 3)), 4 * width, 1)
            x = b.relu(b.add(y, x if index else _conv_norm(b, x, 4 * width, 1, stride)))
    return b.build([classifier(b, x, classes)])


def _conv_norm(b: GraphBuilder, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
    return b.batch_norm(b.conv(x, channels, kernel=kernel, stride=stride, bias=True))


KERAS_CNNS = {"keras_vgg16": keras_vgg16, "keras_resnet50": keras_resnet50}
