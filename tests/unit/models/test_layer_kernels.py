"""Experts and states learned from invented layers, whose truth is known, and what a network's ops get."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from predictor.features.programs.work import Contraction, OpWork, Phase
from predictor.features.programs.work_json import work_to_json
from predictor.features.tables.kernel_facts import Run
from predictor.features.tables.kernel_rows import KernelModel, kernel_model, kernel_rows, schema_hash
from predictor.files import write_whole
from predictor.hardware.catalog import find_device
from predictor.models.booster import load_booster
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import canonical, conform
from predictor.models.ops import kernel_training
from predictor.models.ops.kernel_tables import load_kernel_tables
from predictor.models.ops.kernel_time import KernelTimeModel
from predictor.models.ops.kernel_training import KernelSettings, train_kernels
from predictor.models.ops.op_time import OpTimeModel
from tests.unit.features.test_kernel_rows import gemm
from tests.unit.features.test_layer_rows import convolution, delta, experts, grouped

DEVICES = {name: find_device(name) for name in ("a100-sxm-80gb", "h100-sxm-80gb")}
SLOWER = {KernelModel.EXPERTS: 1.4, KernelModel.STATE: 2.0, KernelModel.PRODUCT: 1.2}
SKEWED = 1.3


def _works() -> list[OpWork]:
    rng = np.random.default_rng(0)
    layers = rng.uniform([0, 0, 8, 9], [8, 12, 12, 13], (80, 4))
    return [
        *(experts(int(2**g), max(1, int(2 ** (r - g))), int(2**i), int(2**h)) for g, r, i, h in layers),
        *(delta(int(2**p), int(2**n)) for p, n in rng.uniform([3, 0], [10, 14], (40, 2))),
        *(convolution(int(2**p), int(2**n), 4096) for p, n in rng.uniform([0, 0], [6, 14], (40, 2))),
        *(gemm(int(2**m), int(2**n), int(2**k)) for m, n, k in rng.uniform(5, 13, (40, 3))),
    ]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> KernelTimeModel:
    folder = tmp_path_factory.mktemp("corpus")
    records = []
    for name, device in DEVICES.items():
        for work in _works():
            model = kernel_model(work, device)
            assert model is not None
            for skew in (0.0, 1.2) if model is KernelModel.EXPERTS else (None,):
                run = Run("vllm", "own", 1, skew=skew)
                time_s = float(kernel_rows(model, [work], device, [run]).base_s[0]) * SLOWER[model]
                facts = {
                    "work": work_to_json(work), "set": model.value, "stack": "vllm", "kernel": "own",
                    "copies": 1, "stores": False, "skew": skew,
                }  # fmt: skip
                records.append(
                    {
                        "subject": model.value,
                        "subject_kind": "op",
                        "device": name,
                        "configuration": canonical(facts),
                        "quantity": "latency",
                        "value": time_s * (SKEWED if skew else 1.0),
                        "unit": "s",
                        "scope": "kernel",
                        "source": "made",
                        "device_group": chip_of(name),
                        "model_group": model.value,
                    }
                )
    write_whole(folder / "made.parquet", conform(pl.DataFrame(records), "made").write_parquet)
    tables = load_kernel_tables(folder, ("made",), DEVICES)
    small = KernelSettings(rounds=40, leaves=16, eta=0.2, min_child_weight=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_training, "SETTINGS", dict.fromkeys(kernel_training.SETTINGS, small))
        patch.setattr(kernel_training, "_OF_MODELS", {})
        trained = train_kernels(tables, DEVICES, seed=0)
    boosters = {name: load_booster(stored) for name, stored in trained.boosters.items()}
    return KernelTimeModel.from_params(dict[str, object](trained.params), boosters)


def test_how_tokens_spread_is_told_or_taken_as_usual(kernels: KernelTimeModel) -> None:
    device, works = DEVICES["h100-sxm-80gb"], _works()[:80:8]
    found = {}
    for skew in (0.0, 1.2, None):
        runs = [Run("vllm", "own", 1, skew=skew)] * len(works)
        costs = kernels.costs(KernelModel.EXPERTS, works, device, runs)
        found[skew] = float(np.median(costs.time_s / costs.base_s))
    assert found[0.0] == pytest.approx(1.4, rel=0.05)
    assert found[1.2] == pytest.approx(1.4 * SKEWED, rel=0.05)
    assert found[0.0] * 0.98 <= found[None] <= found[1.2] * 1.02


def test_experts_and_states_of_a_network_are_learned(kernels: KernelTimeModel) -> None:
    model = OpTimeModel({}, {}, np.zeros((0, 5)), kernels)
    works = [grouped(64, 4, 2048, 2048), delta(256, 1), delta(64, 4096), convolution(8, 1024, 4096)]
    for device in (*DEVICES.values(), find_device("l40s-pcie-48gb")):
        costs = model.costs(works, device)
        assert set(costs.source) == {"learned"}
        bases = np.array(
            [kernel_rows(kernel_model(w, device), [w], device, [Run()]).base_s[0] for w in works]  # type: ignore[arg-type]
        )
        np.testing.assert_allclose(costs.time_s / bases, [1.5, 2.0, 2.0, 2.0], rtol=0.25)


def test_more_tokens_experts_and_width_take_longer(kernels: KernelTimeModel) -> None:
    model = OpTimeModel({}, {}, np.zeros((0, 5)), kernels)
    series = (
        [grouped(64, m, 2048, 2048) for m in (1, 8, 64, 512, 4096)],
        [grouped(g, 4, 2048, 2048) for g in (2, 8, 32, 128)],
        [grouped(16, 4, n, 2048) for n in (1024, 2048, 4096)],
        [delta(64, n) for n in (1, 64, 512, 4096)],
        [convolution(n, 1024, 4096) for n in (1, 4, 16, 64)],
    )
    for works in series:
        time_s = model.costs(works, DEVICES["h100-sxm-80gb"]).time_s
        # Where the same matrices are read, trees may waver.
        assert np.all(time_s[1:] > 0.9 * time_s[:-1])
        assert time_s[-1] > 1.5 * time_s[0]


def test_a_bundle_without_layers_prices_experts_as_products(kernels: KernelTimeModel) -> None:
    products = KernelTimeModel({KernelModel.PRODUCT: kernels._fits[KernelModel.PRODUCT]}, kernels._boosters)
    model = OpTimeModel({}, {}, np.zeros((0, 5)), products)
    work, device = grouped(64, 4, 2048, 2048), DEVICES["h100-sxm-80gb"]
    found, plain = model.costs([work, replace(work, kind="bmm")], device).time_s
    assert found == plain
    assert schema_hash([KernelModel.PRODUCT]) != schema_hash()


def test_gradients_of_experts_are_products(kernels: KernelTimeModel) -> None:
    model = OpTimeModel({}, {}, np.zeros((0, 5)), kernels)
    work = replace(grouped(8, 4, 1024, 1024), phase=Phase.BACKWARD)
    plain = replace(work, kind="bmm")
    assert isinstance(work.shape, Contraction)
    found, as_product = model.costs([work, plain], DEVICES["a100-sxm-80gb"]).time_s
    assert found == as_product
