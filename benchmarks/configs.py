"""Transformers from configurations against transformers' own modules: parameters and FLOPs (G4).

    python benchmarks/configs.py [--write]       compares with the stored measurements
    python benchmarks/configs.py --measure       measures again; needs torch and transformers

Modules are made on torch's meta device: nothing is allocated, nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from record import ROOT, write

from predictor.evaluation.configs import MEASURED, compare, config_rows, config_table, read_references
from predictor.features.architectures.from_config import CACHES

FOLDER = ROOT / "tests" / "assets" / "configs"
BATCH, SEQUENCE = 2, 512
# Long enough for a window to matter, or as long as the positions go.
SEQUENCES = {
    "mistral-7b-v0.1": 6144,
    "starcoder2-3b": 6144,
    "phi-3-mini-4k": 4096,
    "gemma-2-9b": 6144,
    "gemma-3-1b": 2048,
    "olmo-3-7b": 6144,
    "command-r7b": 6144,
    "exaone-4.0-1.2b": 6144,
    "whisper-tiny": 448,
    "whisper-large-v3": 448,
    "clip-vit-base-patch32": 77,
    "clip-text-base": 77,
}


def measure(
    config: Mapping[str, Any], batch: int, sequence: int, architecture: str | None = None
) -> dict[str, int]:
    """Parameters and forward FLOPs of the module that `config` names, on the meta device."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module, settings = _module(config, architecture)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        module(**_inputs(settings, batch, sequence))
    sizes = [parameter.numel() for parameter in module.parameters()]
    return {
        "batch": batch,
        "sequence": sequence,
        "parameters": sum(sizes),
        "single_parameters": sum(size == 1 for size in sizes),
        "flops": int(counter.get_total_flops()),
    }


def _module(config: Mapping[str, Any], architecture: str | None) -> tuple[Any, Any]:
    """The module that `config` names, on the meta device, and its configuration."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    # The published MPT configurations carry the name of a class of their own.
    name = (architecture or config["architectures"][0]).replace("MPTFor", "MptFor")
    kind = getattr(transformers, name)
    settings = kind.config_class.from_dict(dict(config))
    with torch.device("meta"):
        module = kind(settings).eval()
    if "batched_mm" in _experts(module):
        # The counter does not know the grouped product; the batched one multiplies the same pairs.
        module.set_experts_implementation("batched_mm")
    if settings.is_encoder_decoder and settings.model_type not in ("t5", "whisper"):
        # The mask of the fused kernel looks into the padding, which meta tensors do not have.
        module.set_attn_implementation("eager")
    return module, settings


# Cached tokens: more than the window of Gemma 3, at most the positions of the others.
PAST = 400
PASTS = {"gemma-3-1b": 600, "opus-mt-en-de": 300}
# Their cache holds keys and values of every head, and each step expands nothing: other products than those
# of the latents that serving engines keep.
OTHER_CACHES = frozenset({"deepseek_v2", "deepseek_v3"})


def measure_step(config: Mapping[str, Any], batch: int, past: int) -> dict[str, int]:
    """FLOPs of one more token after `past` cached ones; nothing for a model without such a step."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    kind = config["model_type"]
    if kind not in CACHES or kind in OTHER_CACHES:
        return {}
    module, settings = _module(config, None)
    inputs = _inputs(settings, batch, past)
    with torch.no_grad():
        cache = module(**inputs, use_cache=True).past_key_values
        one = torch.zeros((batch, 1), dtype=torch.long, device="meta")
        step: dict[str, Any] = {"input_ids": one}
        if settings.is_encoder_decoder:
            length = settings.max_source_positions if kind == "whisper" else past
            encoded = torch.zeros((batch, length, settings.d_model), device="meta")
            outputs = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=encoded)
            step = {"encoder_outputs": outputs, "decoder_input_ids": one}
        counter = FlopCounterMode(display=False)
        with counter:
            module(**step, past_key_values=cache, use_cache=True)
    return {"past": past, "step_flops": int(counter.get_total_flops())}


def _experts(module: Any) -> tuple[str, ...]:
    can = getattr(module, "_can_set_experts_implementation", lambda: False)()
    return ("batched_mm",) if can else ()


def _inputs(settings: Any, batch: int, sequence: int) -> dict[str, Any]:
    import torch

    def ids() -> Any:
        return torch.zeros((batch, sequence), dtype=torch.long, device="meta")

    def image(part: Any) -> Any:
        return torch.zeros((batch, part.num_channels, part.image_size, part.image_size), device="meta")

    if settings.model_type == "whisper":
        frames = torch.zeros((batch, settings.num_mel_bins, 2 * settings.max_source_positions), device="meta")
        return {"input_features": frames, "decoder_input_ids": ids()}
    if hasattr(settings, "vision_config"):
        return {"input_ids": ids(), "pixel_values": image(settings.vision_config)}
    if hasattr(settings, "image_size"):
        return {"pixel_values": image(settings)}
    if settings.is_encoder_decoder:
        return {"input_ids": ids(), "decoder_input_ids": ids()}
    if settings.model_type == "deberta-v2":
        # Without a mask the module looks for padding, which meta tensors do not have.
        return {"input_ids": ids(), "attention_mask": torch.ones((batch, sequence), device="meta")}
    return {"input_ids": ids()}


def measure_all() -> dict[str, Any]:
    """All configurations of the folder, and what measured them."""
    import torch
    import transformers

    names = sorted(path.stem for path in FOLDER.glob("*.json") if path.name != MEASURED)
    found = {}
    for name in names:
        config = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        found[name] = measure(config, BATCH, SEQUENCES.get(name, SEQUENCE))
        found[name] |= measure_step(config, BATCH, PASTS.get(name, PAST))
    return {
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
        "configurations": found,
    }


def main() -> int:
    """Measures or compares; 1 when a configuration is off."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/configs.md")
    parser.add_argument("--measure", action="store_true", help="measure the implementations again")
    options = parser.parse_args()
    if options.measure:
        (FOLDER / MEASURED).write_text(json.dumps(measure_all(), indent=1) + "\n", encoding="utf-8")
    found = [compare(FOLDER, reference) for reference in read_references(FOLDER)]
    rows, table = config_rows(found), config_table(found)
    for row in rows:
        print(f"{row.id} {row.metric}: {row.value:.6g} (goal {row.goal}, n {row.n})")
    if options.write:
        made_by = json.loads((FOLDER / MEASURED).read_text(encoding="utf-8"))
        versions = f"transformers {made_by['transformers']}, torch {made_by['torch']}, meta device"
        scores = "\n".join(
            f"- {row.id}, suite `{row.suite}`: `{row.metric}` {row.value:.3g}, goal {row.goal}, n {row.n}"
            for row in rows
        )
        body = f"{scores}\n\n{NOTES.format(versions=versions)}\n\n{table.markdown()}"
        path = write(
            "configs", "Configurations: parameters and FLOPs", "benchmarks/configs.py --write", "none", body
        )
        print(f"wrote {path}")
    return int(any(row.goal is not None and row.value > row.goal for row in rows))


NOTES = """\
Theirs: {versions}; FLOPs of one forward pass by FlopCounterMode (products and convolutions, 2 per
multiply-add). Ours: the graph of `perfcast graph from-config`, read and counted as any other;
matrix FLOPs.

- FlopCounterMode counts the whole square of causal scores; a fused causal kernel computes the lower
  triangle, which is what perfcast predicts with. `ratio` puts the square back on our side; `ratio,
  triangles` is as predicted.
- With a mask (windows shorter than the sequence, position biases, padding) a kernel computes the
  whole square, and so does the count. Families without a fused kernel (BLOOM, MPT, GPT-Neo, Gemma
  2, DeBERTa) are written out.
- Experts: torch's counter does not know the grouped product; the modules ran the batched one, which
  multiplies the same pairs of tokens and experts.
- Parameter tensors of one element (a temperature, the bias of a single output) are read as
  constants; `difference` leaves them aside. A mask token that no forward pass reads is not in a
  graph (`use_mask_token` is off for DINOv2).
- *Step*: one more token after cached ones, whose number stands beside it, against transformers' own
  cache. DeepSeek's is left out: transformers caches keys and values of every head, the graph latents
  of 576 numbers that the queries meet directly, as serving engines do.
- transformers 5 ties the head of every T5 to its word table, whatever `tie_word_embeddings` says;
  so do we."""


if __name__ == "__main__":
    raise SystemExit(main())
