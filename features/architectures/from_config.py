"""A transformer from the fields of its Hugging Face `config.json`, without torch, weights or downloads.

    onnx_bytes = from_config("config.json", batch=8, sequence=2048)

`model_type` chooses the family, `architectures` the head (or `task` does). Every size comes from the
configuration: heads of keys and values, latent ranks, experts, windows. Attention is one fused kernel where
the reference implementation (transformers 5) calls one. Counting: a causal layer computes the lower triangle
of its scores, as fused kernels do, while torch's FlopCounterMode counts the whole square; every other product
counts the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.errors import InvalidRequest, UnknownName
from predictor.features.architectures.huggingface import (
    bart,
    bert,
    deberta,
    gpt,
    llama,
    mixtures,
    t5,
    vision,
)
from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.architectures.huggingface.job import Family, Job, Task
from predictor.features.builder import GraphBuilder

OPSET = 23
"""The first with an Attention operator."""
_LARGEST_FILE_BYTES = 4 * 2**20
_LONGEST = 2**20

FAMILIES: Mapping[str, Family] = {
    name: family
    for module in (gpt, llama, mixtures, bert, deberta, t5, bart, vision)
    for name, family in module.FAMILIES.items()
}
"""`model_type` -> builder. A new family is one entry in its module's table."""

# Endings of class names, longest first; anything else is the body alone.
_TASKS: tuple[tuple[str, Task], ...] = (
    ("ForImageClassificationWithTeacher", Task.CLASSIFIER),
    ("ForConditionalGeneration", Task.LANGUAGE),
    ("ForSequenceClassification", Task.CLASSIFIER),
    ("ForImageClassification", Task.CLASSIFIER),
    ("ForTokenClassification", Task.TOKENS),
    ("ForQuestionAnswering", Task.SPANS),
    ("WithLMHeadModel", Task.LANGUAGE),
    ("ForPreTraining", Task.PRETRAINING),
    ("WithProjection", Task.PROJECTION),
    ("ForCausalLM", Task.LANGUAGE),
    ("ForMaskedLM", Task.LANGUAGE),
    ("LMHeadModel", Task.LANGUAGE),
    ("MTModel", Task.LANGUAGE),
)


def from_config(
    config: Mapping[str, Any] | str | os.PathLike[str],
    *,
    batch: int | str = "batch",
    sequence: int = 512,
    task: Task | str | None = None,
) -> bytes:
    """ONNX bytes of the model that a configuration describes; weights are external and absent.

    Args:
        config: the configuration, or the path of its `config.json`.
        batch: samples, or the name of a symbol that is bound when the graph is read.
        sequence: tokens per sample; of encoder and decoder alike where a model has both. Models of images
            take the size from the configuration.
        task: the head; None takes it from `architectures`, or the body alone.

    Raises:
        InvalidRequest: a field is missing or out of its domain, or the file is no JSON object.
        UnknownName: a `model_type`, `task` or activation that perfcast does not know; near names are given.
        InvalidGraph: sizes that contradict each other.
    """
    values, where = (config, "the configuration") if isinstance(config, Mapping) else _read(config)
    fields = Fields(values, where)
    name = fields.text("model_type")
    if name not in FAMILIES:
        raise UnknownName.among(
            "model_type", name, FAMILIES, "Export the model, or describe it with GraphBuilder."
        )
    if not 0 < sequence <= _LONGEST or (isinstance(batch, int) and batch < 1):
        raise InvalidRequest(
            f"batch is {batch}, sequence {sequence}; expected at least 1 sample and 1 to {_LONGEST} tokens",
            field="sequence",
        )
    b = GraphBuilder(name, opset=OPSET)
    outputs = FAMILIES[name](Job(b, fields, batch, sequence, _task(fields, task)))
    return b.build(outputs)


def _task(fields: Fields, task: Task | str | None) -> Task:
    if task is not None:
        if task not in set(Task):
            raise UnknownName.among("task", task, set(Task))
        return Task(task)
    named = fields.get("architectures")
    first = named[0] if isinstance(named, list | tuple) and named and isinstance(named[0], str) else ""
    return next((found for ending, found in _TASKS if first.endswith(ending)), Task.BASE)


def _read(path: str | os.PathLike[str]) -> tuple[Mapping[str, Any], str]:
    """The JSON object in a file, and what to call it in errors."""
    where = os.fspath(path)
    try:
        if Path(path).stat().st_size > _LARGEST_FILE_BYTES:
            raise InvalidRequest(f"{where}: larger than 4 MB; expected a config.json", field="config")
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise InvalidRequest(
            f"{where}: {error.strerror or error}; expected a readable config.json", field="config"
        ) from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(
            f"{where}: not JSON ({reason}); expected a config.json", field="config"
        ) from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{where}: holds no JSON object; expected a config.json", field="config")
    return found, where
