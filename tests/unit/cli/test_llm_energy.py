from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.api.llm_energy import find_llm, llm_energy
from predictor.cli.main import app
from predictor.errors import InvalidInput
from predictor.models.bundle import write_bundle
from predictor.models.power.serving import MODEL_NAME
from predictor.models.power.serving_training import train_serving
from tests.unit.models.test_serving import EIGHT, samples

RUNNER = CliRunner()
CONFIGS = Path(__file__).parents[2] / "assets" / "configs"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serving") / "bundle"
    write_bundle(folder, {MODEL_NAME: train_serving(samples(), calibrate=False)}, {})
    return folder


def run(bundle: Path, *arguments: str) -> tuple[int, str]:
    command = ["study", "llm-energy", *arguments, "--device", "h100-sxm-80gb", "--bundle", str(bundle)]
    result = RUNNER.invoke(app, command)
    return result.exit_code, result.output


def test_prefill_and_decode_sum_to_the_request(bundle: Path) -> None:
    code, text = run(bundle, EIGHT, "--batch", "64", "-o", "json")
    assert code == 0, text
    found = json.loads(text)
    assert found["energy_scope"] == "device"
    request = found["energy_per_request_j"]["value"]
    assert found["prefill_j"] + found["decode_j"] == pytest.approx(request)
    assert request == pytest.approx(400 * found["energy_per_token_j"]["value"])


def test_a_table_for_people(bundle: Path) -> None:
    code, text = run(bundle, EIGHT)
    assert code == 0, text
    assert "energy / request" in text
    assert "prefill" in text


def test_a_configuration_of_the_users_own(bundle: Path, tmp_path: Path) -> None:
    fields = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields))
    assert find_llm(file) == find_llm(fields)
    code, text = run(bundle, str(file), "-o", "json")
    assert code == 0, text


def test_weights_in_few_bits_are_not_passed_over_in_silence(bundle: Path, tmp_path: Path) -> None:
    plain = CONFIGS / "gpt-oss-20b.json"
    stored = tmp_path / "config.json"
    few_bits = {"quantization_config": {"quant_method": "mxfp4"}}
    stored.write_text(json.dumps(json.loads(plain.read_text()) | few_bits))
    assert "(mxfp4)" in run(bundle, str(stored))[1]
    assert "mxfp4" not in run(bundle, str(stored), "--weight-bits", "8")[1]
    assert "quantization" not in run(bundle, str(plain))[1]


@pytest.mark.parametrize(("content", "problem"), [("[]", "no object"), ("{", "is no JSON"), (None, "read")])
def test_bad_configurations_are_named(tmp_path: Path, content: str | None, problem: str) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidInput, match=problem):
        find_llm(file)


def test_a_bundle_without_served_decoders_says_what_to_do(tmp_path: Path) -> None:
    write_bundle(tmp_path / "empty", {}, {})
    from predictor.errors import InvalidBundle

    with pytest.raises(InvalidBundle, match="perfcast train"):
        llm_energy(
            EIGHT, "h100-sxm-80gb", batch=8, prompt_tokens=100, output_tokens=100, bundle=tmp_path / "empty"
        )
