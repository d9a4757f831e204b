"""Kernel times on synthetic measurements, where the truth is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from predictor.errors import InvalidBundle
from predictor.features.dtype import Compute
from predictor.features.programs.work import OpWork, Phase
from predictor.features.programs.work_json import work_to_json
from predictor.features.tables.kernel_facts import Run
from predictor.features.tables.kernel_rows import KernelModel, kernel_rows
from predictor.files import write_whole
from predictor.hardware.catalog import find_device
from predictor.models.booster import load_booster
from predictor.models.bundle import TrainedModel
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import canonical, conform
from predictor.models.ops import kernel_training
from predictor.models.ops.kernel_tables import KernelTable, load_kernel_tables
from predictor.models.ops.kernel_time import SITUATIONS, KernelTimeModel, situations
from predictor.models.ops.kernel_training import (
    KernelSettings,
    held_out_chips,
    held_out_shapes,
    train_kernels,
)
from tests.unit.features.test_kernel_rows import attention, gemm

DEVICES = {name: find_device(name) for name in ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb")}
# What the invented kernels take, in units of the base.
FACTOR = {"a100-sxm-80gb": 1.3, "h100-sxm-80gb": 1.1, "h200-sxm-141gb": 1.1}
SLOWER = {"flash": 1.0, "triton": 1.6}


def _works() -> list[OpWork]:
    rng = np.random.default_rng(0)
    return [
        *(gemm(int(2**m), int(2**n), int(2**k)) for m, n, k in rng.uniform(5, 13, (150, 3))),
        *(attention(int(2**b), int(2**q), int(2**q)) for b, q in rng.uniform([0, 4], [5, 12], (150, 2))),
    ]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[KernelModel, KernelTable]:
    folder = tmp_path_factory.mktemp("corpus")
    records = []
    for name, device in DEVICES.items():
        for work in _works():
            model = KernelModel.ATTENTION if work.kind == "attention" else KernelModel.PRODUCT
            for kernel in SLOWER if model is KernelModel.ATTENTION else ("cublas",):
                run = Run("vllm", kernel, 1)
                base_s = float(kernel_rows(model, [work], device, [run]).base_s[0])
                facts = {
                    "work": work_to_json(work), "set": "gemm" if kernel == "cublas" else "prefill",
                    "stack": "vllm", "kernel": kernel, "copies": 1, "stores": False,
                }  # fmt: skip
                records.append(
                    {
                        "subject": work.kind,
                        "subject_kind": "op",
                        "device": name,
                        "configuration": canonical(facts),
                        "quantity": "latency",
                        "value": base_s * FACTOR[name] * SLOWER.get(kernel, 1.0),
                        "unit": "s",
                        "scope": "kernel",
                        "source": "made",
                        "device_group": chip_of(name),
                        "model_group": work.family.value,
                    }
                )
    frame = conform(pl.DataFrame(records), "made")
    write_whole(folder / "made.parquet", frame.write_parquet)
    return dict(load_kernel_tables(folder, ("made",), DEVICES))


@pytest.fixture(scope="module")
def trained(tables: dict[KernelModel, KernelTable]) -> TrainedModel:
    with pytest.MonkeyPatch.context() as patch:
        small = {
            name: KernelSettings(rounds=60, leaves=16, eta=0.2, min_child_weight=2.0)
            for name in kernel_training.SETTINGS
        }
        patch.setattr(kernel_training, "SETTINGS", small)
        patch.setattr(kernel_training, "_OF_MODELS", {})
        patch.setattr(kernel_training, "THIN", 1)
        return train_kernels(tables, DEVICES, seed=0)


@pytest.fixture(scope="module")
def model(trained: TrainedModel) -> KernelTimeModel:
    boosters = {name: load_booster(stored) for name, stored in trained.boosters.items()}
    kernels: dict[str, object] = dict(trained.params)
    return KernelTimeModel.from_params(kernels, boosters)


def test_near_twins_leave_together(tables: dict[KernelModel, KernelTable]) -> None:
    table = tables[KernelModel.PRODUCT]
    assert set(table.chip) == {"a100", "hopper"}
    assert np.all(np.isfinite(table.target))
    np.testing.assert_allclose(table.target[table.device == "a100-sxm-80gb"], np.log(1.3), atol=1e-6)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_it_learns_devices_and_libraries(name: str, model: KernelTimeModel) -> None:
    works = _works()[150::20]
    for kernel, slower in SLOWER.items():
        costs = model.costs(
            KernelModel.ATTENTION, works, DEVICES[name], [Run("vllm", kernel, 1)] * len(works)
        )
        ratio = float(np.median(costs.time_s / costs.base_s))
        assert ratio == pytest.approx(FACTOR[name] * slower, rel=0.1)
        assert not costs.unmeasured.any()


def test_unmeasured_devices_get_wider_intervals(model: KernelTimeModel) -> None:
    works = _works()[:150:30]
    known = model.costs(KernelModel.PRODUCT, works, DEVICES["a100-sxm-80gb"])
    new = model.costs(KernelModel.PRODUCT, works, find_device("b200-sxm-180gb"))
    assert new.unmeasured.all()
    assert new.outside.all()
    assert np.all(new.log_spread >= known.log_spread)


def test_situations_are_types_and_lengths() -> None:
    device = DEVICES["h100-sxm-80gb"]
    sizes = (8192, 64)
    works = [gemm(n, n, n, compute) for compute in (Compute.BF16, Compute.FP8) for n in sizes]
    features = kernel_rows(KernelModel.PRODUCT, works, device, [Run()] * len(works)).features
    place = situations(KernelModel.PRODUCT, features, np.array([work.compute.value for work in works]))
    assert [SITUATIONS[i] for i in place] == list(SITUATIONS)


def test_a_gradient_is_the_forward_kernel_by_flops(model: KernelTimeModel) -> None:
    forward = attention(4, 1024, 1024)
    backward = replace(
        forward,
        phase=Phase.BACKWARD,
        matrix_flops=forward.matrix_flops * 5 // 2,
        read_bytes=2 * forward.read_bytes,
        write_bytes=3 * forward.write_bytes,
        launch_count=2,
    )
    device = DEVICES["h100-sxm-80gb"]
    once, again = (model.costs(KernelModel.ATTENTION, [work], device) for work in (forward, backward))
    assert again.time_s[0] / once.time_s[0] == pytest.approx(2.5 / 0.84, rel=1e-6)
    assert again.outside[0]


def test_answers_do_not_depend_on_company_or_name(model: KernelTimeModel) -> None:
    works = _works()[:150:25]
    device = DEVICES["h200-sxm-141gb"]
    together = model.costs(KernelModel.PRODUCT, works, replace(device, id="x", name="y")).time_s
    alone = [model.costs(KernelModel.PRODUCT, [work], device).time_s[0] for work in works]
    np.testing.assert_array_equal(together, alone)


def test_what_is_held_out_was_not_seen(tables: dict[KernelModel, KernelTable]) -> None:
    """A chip that runs 1.3 times its base, judged by fits on chips at 1.1, is missed by just that."""
    with pytest.MonkeyPatch.context() as patch:
        small = KernelSettings(rounds=30, leaves=8, eta=0.3, min_child_weight=2.0)
        patch.setattr(kernel_training, "SETTINGS", dict.fromkeys(kernel_training.SETTINGS, small))
        patch.setattr(kernel_training, "THIN", 1)
        table = tables[KernelModel.PRODUCT]
        chips = held_out_chips(table, DEVICES, 0)
        shapes = held_out_shapes(table, DEVICES, 0, folds=1)
    own = table.chip[chips.rows] == "a100"
    assert np.median(chips.told[own]) == pytest.approx(np.log(1.1 / 1.3), abs=0.03)
    assert np.abs(np.median(shapes.told)) < 0.05


def test_other_columns_are_refused(trained: TrainedModel) -> None:
    params: dict[str, object] = {**trained.params, "feature_schema": "old"}
    with pytest.raises(InvalidBundle, match="perfcast train"):
        KernelTimeModel.from_params(params, {})


def test_without_fits_nothing_is_priced() -> None:
    assert KernelTimeModel.from_params({}, {}).models == frozenset()
    assert gemm(8, 8, 8).compute is Compute.BF16


def test_an_absent_source_is_named(tmp_path: Path) -> None:
    from predictor.errors import InvalidData

    with pytest.raises(InvalidData, match="corpus build --source nothing"):
        load_kernel_tables(tmp_path, ("nothing",), DEVICES)
