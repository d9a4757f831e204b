"""Measured kernels as iterations of one op, on invented measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from predictor.features.programs.work_json import work_to_json
from predictor.files import write_whole
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import canonical, conform
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps import kernels
from tests.unit.models.op_cases import product

DEVICE = "t4-pcie-16gb"
SIZES = (2048, 3072, 4096, 5120)


def _levels(folder: Path, source: str, slower: float) -> tuple[np.ndarray, np.ndarray]:
    """Times over floor of two sets, as trained on and as measured; one set is `slower` measured."""
    op_time = OpTimeModel.from_bundle(Bundle.load())
    device = find_device(DEVICE)
    records = []
    for subset, factor in (("random", 1.5), ("transformer", 1.5 * slower)):
        works = [product(size, size, size) for size in SIZES]
        for work, floor_s in zip(works, op_time.costs(works, device).floor_s, strict=True):
            records.append(
                {
                    "subject": "linear",
                    "subject_kind": "op",
                    "device": DEVICE,
                    "configuration": canonical({"work": work_to_json(work), "set": subset}),
                    "quantity": "latency",
                    "value": floor_s * factor,
                    "unit": "s",
                    "scope": "kernel",
                    "source": source,
                    "device_group": chip_of(DEVICE),
                    "model_group": work.family.value,
                }
            )
    frame = conform(pl.DataFrame(records), source)
    write_whole(folder / f"{source}.parquet", frame.write_parquet)
    table = kernels.kernel_table(folder, op_time, find_device, 0)
    assert table is not None
    assert len(table) == 2 * len(SIZES)
    measured_s = np.array([row.measured_s for row in table.rows])
    return np.exp(table.log_time) / table.floor_s, measured_s / table.floor_s


@pytest.mark.parametrize(
    ("source", "slower", "reconciled"),
    [(kernels.SHAPE_SETS, 3.3, True), (kernels.SHAPE_SETS, 1.5, False), (kernels.SOURCES[1], 3.3, False)],
)
def test_contradicting_shape_sets_are_trained_on_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, slower: float, reconciled: bool
) -> None:
    """The P4's hot set pulled nothing while the cool one taught networks; answers keep what was measured."""
    monkeypatch.setattr(kernels, "missing_sources", lambda _, names: [n for n in names if n != source])
    trained, measured = _levels(tmp_path, source, slower)
    np.testing.assert_allclose(sorted(measured), [1.5] * 4 + [1.5 * slower] * 4)
    expected = [1.5 * np.sqrt(slower)] * 8 if reconciled else [1.5] * 4 + [1.5 * slower] * 4
    np.testing.assert_allclose(sorted(trained), expected, rtol=1e-6)
