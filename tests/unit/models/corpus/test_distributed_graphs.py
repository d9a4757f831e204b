"""Graphs of published runs: what their tables imply and do not say."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.reading.reader import read_graph
from predictor.models.corpus.distributed_graphs import Recipe, build

GPT = Recipe("gpt", 2, 256, 1024, 4, 4, 0, 1000, sequence=128, flash=False)


def test_attention_weights_drop_out_where_the_recipe_says_so() -> None:
    def dropped(recipe: Recipe) -> int:
        return sum(node.op_type == "Dropout" for node in read_graph(build(recipe), batch=2).nodes)

    assert dropped(GPT) == 2
    assert dropped(replace(GPT, drops=False)) == 0


def test_decoder_of_t5_writes_a_quarter_of_what_its_encoder_reads() -> None:
    graph = read_graph(build(replace(GPT, style="t5", sequence=512)), batch=2)
    assert sorted(graph.values[name].shape for name in graph.inputs) == [(2, 128), (2, 512)]
