"""Published architectures: sizes as published, errors for what does not exist."""

from __future__ import annotations

from collections import Counter

import pytest

from predictor.errors import InvalidRequest, UnknownName
from predictor.features.architectures import ARCHITECTURES, Head, TransformerConfig, architecture, transformer
from predictor.features.architectures.transformer import bert_like, gpt2_like
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Phase
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

# Trainable parameters. Transformers: published checkpoints (BERT, GPT-2, OPT-1.3B). Image models: those of
# torchvision (ResNet-50, VGG-16, MobileNetV2, ShuffleNetV2 x1.0) and of Keras (Xception, NASNetMobile).
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "opt_13": 1_315_758_080,
    "bert_base": 109_482_240 + 2 * 768 + 2,
    "bert_large": 335_141_888 + 2 * 1024 + 2,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "mobilenet_v2": 3_504_872,
    "shufflenet_v2": 2_278_604,
    "xception": 22_855_952,
    "nasnet_mobile": 5_289_978,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_has_as_many_parameters_as_published(name: str) -> None:
    graph = read_graph(architecture(name, batch=2))
    assert graph.parameter_count == PUBLISHED[name]
    assert graph.batch == 2


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_value_has_a_shape_and_nothing_is_unused(name: str) -> None:
    graph = read_graph(architecture(name, batch=1))
    touched = {value for node in graph.nodes for value in (*node.inputs, *node.outputs) if value}
    assert touched <= set(graph.values)
    assert graph.parameters <= touched


def test_switch_base_has_the_published_dense_part() -> None:
    # google/switch-base-8 without its experts is T5-base: 222,903,552 parameters with a tied head.
    graph = read_graph(architecture("switch4", batch=1))
    experts = 12 * 4 * 2 * 768 * 3072
    dense_twins = 12 * 2 * 768 * 3072
    routers = 12 * 768 * 4
    assert graph.parameter_count == 222_903_552 - dense_twins + experts + routers


def test_a_symbolic_batch_is_bound_when_read() -> None:
    data = architecture("gpt2", sequence=64)
    assert read_graph(data, batch=3).values["input_ids"].shape == (3, 64)


def test_the_batch_changes_no_parameter() -> None:
    counts = {
        read_graph(architecture("shufflenet_v2", image=32, classes=100), batch=b).parameter_count
        for b in (1, 8)
    }
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        (gpt2_like(2, 64, 4), {"labels"}),
        (bert_like(2, 64, 4, Head.CLASSIFIER), {"labels"}),
        (bert_like(2, 64, 4, Head.SPANS), {"labels", "second_labels"}),
        (bert_like(2, 64, 4, Head.PRETRAINING), {"labels", "second_labels"}),
    ],
)
def test_a_loss_is_one_number_and_asks_for_labels(config: TransformerConfig, labels: set[str]) -> None:
    graph = read_graph(transformer(config, batch=2, sequence=16, training=True))
    assert [graph.values[name].shape for name in graph.outputs] == [()]
    assert labels == {name for name in graph.inputs if name.endswith("labels")}


def test_dropout_stands_in_training_only() -> None:
    def dropouts(training: bool) -> int:
        graph = read_graph(transformer(gpt2_like(2, 64, 4), batch=2, sequence=16, training=training))
        return sum(node.op_type == "Dropout" for node in graph.nodes)

    # One after the embeddings, three per layer.
    assert (dropouts(True), dropouts(False)) == (7, 0)


def kinds_of(data: bytes, mode: Mode) -> Counter[str]:
    found = build_program(
        read_graph(data), mode=mode, precision=Precision.FP32, optimizer=Optimizer.NONE, runtime=Runtime.EAGER
    )
    return Counter(op.work.kind for op in found.ops if op.work.phase is Phase.FORWARD)


def test_an_eager_gpt2_layer_runs_the_kernels_that_neusight_traced() -> None:
    # NeuSight's operator graph of gpt2_large, one layer (inference): products, pointwise and row kernels.
    kinds = kinds_of(transformer(gpt2_like(1, 1280, 20), batch=4), Mode.INFER)
    assert kinds["linear"] == 5
    assert kinds["bmm"] == 2
    assert kinds["layer_norm"] == 3
    assert kinds["softmax"] == kinds["tanh"] == kinds["pow"] == kinds["div"] == kinds["where"] == 1
    # Embeddings and residuals (three sums), and GELU's own: four products, two sums, a power, a tanh.
    assert (kinds["mul"], kinds["add"]) == (4, 5)
    assert kinds["attention"] == kinds["gelu"] == 0


def test_an_eager_bert_layer_runs_the_kernels_that_neusight_traced() -> None:
    kinds = kinds_of(transformer(bert_like(1, 1024, 16), batch=8), Mode.INFER)
    assert (kinds["linear"], kinds["bmm"], kinds["gelu"], kinds["layer_norm"]) == (8, 2, 1, 3)
    assert (kinds["div"], kinds["softmax"], kinds["tanh"]) == (1, 1, 1)
    assert kinds["add"] == 5


def test_training_drops_where_the_implementation_drops() -> None:
    data = transformer(gpt2_like(1, 64, 4), batch=2, sequence=16, training=True)
    assert kinds_of(data, Mode.TRAIN)["dropout"] == 4


def test_small_images_take_the_small_stem() -> None:
    graph = read_graph(architecture("shufflenet_v2", batch=1, image=32, classes=100))
    first = next(node for node in graph.nodes if node.op_type == "Conv")
    assert graph.values[first.outputs[0]].shape == (1, 24, 32, 32)


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(UnknownName, match="gpt2_large"):
        architecture("gpt2-large")


def test_a_sequence_beyond_the_position_table_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="sequence is 2048; expected 1 to 1024"):
        architecture("gpt2", sequence=2048)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(InvalidRequest, match="width 100 is not a multiple of 3"):
        gpt2_like(1, 100, 3)


def test_a_pooler_has_no_loss() -> None:
    with pytest.raises(InvalidRequest, match="head pooler has no loss"):
        transformer(bert_like(1, 64, 4, Head.POOLER), training=True)
