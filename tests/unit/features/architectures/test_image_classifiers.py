"""Image classifiers against published sizes: parameters exactly, multiply-adds within 2 % or half a digit."""

from __future__ import annotations

import pytest

from predictor.features.architectures import architecture
from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

# Parameters and GMACs per image, as the documentation of torchvision 0.20 lists them (weights tables).
TORCHVISION = {
    "alexnet": (61_100_840, 0.71),
    "densenet121": (7_978_856, 2.83),
    "densenet161": (28_681_000, 7.73),
    "densenet169": (14_149_480, 3.36),
    "densenet201": (20_013_928, 4.29),
    "efficientnet_b0": (5_288_548, 0.39),
    "efficientnet_b1": (7_794_184, 0.69),
    "efficientnet_b4": (19_341_616, 4.39),
    "efficientnet_b7": (66_347_960, 37.75),
    "googlenet": (6_624_904, 1.50),
    "inception_v3": (23_834_568, 5.71),
    "mnasnet0_5": (2_218_512, 0.10),
    "mnasnet0_75": (3_170_208, 0.215),
    "mnasnet1_0": (4_383_312, 0.31),
    "mnasnet1_3": (6_282_256, 0.53),
    "mobilenet_v2": (3_504_872, 0.30),
    "regnet_x_8_0gf": (39_572_648, 8.00),
    "regnet_x_32gf": (107_811_560, 31.74),
    "regnet_y_400mf": (4_344_144, 0.40),
    "regnet_y_16gf": (83_590_140, 15.91),
    "resnet18": (11_689_512, 1.81),
    "resnet34": (21_797_672, 3.66),
    "resnet50": (25_557_032, 4.09),
    "resnet101": (44_549_160, 7.80),
    "resnet152": (60_192_808, 11.51),
    "resnext50_32x4d": (25_028_904, 4.23),
    "resnext101_32x8d": (88_791_336, 16.41),
    "shufflenet_v2_x0_5": (1_366_792, 0.04),
    "shufflenet_v2_x1_0": (2_278_604, 0.14),
    "shufflenet_v2_x1_5": (3_503_624, 0.30),
    "shufflenet_v2_x2_0": (7_393_996, 0.58),
    "squeezenet1_0": (1_248_424, 0.82),
    "squeezenet1_1": (1_235_496, 0.35),
    "vgg11": (132_863_336, 7.61),
    "vgg11_bn": (132_868_840, 7.61),
    "vgg13": (133_047_848, 11.31),
    "vgg13_bn": (133_053_736, 11.31),
    "vgg16": (138_357_544, 15.47),
    "vgg16_bn": (138_365_992, 15.47),
    "vgg19": (143_667_240, 19.63),
    "vgg19_bn": (143_678_248, 19.63),
    "wide_resnet50_2": (68_883_240, 11.40),
    "wide_resnet101_2": (126_886_696, 22.75),
}


KERAS = {
    # 25,636,712 in Keras, whose counts have the 53,120 running statistics of its norms.
    "keras_resnet50": (25_583_592, 3.86),
    "keras_vgg16": (14_714_688 + 513_000, 15.35),
}


@pytest.mark.parametrize("name", sorted(TORCHVISION | KERAS))
def test_has_the_published_parameters_and_multiply_adds(name: str) -> None:
    parameters, gmacs = (TORCHVISION | KERAS)[name]
    graph = read_graph(architecture(name, batch=1))
    assert graph.parameter_count == parameters
    program = build_program(
        graph, mode=Mode.INFER, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    counted = sum(op.work.matrix_flops for op in program.ops) / 2e9
    assert counted == pytest.approx(gmacs, rel=0.02, abs=0.0051)


@pytest.mark.parametrize(
    ("name", "parameters"), [("inception_v3", 27_161_264), ("googlenet", 13_004_888), ("vgg16", 138_357_544)]
)
def test_training_adds_the_auxiliary_classifiers_and_dropouts(name: str, parameters: int) -> None:
    graph = read_graph(architecture(name, batch=2, training=True))
    assert graph.parameter_count == parameters
    assert any(node.op_type == "Dropout" for node in graph.nodes)


def test_resnet18_for_cifar_keeps_small_images_large() -> None:
    graph = read_graph(architecture("resnet18_cifar", batch=1))
    assert graph.parameter_count == 11_173_962
