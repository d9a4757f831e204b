"""Numbers that no job and no device has are refused where they enter, with the field's name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.errors import InvalidPlan, InvalidRequest
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import ClusterSpec, DeviceSpec, LinkSpec
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest

DEVICE = find_device("a100-pcie-40gb")
LINK = LinkSpec("nvlink", 1e-6, 1e9)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"batch": value} for value in (0, -1, 1.5, 2.0, NAN, INF, "8", True, [1], 2**63)),
        *({"dims": value} for value in ({"n": 0}, {"n": 1.5}, {"n": "x"}, {"n": None}, {5: 5}, 5, None)),
        *({"input_shapes": {"x": value}} for value in ((1, 0), (1.5,), "1x3", 5, None, (1, NAN))),
        *({"power_limit_w": value} for value in (0, -5, NAN, INF, "200", True, 10**400)),
        {"device": None},
        {"device": 5},
        {"cluster": 5},
        {"plan": 2},
        {"device": "\udcff"},
        {"cluster": "\udcff"},
        {"dims": {"\udcff": 2}},
        {"input_shapes": {"\udcff": (1,)}},
        {"strict": "no"},
        {"graph": 5},
        {"graph": None},
    ],
    ids=str,
)
def test_requests_refuse(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="expected") as caught:
        PredictionRequest(**{"graph": "model.onnx", "device": "a100", **wrong})
    assert caught.value.metadata["field"].startswith(next(iter(wrong)))


def test_numpy_numbers_and_lists_become_plain() -> None:
    request = PredictionRequest(
        bytearray(b"x"),  # type: ignore[arg-type]
        "a100",
        batch=np.int64(8),  # type: ignore[arg-type]
        dims={"n": np.int32(3)},  # type: ignore[dict-item]
        input_shapes={"x": [1, np.int64(3)]},  # type: ignore[dict-item]
        power_limit_w=np.float32(200),  # type: ignore[arg-type]
    )
    assert request == PredictionRequest(
        b"x", "a100", 8, dims={"n": 3}, input_shapes={"x": (1, 3)}, power_limit_w=200
    )
    assert type(request.batch) is int


@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, INF, "2", True, None, 2**63])
def test_plans_refuse(value: Any) -> None:
    with pytest.raises(InvalidPlan, match="dp is"):
        Plan(dp=value)
    with pytest.raises(InvalidPlan, match="bucket_bytes is"):
        Plan(bucket_bytes=value)


NEEDED = ("memory_bytes", "memory_bytes_per_s", "vector_flops_per_s", "core_count", "clock_hz", "tdp_w")
OPTIONAL = ("l2_bytes", "idle_w", "year", "pcie_generation", "link_bytes_per_s", "reported_memory_bytes")


@pytest.mark.parametrize("name", [*NEEDED, *OPTIONAL])
@pytest.mark.parametrize("value", [0, -1, NAN, INF, "x", 1e-320, 1e300, 10**400])
def test_devices_refuse_numbers_without_sense(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        replace(DEVICE, **{name: value})
    assert caught.value.metadata["field"] == f"device.{name}"


@pytest.mark.parametrize("name", NEEDED)
def test_devices_need_their_peaks(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is None"):
        replace(DEVICE, **{name: None})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"matrix_flops_per_s": None},
        {"matrix_flops_per_s": {"fp32": 0}},
        {"matrix_flops_per_s": {"fp32": NAN}},
        {"idle_w": DEVICE.tdp_w},
        {"kind": "toaster"},
        {"core_count": 108.5},
        {"year": 2020.5},
        {"architecture": None},
        {"id": None},
    ],
    ids=str,
)
def test_devices_refuse(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        replace(DEVICE, **wrong)


def test_a_device_without_a_matrix_table_or_optional_facts_is_fine() -> None:
    bare: DeviceSpec = replace(DEVICE, matrix_flops_per_s={}, **dict.fromkeys(OPTIONAL))  # type: ignore[arg-type]
    assert bare.tdp_w == DEVICE.tdp_w


@pytest.mark.parametrize(
    "link", [("x", 0, 0), ("x", NAN, 1e9), ("x", -1, 1e9), ("x", 0, NAN), ("x", 0, INF), ("x", None, 1)]
)
def test_links_refuse(link: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        LinkSpec(*link)


@pytest.mark.parametrize("counts", [(0, 1), (8, 0), (-2, -2), (NAN, 1), (1.5, 2)])
def test_clusters_refuse(counts: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected at least 1"):
        ClusterSpec("c", DEVICE.id, counts[0], counts[1], LINK, LINK)
