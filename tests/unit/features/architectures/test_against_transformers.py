"""The stored numbers measured again, and every head, with transformers on the meta device."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from predictor.evaluation.configs import Reference, compare, read_references

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "tests" / "assets" / "configs"
REFERENCES = read_references(FOLDER)
HEADS = {
    "gpt2": ("GPT2Model", "GPT2ForSequenceClassification", "GPT2ForTokenClassification"),
    "llama-3.2-1b": ("LlamaModel", "LlamaForSequenceClassification", "LlamaForTokenClassification"),
    "falcon-7b": ("FalconForSequenceClassification",),
    "opt-350m": ("OPTModel",),
    "bert-base-uncased": (
        "BertModel",
        "BertForPreTraining",
        "BertForSequenceClassification",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ),
    "roberta-base": ("RobertaModel", "RobertaForSequenceClassification", "RobertaForQuestionAnswering"),
    "distilbert-base-uncased": ("DistilBertModel", "DistilBertForSequenceClassification"),
    "albert-base-v2": ("AlbertModel", "AlbertForPreTraining", "AlbertForSequenceClassification"),
    "electra-small-discriminator": (
        "ElectraModel",
        "ElectraForMaskedLM",
        "ElectraForSequenceClassification",
    ),
    "deberta-v3-base": ("DebertaV2ForMaskedLM", "DebertaV2ForSequenceClassification"),
    "t5-small": ("T5Model",),
    "bart-base": ("BartModel",),
    "whisper-tiny": ("WhisperModel",),
    "vit-base-patch16-224": ("ViTModel",),
    "deit-base-distilled-patch16-224": ("DeiTModel", "DeiTForImageClassification"),
    "dinov2-base": ("Dinov2ForImageClassification",),
    "clip-text-base": ("CLIPTextModelWithProjection",),
    "clip-vision-large-patch14": ("CLIPVisionModel",),
    "mixtral-8x7b": ("MixtralModel",),
}
Measure = Callable[..., dict[str, int]]

pytestmark = [
    pytest.mark.slow,
    # Both packages warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]


def benchmark(name: str) -> Measure:
    pytest.importorskip("transformers", reason="needs transformers and torch")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import configs
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    found: Measure = getattr(configs, name)
    return found


@pytest.fixture(scope="module")
def measure() -> Measure:
    return benchmark("measure")


@pytest.fixture(scope="module")
def measure_step() -> Measure:
    return benchmark("measure_step")


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("stored", REFERENCES, ids=[reference.name for reference in REFERENCES])
def test_stored_numbers_are_what_transformers_says(
    stored: Reference, measure: Measure, measure_step: Measure
) -> None:
    found = measure(read(stored.name), stored.batch, stored.sequence)
    if stored.past:
        found |= measure_step(read(stored.name), stored.batch, stored.past)
    assert Reference(stored.name, **found) == stored


@pytest.mark.parametrize(
    ("name", "architecture"), [(name, head) for name, heads in HEADS.items() for head in heads]
)
def test_heads(name: str, architecture: str, measure: Measure, tmp_path: Path) -> None:
    values = {**read(name), "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    # Classifiers of more than one text ask for a padding token, and look for it in the text.
    reference = Reference("config", **measure(values, 1, 77, architecture))
    found = compare(tmp_path, reference)
    assert (found.parameter_difference, found.square_flops) == (0, reference.flops)
