from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictor.errors import InvalidBundle, InvalidRequest
from predictor.hardware.catalog import find_device
from predictor.models.power.board_power import idle_power_w
from predictor.models.power.llm_shape import LlmShape, llm_shape, published_shapes
from predictor.models.power.serving import (
    TERMS,
    ServingJob,
    ServingModel,
    base_power,
    power_asked,
    power_terms,
    step_work,
)
from predictor.models.power.serving_training import (
    ServingSample,
    fit_base,
    serving_samples,
    train_serving,
)

H100 = find_device("h100-sxm-80gb")
EIGHT = "meta-llama/Llama-3.1-8B-Instruct"


def job(batch: int = 32, model: str = EIGHT, **options: object) -> ServingJob:
    settings = {"devices": 1, "prompt_tokens": 250.0, "output_tokens": 400.0, **options}
    return ServingJob(shape=published_shapes()[model], batch=batch, **settings)  # type: ignore[arg-type]


def test_shapes_have_the_published_parameters() -> None:
    path = Path("models/corpus/llm_configs.toml")
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["config"]:
        shape = llm_shape(entry["fields"])
        total = shape.total_parameters - (shape.head_parameters if entry.get("tied") else 0)
        assert total / 1e9 == pytest.approx(entry["parameters_billions"], rel=0.01), entry["id"]


def test_bundles_of_another_target_are_refused() -> None:
    with pytest.raises(InvalidBundle, match="another version"):
        ServingModel({"bases": []}, {})


@pytest.mark.parametrize("family", ["albert", "t5", "whisper"])
def test_what_is_no_decoder_alone_is_refused(family: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{family}' is no decoder alone"):
        llm_shape({"model_type": family, "hidden_size": 8})


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("bloom-560m", 0.559),
        ("bloom-7b1", 7.07),
        ("codegen-2b", 2.78),
        ("falcon-40b", 41.3),
        ("falcon-7b", 6.92),
        ("gpt2", 0.124),
        ("gpt-j-6b", 6.05),
        ("mpt-7b", 6.65),
        ("opt-1.3b", 1.32),
        ("santacoder", 1.12),
    ],
)
def test_other_spellings_of_sizes(name: str, billions: float) -> None:
    shape = llm_shape(json.loads(Path(f"tests/assets/configs/{name}.json").read_text(encoding="utf-8")))
    untied = name in ("codegen-2b", "gpt-j-6b")
    total = shape.total_parameters - (0 if untied else shape.head_parameters)
    # Norms, biases and learned positions are not counted.
    assert total / 1e9 == pytest.approx(billions, rel=0.015)


def test_feed_forwards_without_a_gate_have_two_matrices() -> None:
    shape = published_shapes()["tiiuae/falcon-7b"]
    assert shape.dense_parameters == 32 * 2 * 4544 * 18176


def test_cache_of_grouped_heads_windows_and_latents() -> None:
    assert published_shapes()[EIGHT].cache_bytes(1000) == 1000 * 32 * 2 * 8 * 128 * 2
    # DeepSeek-V3 keeps 512 + 64 numbers a layer.
    assert published_shapes()["deepseek-ai/DeepSeek-V3.1"].cache_bytes(1) == 61 * 576 * 2
    gemma = published_shapes()["google/gemma-3-27b-it"]
    assert gemma.window_layers == 52
    per_layer = 2 * 16 * 128 * 2
    assert gemma.cache_bytes(8192) == (10 * 8192 + 52 * 1024) * per_layer


def test_a_step_reads_what_it_must() -> None:
    work = step_work(job(1), H100)
    assert work.weights_s == pytest.approx(2 * 7.5e9 / 3.35e12, rel=0.01)
    assert work.exchange_s == 0.0
    two = step_work(job(1, devices=2), H100)
    assert two.weights_s == pytest.approx(work.weights_s / 2)
    assert two.exchange_s > 0
    experts = "Qwen/Qwen3-30B-A3B"
    few, many = step_work(job(1, experts), H100), step_work(job(64, experts), H100)
    assert 4 < many.weights_s / few.weights_s < 12


def test_experts_and_fp8_launch_more_kernels() -> None:
    per_layer = step_work(job(1), H100).launch_s / 32
    narrow = step_work(job(1, weight_bits=8), H100).launch_s / 32
    experts = step_work(job(1, "Qwen/Qwen3-30B-A3B"), H100).launch_s / 48
    assert per_layer < narrow < experts


def test_kernels_of_experts_scaled_by_blocks_take_a_fixed_time_a_layer() -> None:
    blocks, rows = "Qwen/Qwen3-235B-A22B", "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8"
    eight = {"devices": 8, "expert_parallel": 8}
    assert step_work(job(8, blocks, weight_bits=8, **eight), H100).scaled_layers == 94
    assert step_work(job(8, blocks, **eight), H100).scaled_layers == 0
    assert step_work(job(8, rows, weight_bits=8, **eight), H100).scaled_layers == 0


def test_hosts_of_one_device_and_images_are_told_by_the_task() -> None:
    alone = step_work(job(8, task="reasoning"), H100)
    waits = dict(zip(TERMS, alone.terms, strict=True))
    assert waits["lone reasoning"] > 0
    assert waits["lone images"] == 0.0
    both = step_work(job(8, task="reasoning", devices=2), H100)
    assert both.terms[TERMS.index("lone reasoning")] == 0.0
    seen = step_work(job(8, task="video", output_tokens=100.0), H100)
    assert seen.images == pytest.approx(0.08)
    assert alone.images == 0.0


def test_images_of_one_size_or_of_few_requests_keep_no_server_waiting() -> None:
    b200 = find_device("b200-sxm-180gb")
    gemma, qwen = "google/gemma-3-12b-it", "Qwen/Qwen3-VL-8B-Instruct"
    lone = {
        (name, batch): step_work(job(batch, name, task="image"), b200).lone
        for name in (gemma, qwen)
        for batch in (8, 16)
    }
    assert lone == {(gemma, 8): "", (gemma, 16): "", (qwen, 8): "", (qwen, 16): "image"}
    assert step_work(job(8, qwen, task="reasoning"), b200).lone == "reasoning"
    assert step_work(job(8, gemma, task="image"), b200).images > 0


def test_base_watts_bend_under_the_limit() -> None:
    work = step_work(job(8), H100)
    weights = np.zeros_like(power_terms(work, 1e-2))
    found = []
    for level in (0.3, 0.9, 3.0):
        weights[0] = level
        found.append(base_power(work, 1e-2, weights))
    assert found[0] == pytest.approx(0.3, rel=1e-3)
    assert found[0] < found[1] < found[2] < 1.0
    assert power_asked(found[1]) == pytest.approx(0.9)


def test_a_flop_draws_the_same_in_a_prompt_and_in_a_step() -> None:
    short = step_work(job(8), H100)
    long = replace(short, prompts_s=short.prompts_s + 2e-3)
    more = replace(short, compute_s=short.compute_s + 2e-3)
    assert power_terms(long, 1e-2) == pytest.approx(power_terms(more, 1e-2))
    assert power_terms(long, 1e-2).sum() > power_terms(short, 1e-2).sum()


def test_the_cache_bounds_the_batch_and_weights_must_fit() -> None:
    full = step_work(job(100_000), H100)
    assert full.batch < 1100
    # Answers under way are half written: caches of the mean length fill what weights leave of nine tenths.
    assert full.cache_s * H100.memory_bytes_per_s == pytest.approx(0.9 * H100.memory_bytes - 17.1e9, rel=0.02)
    with pytest.raises(InvalidRequest, match="do not fit"):
        step_work(job(1, "meta-llama/Llama-3.1-405B-Instruct"), H100)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch": 0}, "at least 1"),
        ({"devices": 3, "replicas": 2}, "do not divide"),
        ({"prompt_tokens": 0.0}, "above 0"),
        ({"weight_bits": 4}, "8 or 16"),
        ({"task": "poetry"}, "one of chat"),
    ],
)
def test_bad_jobs_say_what_was_expected(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        job(**options)  # type: ignore[arg-type]


def test_a_configuration_without_sizes_is_named() -> None:
    with pytest.raises(InvalidRequest, match="num_hidden_layers"):
        llm_shape({"hidden_size": 8})
    with pytest.raises(InvalidRequest, match="whole number"):
        llm_shape({"num_hidden_layers": "many"})


def samples() -> tuple[ServingSample, ...]:
    """Two chips, three decoders, batches from 8 to 256; steps and watts obey one law."""
    found = []
    for chip in ("h100-sxm-80gb", "b200-sxm-180gb"):
        device = find_device(chip)
        for model in (EIGHT, "Qwen/Qwen3-14B", "Qwen/Qwen3-8B"):
            for batch in (8, 16, 32, 64, 128, 256):
                one = job(batch, model)
                work = step_work(one, device)
                step_s = 1.5 * (work.weights_s + work.cache_s) + 2 * work.prompts_s + 2e-3
                power_w = device.tdp_w * min(0.95, 0.4 + 0.1 * np.log2(batch / 4))
                joules = power_w * step_s / work.batch
                found.append(ServingSample(one, work, device, step_s, power_w, joules, model, chip))
    return tuple(found)


@pytest.fixture(scope="module")
def model() -> ServingModel:
    return ServingModel.from_trained(train_serving(samples(), calibrate=False))


def test_training_learns_the_law(model: ServingModel) -> None:
    found = [model.raw(sample.job, sample.device) for sample in samples()]
    errors = [abs(one["energy_j"] / s.energy_j - 1) for one, s in zip(found, samples(), strict=True)]
    assert np.mean(errors) < 0.08


def test_the_base_has_no_negative_weight() -> None:
    assert (fit_base(samples()) >= 0).all()


def test_an_answer_is_consistent(model: ServingModel) -> None:
    answer = model.predict(job(64), H100)
    assert answer.prefill_j + answer.decode_j == pytest.approx(answer.energy_per_request_j.value)
    assert answer.energy_per_request_j.value == pytest.approx(400 * answer.energy_per_token_j.value)
    assert idle_power_w(H100) <= answer.power_w.low <= answer.power_w.value <= answer.power_w.high
    assert answer.tokens_per_s.value * answer.step_s.value == pytest.approx(answer.batch)
    joules_per_s = answer.energy_per_token_j.value * answer.tokens_per_s.value
    assert answer.power_w.value == pytest.approx(joules_per_s)
    assert answer.known_device


def test_a_larger_batch_makes_a_token_cheaper_and_a_longer_prompt_dearer(model: ServingModel) -> None:
    few, many = (model.predict(job(batch), H100) for batch in (8, 128))
    assert many.energy_per_token_j.value < 0.5 * few.energy_per_token_j.value
    long = model.predict(job(8, prompt_tokens=4000.0), H100)
    assert long.prefill_j / long.energy_per_request_j.value > few.prefill_j / few.energy_per_request_j.value


def test_a_chip_nobody_measured_gets_the_base(model: ServingModel) -> None:
    other = find_device("a100-sxm-80gb")
    answer = model.predict(job(32), other)
    assert not answer.known_device
    assert idle_power_w(other) < answer.power_w.value <= other.tdp_w


def test_a_byte_costs_the_same_joules_on_a_chip_nobody_measured(model: ServingModel) -> None:
    chip, measured = model._chips[0], find_device("b200-sxm-180gb")
    assert chip.power_on(measured) == pytest.approx(chip.power)
    share = chip.power_on(H100) / np.maximum(chip.power, 1e-9)
    assert chip.power[1:3].max() > 0
    assert share[1:3].max() == pytest.approx((3.35 / 700) / (7.7 / 1000))
    assert chip.power_on(H100)[3:] == pytest.approx(chip.power[3:])


def test_waits_of_a_measured_host_are_not_those_of_a_chip_nobody_measured() -> None:
    slow = tuple(
        replace(s, job=replace(s.job, task="reasoning"), work=replace(s.work, lone="reasoning"),
                step_s=s.step_s + 0.03, energy_j=s.energy_j * (1.0 + 0.03 / s.step_s))
        for s in samples() if s.chip == "b200-sxm-180gb"
    )  # fmt: skip
    learned = ServingModel.from_trained(train_serving((*samples(), *slow), calibrate=False))
    b200, a100 = find_device("b200-sxm-180gb"), find_device("a100-sxm-80gb")
    lone, chat = job(8, task="reasoning"), job(8)
    assert learned.raw(lone, b200)["step_s"] > 3 * learned.raw(chat, b200)["step_s"]
    assert learned.raw(lone, a100)["step_s"] == pytest.approx(learned.raw(chat, a100)["step_s"])


def test_rows_of_the_corpus_become_samples() -> None:
    import polars as pl

    facts = (
        '{"batch":8,"devices":1,"expert_parallel":1,"output_tokens":400.0,"prompt_tokens":250.0,'
        '"replicas":1,"task":"chat","tokens_per_s":1000.0,"weight_bits":16}'
    )
    rows = pl.DataFrame(
        [(EIGHT, H100.id, facts, "average_power", 480.0), (EIGHT, H100.id, facts, "energy", 0.48)],
        schema=("subject", "device", "configuration", "quantity", "value"),
        orient="row",
    )
    (sample,) = serving_samples(rows)
    assert (sample.power_w, sample.energy_j) == (480.0, 0.48)
    assert sample.step_s == pytest.approx(8e-3)


def test_a_shape_can_be_written_by_hand() -> None:
    tiny = LlmShape(2, 64, 100, 2, 16384, 4, 16, 128, dense_parameters=50_000)
    assert tiny.active_parameters == 2 * 16384 + 50_000 + 6400
    assert replace(tiny, experts=0).touched_experts(10) == 0.0


def test_few_tokens_leave_ranks_of_experts_waiting() -> None:
    scout = "meta-llama/Llama-4-Scout-17B-16E-Instruct"
    spread = {"devices": 8, "expert_parallel": 8}
    few, many = (step_work(job(batch, scout, **spread), H100) for batch in (2, 512))
    assert 1.0 <= many.balance < few.balance <= 8.0
    assert step_work(job(8), H100).balance == 1.0


def test_prompts_hold_up_replicas_that_share_experts() -> None:
    name = "Qwen/Qwen3-30B-A3B-Instruct-2507"
    together = step_work(job(64, name, devices=4, replicas=4, expert_parallel=4), H100)
    apart = step_work(job(64, name, devices=4, replicas=4), H100)
    assert together.prompts_s == pytest.approx(4 * apart.prompts_s)
