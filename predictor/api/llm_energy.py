"""Energy of served decoders: joules per request and token, prefill and decode apart, from a `config.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.errors import InvalidBundle, InvalidInput
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceSpec
from predictor.models.bundle import Bundle
from predictor.models.power.llm_shape import LlmShape, llm_shape, published_shapes
from predictor.models.power.serving import MODEL_NAME, ServingAnswer, ServingJob, ServingModel

_LARGEST_FILE_BYTES = 4 * 2**20


def find_llm(model: str | os.PathLike[str] | Mapping[str, Any]) -> LlmShape:
    """The sizes of a decoder: of a published name, a `config.json` file, or its fields.

    Raises InvalidInput when a file is no JSON object, InvalidRequest when a field is missing.
    """
    fields = llm_fields(model)
    return published_shapes()[fields] if isinstance(fields, str) else llm_shape(fields)


def llm_fields(model: str | os.PathLike[str] | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A published name as it is, else the fields of a `config.json`. Raises InvalidInput as `find_llm`."""
    if isinstance(model, Mapping):
        return model
    return str(model) if str(model) in published_shapes() else _read_config(Path(model))


def weight_method(fields: str | Mapping[str, Any]) -> str:
    """How `llm_fields` say that weights are stored (`fp8`, `mxfp4` ...); "" where they do not."""
    stored = None if isinstance(fields, str) else fields.get("quantization_config")
    return str(stored.get("quant_method") or "few bits") if isinstance(stored, Mapping) else ""


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise InvalidInput(f"{path}: larger than any config.json; expected a few KB", file=path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        names = ", ".join(sorted(published_shapes())[:3])
        raise InvalidInput(
            f"{path}: cannot be read ({error.strerror}); expected a config.json, or a name such as {names}",
            file=path,
        ) from None
    except ValueError as error:
        raise InvalidInput(f"{path}: is no JSON ({error}); expected a config.json", file=path) from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path}: holds no object; expected the fields of a config.json", file=path)
    return content


def llm_energy(
    model: str | os.PathLike[str] | Mapping[str, Any],
    device: str | DeviceSpec,
    *,
    batch: int,
    prompt_tokens: float,
    output_tokens: float,
    devices: int = 1,
    replicas: int = 1,
    expert_parallel: int = 1,
    weight_bits: int = 16,
    task: str = "chat",
    bundle: str | Path | None = None,
) -> ServingAnswer:
    """What it takes to serve a decoder in batches of `batch` sequences.

    Args:
        model: published name, `config.json`, or its fields.
        device: catalogue id or DeviceSpec; `devices` of them in one node.
        batch: most sequences at once; fewer where the cache holds fewer.
        prompt_tokens, output_tokens: means of a request.
        replicas, expert_parallel, weight_bits, task: as in `ServingJob`.
        bundle: trained models; None is the bundle that ships.

    Raises InvalidInput (and its subclasses), InvalidBundle when the bundle serves no decoders.
    """
    spec = device if isinstance(device, DeviceSpec) else find_device(device)
    job = ServingJob(
        shape=find_llm(model),
        devices=devices,
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        replicas=replicas,
        expert_parallel=expert_parallel,
        weight_bits=weight_bits,
        task=task,
    )
    loaded = Bundle.load(bundle)
    if MODEL_NAME not in loaded.models:
        raise InvalidBundle(
            f"{loaded.path}: holds no model of served decoders; run `perfcast train` on a corpus with "
            "ml-energy-leaderboard-v3"
        )
    return ServingModel.from_bundle(loaded).predict(job, spec)
