from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from predictor.features.programs.work import Contraction, Convolution, Elements, Family, OpWork, Rows
from predictor.features.programs.work_json import work_from_json
from predictor.models.corpus.neusight import read
from predictor.models.corpus.schema import conform

_COMMON = {"Device": "Tesla P4", "Latency": 2.0}
_CONV = {
    "B": 8, "Input_Channel": 3, "Output_Channel": 64, "Kernel_Szie": 7, "Input_Size": 224, "Stride": 2,
    "Padding": 3,
}  # fmt: skip
_ROWS = {
    "bmm": [{"OPName": "bmm", "B": 16, "M": 100, "N": 64, "K": 200}],
    "linear": [{"OPName": "linear", "B": 1, "M": 100, "N": 64, "K": 200}],
    "conv": [{"OPName": "conv", **_CONV}],
    "ln": [{"OPName": "ln", "B": 10, "H": 512}],
    "softmax": [{"OPName": "softmax", "B": 10, "H": 512}],
    "vec": [
        {"OPName": "add", "B": 10, "H": 512},
        {"OPName": "addu", "B": 10, "H": 512},
        {"OPName": "relu", "B": 10, "H": 512},
    ],
}


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OpWork]:
    folder: Path = tmp_path_factory.mktemp("neusight")
    for name, rows in _ROWS.items():
        pl.DataFrame([{**_COMMON, **row} for row in rows]).write_parquet(folder / f"op_train_{name}.parquet")
    test = {
        "OPName": "linear",
        "Device": "NVIDIA L4",
        "B": 1,
        "M": 4096.0,
        "N": 1024.0,
        "K": 512.0,
        "H": None,
    }
    sources = ("dataset/test/linear.csv", "dataset/train/linear.csv")
    pl.DataFrame([{**test, "Latency": 1.5, "src": source} for source in sources]).write_parquet(
        folder / "op_author_split_sets.parquet"
    )
    frame = conform(read(folder), "neusight")
    assert frame.height == 9
    assert set(frame["value"]) == {2e-3, 1.5e-3}
    assert set(frame["unit"]) == {"s"}
    found = {}
    for subject, device, text in frame.select("subject", "device", "configuration").iter_rows():
        facts = json.loads(text)
        found[f"{subject}@{device}"] = work_from_json(facts["work"])
        assert facts["set"] == ("transformer" if device.startswith("l4") else "random")
    return found


def test_n_is_the_reduction_of_products(works: dict[str, OpWork]) -> None:
    bmm = works["bmm@p4-pcie-8gb"]
    assert bmm.shape == Contraction(batch=16, m=100, n=200, k=64)
    assert bmm.read_bytes == 4 * 16 * (100 * 64 + 64 * 200)
    linear = works["linear@p4-pcie-8gb"]
    assert linear.shape == Contraction(batch=1, m=100, n=200, k=64)
    assert linear.matrix_flops == 2 * 100 * 200 * 64
    assert linear.parameter_bytes == 4 * (64 * 200 + 200)


def test_the_authors_train_files_are_not_read_twice(works: dict[str, OpWork]) -> None:
    assert works["linear@l4-pcie-24gb"].shape == Contraction(1, 4096, 512, 1024)
    assert len(works) == 9


def test_convolutions(works: dict[str, OpWork]) -> None:
    conv = works["conv@p4-pcie-8gb"]
    assert isinstance(conv.shape, Convolution)
    assert conv.shape.out_spatial == (112, 112)
    # ResNet's first layer: 118 MMAC an image.
    assert conv.matrix_flops == 2 * 8 * 112 * 112 * 64 * 3 * 49


def test_vectors_read_each_operand(works: dict[str, OpWork]) -> None:
    size = 4 * 10 * 512
    assert works["add@p4-pcie-8gb"].read_bytes == 2 * size
    assert works["addu@p4-pcie-8gb"].read_bytes == size
    assert works["addu@p4-pcie-8gb"].kind == "add"
    assert works["relu@p4-pcie-8gb"].shape == Elements(10 * 512)
    norm = works["ln@p4-pcie-8gb"]
    assert (norm.family, norm.kind, norm.shape) == (Family.NORMALIZATION, "layer_norm", Rows(10, 512))
    assert works["softmax@p4-pcie-8gb"].moved_bytes == 2 * size
