"""What questions about memory cost once a graph is known (M5): one query, and the search for what fits.

    python benchmarks/memory_fit.py [--write]

CPU time of this thread, medians over fresh predictors with the graph read and the asked job answered once: a
query is the same job on other devices, a fit the largest batch on one of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TYPE_CHECKING

from record import table, write

if TYPE_CHECKING:
    from predictor.request import PredictionRequest

REPEATS = 7
QUERY_GOAL_MS, FIT_GOAL_MS = 5.0, 100.0
_DEVICES = ("a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "v100-sxm-32gb", "a10g-pcie-24gb")


def jobs() -> Mapping[str, bytes]:
    """Names of models -> their graphs."""
    from predictor.features.architectures.from_config import from_config

    gpt2 = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    bert = {
        "model_type": "bert",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
    }
    vit = {
        "model_type": "vit",
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "hidden_act": "gelu",
        "architectures": ["ViTForImageClassification"],
    }
    llama = {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
    }
    return {
        "GPT-2, 1,024 tokens": from_config(gpt2, sequence=1024),
        "BERT-base, 512 tokens": from_config(bert, sequence=512),
        "ViT-B/16": from_config(vit),
        "Llama-3.2-1B, 2,048 tokens": from_config(llama, sequence=2048),
    }


def cpu_ms(ask: Callable[[PredictionRequest], object], request: PredictionRequest) -> float:
    """CPU milliseconds of one question in this thread."""
    start_s = time.thread_time()
    ask(request)
    return (time.thread_time() - start_s) * 1e3


def measure(data: bytes) -> tuple[float, float, float, int]:
    """Medians in ms of one query, of the first fit and of the next on another device, and the ops."""
    from predictor.api import Predictor
    from predictor.request import PredictionRequest
    from predictor.types import Mode, Optimizer, Precision

    queries, firsts, nexts, ops = [], [], [], 0
    for _ in range(REPEATS):
        predictor = Predictor.load()
        graph = predictor.add_graph(data)
        asked = [
            PredictionRequest(graph, name, 8, Mode.TRAIN, precision=Precision.AMP, optimizer=Optimizer.ADAMW)
            for name in _DEVICES
        ]
        ops = len(predictor.rank(asked[0]).program.ops)
        predictor.memory(asked[0])
        queries += [cpu_ms(predictor.memory, request) for request in asked[1:]]
        firsts.append(cpu_ms(predictor.fit, asked[1]))
        nexts.append(cpu_ms(predictor.fit, asked[2]))
    return median(queries), median(firsts), median(nexts), ops


def main() -> None:
    """Prints the table, and writes it with --write."""
    from predictor.models.bundle import Bundle

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/memory-fit.md")
    write_it = parser.parse_args().write
    rows = []
    for name, data in jobs().items():
        query, first, again, ops = measure(data)
        rows.append((name, f"{ops:,}", f"{query:.2f} ms", f"{first:.0f} ms", f"{again:.0f} ms"))
    header = (
        "model, training with AdamW",
        "ops",
        f"one query (goal {QUERY_GOAL_MS:g} ms)",
        f"fit (goal {FIT_GOAL_MS:g} ms)",
        "fit on another device",
    )
    body = "Medians of CPU time once the graph is known.\n\n" + table(header, rows)
    print(body)
    if write_it:
        print(
            write(
                "memory-fit",
                "Questions about memory",
                "python benchmarks/memory_fit.py --write",
                Bundle.load().id,
                body,
            )
        )


if __name__ == "__main__":
    main()
