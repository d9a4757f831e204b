"""A transformer from the fields of its Hugging Face `config.json`, without torch, weights or downloads.

    onnx_bytes = from_config("config.json", batch=8, sequence=2048)

`model_type` chooses the family, `architectures` the head (or `task` does). Every size comes from the
configuration: heads of keys and values, latent ranks, experts, windows. Attention is one fused kernel where
the reference implementation (transformers 5) calls one. With `past_length` it is one step of a decoder that
carries a cache of keys and values. Weights are those of the precision asked for, or in few bits where a
`quantization_config` says so; what of it is not followed, `left_out` says. Counting: a causal layer computes
the lower triangle of its scores, as fused kernels do, while torch's FlopCounterMode counts the whole square;
every other product counts the same.
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
from predictor.features.architectures.huggingface.cache import Caches
from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.architectures.huggingface.job import Family, Job, Task
from predictor.features.architectures.huggingface.quantised import QuantisedBuilder
from predictor.features.architectures.huggingface.weight_methods import not_followed, weight_format
from predictor.features.builder import GraphBuilder

OPSET = 23
"""The first with an Attention operator."""
CACHE_OPSET = 24
"""The first with a cache that is written in place (TensorScatter)."""
_TOKENS = 512
_LARGEST_FILE_BYTES = 4 * 2**20
_LONGEST = 2**20

FAMILIES: Mapping[str, Family] = {
    name: family
    for module in (gpt, llama, mixtures, bert, deberta, t5, bart, vision)
    for name, family in module.FAMILIES.items()
}
"""`model_type` -> builder. A new family is one entry in its module's table."""

CACHES: Mapping[str, Caches] = {
    name: caches for module in (gpt, llama, mixtures, t5, bart) for name, caches in module.CACHES.items()
}
"""`model_type` -> what its decoder keeps per token."""

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
    sequence: int | None = None,
    task: Task | str | None = None,
    past_length: int | None = None,
    source_length: int | None = None,
    last_only: bool = False,
) -> bytes:
    """ONNX bytes of the model that a configuration describes; weights are external and absent.

    Args:
        config: the configuration, or the path of its `config.json`.
        batch: samples, or the name of a symbol that is bound when the graph is read.
        sequence: tokens per sample; of encoder and decoder alike where a model has both. Models of images
            take the size from the configuration. Default: 512, or 1 after cached tokens.
        task: the head; None takes it from `architectures`, or the body alone.
        past_length: tokens in the cache of keys and values before this step, of which `sequence` tokens are
            the new ones: 0 fills an empty cache (prefill), n makes one decoding step. None: no cache. The
            caches are inputs `past_key_values.LAYER.key` (`.value`, `.latent`), written in place.
        source_length: tokens that the encoder has read, where a model has one; default: `sequence`, or 512
            after cached tokens. Its keys and values are cached too: a step does not run the encoder.
        last_only: scores of words for the last token alone, as serving asks for.

    Raises:
        InvalidRequest: a field is missing or out of its domain, the file is no JSON object, or a cache is
            asked of a model without a decoder.
        UnknownName: a `model_type`, `task` or activation that perfcast does not know; near names are given.
        InvalidGraph: sizes that contradict each other.
    """
    fields = read_fields(config)
    name = fields.text("model_type")
    if name not in FAMILIES:
        raise UnknownName.among("model_type", name, FAMILIES, _instead(fields))
    if sequence is None:
        sequence = 1 if past_length else _TOKENS
    if not 0 < sequence <= _LONGEST or (isinstance(batch, int) and batch < 1):
        raise InvalidRequest(
            f"batch is {batch}, sequence {sequence}; expected at least 1 sample and 1 to {_LONGEST} tokens",
            field="sequence",
        )
    _check_cache(name, past_length, source_length)
    source = source_length or (_TOKENS if past_length else sequence)
    opset = OPSET if past_length is None else CACHE_OPSET
    stored = weight_format(fields)
    b = GraphBuilder(name, opset=opset) if stored is None else QuantisedBuilder(name, stored, opset=opset)
    job = Job(b, fields, batch, sequence, _task(fields, task), past_length, source, last_only)
    outputs = FAMILIES[name](job)
    return b.build([*outputs, *job.caches])


def read_fields(config: Mapping[str, Any] | str | os.PathLike[str]) -> Fields:
    """The fields of a configuration, or of the file at a path. Raises InvalidRequest for no JSON object."""
    return Fields(config) if isinstance(config, Mapping) else Fields(*_read(config))


def left_out(config: Mapping[str, Any] | str | os.PathLike[str]) -> str:
    """What a configuration asks for and its graph does not have, as one sentence; "" for nothing.

    Raises InvalidRequest for no JSON object.
    """
    return not_followed(read_fields(config))


_PARTS = ("text_config", "vision_config", "language_config", "llm_config", "encoder", "decoder")
"""Fields under which models of several parts keep the configuration of one."""


def _instead(fields: Fields) -> str:
    """What to do about a model of unknown type."""
    parts = {name: part for name in _PARTS if isinstance(part := fields.get(name), Mapping)}
    known = [name for name, part in parts.items() if part.get("model_type") in FAMILIES]
    if known:
        return f"Its parts are known: give what {' or '.join(known)} holds as a configuration of its own."
    return "Price it as a torch module (`perfcast predict PKG.MOD:FACTORY`), export it, or use GraphBuilder."


def _check_cache(name: str, past_length: int | None, source_length: int | None) -> None:
    if past_length is not None and name not in CACHES:
        raise InvalidRequest(
            f"model_type {name!r} has no decoder and keeps no cache; leave past_length out, or use one of "
            f"{', '.join(CACHES)}",
            field="past_length",
        )
    for field, value, least in (("past_length", past_length, 0), ("source_length", source_length, 1)):
        if value is not None and not least <= value <= _LONGEST:
            raise InvalidRequest(f"{field} is {value}; expected {least} to {_LONGEST} tokens", field=field)


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
