from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.errors import InvalidData
from predictor.features.programs.work import Contraction, Convolution, Family
from predictor.features.programs.work_json import work_from_json, work_to_json
from predictor.features.tables.rows import (
    FEATURE_NAMES,
    device_signature,
    feature_matrix,
    schema_hash,
)
from predictor.features.tables.tiles import product_of, products, tile_efficiencies
from predictor.hardware.catalog import find_device
from tests.unit.models.op_cases import DEVICE, device, pointwise, product, softmax

CONVOLUTION = Convolution(
    samples=2, in_channels=16, out_channels=32, groups=1, in_spatial=(56, 56), out_spatial=(28, 28),
    kernel=(3, 3), strides=(2, 2), dilations=(1, 1),
)  # fmt: skip


def _named(family: Family, work: object) -> dict[str, float]:
    row = feature_matrix(family, [work], DEVICE)[0]  # type: ignore[list-item]
    return dict(zip(FEATURE_NAMES[family], row.tolist(), strict=True))


def test_a_product_row_by_hand() -> None:
    row = _named(Family.BATCHED_MATMUL, product(4096, 1024, 1000))
    assert row["log2_m"] == 12
    assert row["align_k"] == 3
    assert row["align_m"] == 6
    assert row["tile_fill_n"] == 1.0
    waves = 32 * 8 / 80
    assert row["log_waves"] == pytest.approx(np.log(waves), rel=1e-6)
    assert row["wave_fill"] == pytest.approx(waves / 4, rel=1e-6)
    moved = 4 * (4096 * 1000 + 1000 * 1024 + 4096 * 1024)
    assert row["log_intensity"] == pytest.approx(np.log(2 * 4096 * 1024 * 1000 / moved), rel=1e-6)


def test_rows_of_a_linear_layer_hold_no_fact_that_jumps_with_the_batch() -> None:
    linear = _named(Family.MATMUL, product(4096, 1024, 1000))
    batched = _named(Family.BATCHED_MATMUL, product(4096, 1024, 1000))
    assert batched.keys() - linear.keys() == {"align_m", "wave_fill", "tile_fill_m"}
    assert all(linear[name] == batched[name] for name in linear)


@pytest.mark.parametrize(
    ("name", "has"),
    [("p100-pcie-16gb", 0.0), ("p4-pcie-8gb", 0.0), ("t4-pcie-16gb", 1.0), ("a100-sxm-80gb", 1.0)],
)
def test_products_know_boards_with_matrix_units(name: str, has: float) -> None:
    column = FEATURE_NAMES[Family.MATMUL].index("matrix_units")
    row = feature_matrix(Family.MATMUL, [product(512, 512, 512)], find_device(name))[0]
    assert row[column] == has


def test_a_vector_row_by_hand() -> None:
    row = _named(Family.ELEMENTWISE, pointwise(80 * 1024))
    assert row["streams"] == 2.0
    assert row["log2_elements_per_core"] == 10
    assert row["log_bytes_over_cache"] == pytest.approx(np.log(80 * 1024 * 8 / 6e6), rel=1e-6)


@pytest.mark.parametrize("family", [Family.MATMUL, Family.SOFTMAX, Family.ELEMENTWISE])
def test_rows_keep_their_order_and_are_independent(family: Family) -> None:
    works = {
        Family.MATMUL: [product(64 * i, 128, 256) for i in range(1, 6)],
        Family.SOFTMAX: [softmax(100 * i, 512) for i in range(1, 6)],
        Family.ELEMENTWISE: [pointwise(1000 * i) for i in range(1, 6)],
    }[family]
    together = feature_matrix(family, works, DEVICE)
    alone = np.concatenate([feature_matrix(family, [work], DEVICE) for work in works])
    np.testing.assert_array_equal(together, alone)
    assert together.dtype == np.float32
    assert together.shape == (5, len(FEATURE_NAMES[family]))


def test_names_do_not_matter_but_numbers_do() -> None:
    works = [product(1000, 1000, 1000)]
    same = replace(DEVICE, id="other", name="Other", vendor="someone", aliases=("x",), notes="n")
    np.testing.assert_array_equal(
        feature_matrix(Family.MATMUL, works, DEVICE), feature_matrix(Family.MATMUL, works, same)
    )
    slower = device(memory_bytes_per_s=450e9)
    assert not np.array_equal(
        feature_matrix(Family.MATMUL, works, DEVICE), feature_matrix(Family.MATMUL, works, slower)
    )
    assert not np.allclose(device_signature(DEVICE, "fp32"), device_signature(slower, "fp32"))


def test_a_shape_of_another_family_is_refused() -> None:
    with pytest.raises(TypeError, match="has no rows"):
        feature_matrix(Family.SOFTMAX, [pointwise(10)], DEVICE)
    with pytest.raises(TypeError, match="no matrix product"):
        feature_matrix(Family.MATMUL, [pointwise(10)], DEVICE)


def test_the_schema_hash_names_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    before = schema_hash()
    changed = {**FEATURE_NAMES, Family.ELEMENTWISE: ("other",)}
    monkeypatch.setattr("predictor.features.tables.rows.FEATURE_NAMES", changed)
    assert schema_hash() != before


@pytest.mark.parametrize("pass_name", ["forward", "data_gradient", "weight_gradient"])
@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_product_of_a_convolution_has_its_flops(pass_name: str, groups: int, transposed: bool) -> None:
    shape = replace(CONVOLUTION, pass_name=pass_name, groups=groups)
    if transposed:
        shape = replace(shape, transposed=True, in_spatial=(28, 28), out_spatial=(56, 56))
    p = product_of(shape)
    assert isinstance(p, Contraction)
    expected = 2 * 2 * 28 * 28 * 16 * 32 * 9 // groups
    # The depth of a strided data gradient is rounded to a whole number: 4.5 to 4 for one channel a group.
    assert 2 * p.batch * p.m * p.n * p.k == pytest.approx(expected, rel=0.12)


def test_the_product_of_a_plain_convolution_is_im2col() -> None:
    assert product_of(CONVOLUTION) == Contraction(1, 2 * 28 * 28, 32, 16 * 9)


def test_tile_efficiency_is_the_useful_share() -> None:
    efficiency = tile_efficiencies(products([product(128, 128, 64)]), 80)
    assert efficiency[0, 0] == pytest.approx(1 / 80)
    assert efficiency.max() <= 1.0


@pytest.mark.parametrize("work", [product(3, 5, 7), pointwise(9), softmax(2, 4)])
def test_works_survive_json(work: object) -> None:
    assert work_from_json(work_to_json(work)) == work  # type: ignore[arg-type]


def test_convolutions_survive_json() -> None:
    work = replace(product(3, 5, 7), family=Family.CONVOLUTION, shape=CONVOLUTION)
    assert work_from_json(work_to_json(work)) == work


@pytest.mark.parametrize("change", [{"family": "no such"}, {"shape": {"blob": {}}}, {"shape": 3}])
def test_bad_json_is_one_error(change: dict[str, object]) -> None:
    with pytest.raises(InvalidData, match="not the work of an op"):
        work_from_json({**work_to_json(product(3, 5, 7)), **change})
