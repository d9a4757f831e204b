"""Images to images: CycleGAN with all passes of one training step."""

from __future__ import annotations

from predictor.features.builder import GraphBuilder, Tensor


def cyclegan(*, batch: int = 1, image: int = 256, training: bool = False) -> bytes:
    """CycleGAN (Zhu et al. 2017), both directions: generators of nine residual blocks, 70x70 discriminators.

    With `training` one step's passes: each generator maps its domain, the other's output and its own target;
    discriminators see fakes (for the generators) and then real and stored images.
    """
    b = GraphBuilder("cyclegan")
    real = [b.input(name, (batch, 3, image, image)) for name in ("horse", "zebra")]
    if not training:
        return b.build([_generator(b, real[0], "forward")])
    fake = [_generator(b, real[0], "forward"), _generator(b, real[1], "backward")]
    cycled = [_generator(b, fake[0], "backward"), _generator(b, fake[1], "forward")]
    same = [_generator(b, real[1], "forward"), _generator(b, real[0], "backward")]
    names = ("zebra", "horse")
    judged = [_discriminator(b, x, name) for x, name in zip(fake, names, strict=True)]
    stored = [b.input(f"stored.{name}", (batch, 3, image, image)) for name in names]
    # The discriminators of this pass get their gradient anew; their weights are counted once.
    for place, name in enumerate(names):
        judged += [_discriminator(b, x, name) for x in (real[1 - place], stored[place])]
    losses = [_mean_square(b, x) for x in judged]
    wanted = (*real, real[1], real[0])
    losses += [_mean_distance(b, x, y) for x, y in zip((*cycled, *same), wanted, strict=True)]
    total = losses[0]
    for loss in losses[1:]:
        total = b.add(total, loss)
    return b.build([total])


def _generator(b: GraphBuilder, x: Tensor, key: str) -> Tensor:
    with b.shared_weights(f"generator.{key}"):
        x = b.relu(_normed(b, b.conv(_reflected(b, x, 3), 64, kernel=7, padding=0, bias=True)))
        for channels in (128, 256):
            x = b.relu(_normed(b, b.conv(x, channels, kernel=3, stride=2, bias=True)))
        for _ in range(9):
            y = b.relu(_normed(b, b.conv(_reflected(b, x, 1), 256, kernel=3, padding=0, bias=True)))
            x = b.add(x, _normed(b, b.conv(_reflected(b, y, 1), 256, kernel=3, padding=0, bias=True)))
        for channels in (128, 64):
            x = b.relu(_normed(b, b.conv_transpose(x, channels, kernel=2, stride=2)))
        return b.tanh(b.conv(_reflected(b, x, 3), 3, kernel=7, padding=0, bias=True))


def _discriminator(b: GraphBuilder, x: Tensor, key: str) -> Tensor:
    with b.shared_weights(f"discriminator.{key}"):
        for place, channels in enumerate((64, 128, 256, 512)):
            x = b.conv(x, channels, kernel=4, stride=2 if place < 3 else 1, padding=1, bias=True)
            x = b.op("LeakyRelu", [_normed(b, x) if place else x], alpha=0.2)
        return b.conv(x, 1, kernel=4, padding=1, bias=True)


def _normed(b: GraphBuilder, x: Tensor) -> Tensor:
    """Instance normalisation without parameters: scale and shift are constants."""
    width = (x.size(1),)
    y: Tensor = b.op("InstanceNormalization", [x, b.constant([1.0] * width[0]), b.constant([0.0] * width[0])])
    return y


def _reflected(b: GraphBuilder, x: Tensor, by: int) -> Tensor:
    padded: Tensor = b.op("Pad", [x, b.constant([0, 0, by, by, 0, 0, by, by])], mode="reflect")
    return padded


def _mean_square(b: GraphBuilder, x: Tensor) -> Tensor:
    error = b.sub(x, b.constant(1.0))
    loss: Tensor = b.op("ReduceMean", [b.mul(error, error)], keepdims=0)
    return loss


def _mean_distance(b: GraphBuilder, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = b.op("ReduceMean", [b.op("Abs", [b.sub(x, y)])], keepdims=0)
    return loss
