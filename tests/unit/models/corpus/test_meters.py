"""Every row of watts or joules that a model learns from has a meter, and models mix no scopes."""

from __future__ import annotations

from predictor.models.corpus import ml_energy_diffusion, ml_energy_v2, wilkins
from predictor.models.corpus.meters import METERS
from predictor.models.corpus.mlperf_power import SOURCE as NODE_SOURCE
from predictor.models.corpus.schema import SCOPES
from predictor.models.train import KERNEL_POWER_SOURCE, POWER_SOURCES, SERVING_SOURCE, source_meter


def test_sources_of_watts_have_meters() -> None:
    judged = {ml_energy_v2.SOURCE, ml_energy_diffusion.SOURCE, wilkins.SOURCE}
    assert {*POWER_SOURCES, KERNEL_POWER_SOURCE, SERVING_SOURCE, NODE_SOURCE, *judged} == set(METERS)
    assert all(meter.scope in SCOPES for meter in METERS.values())


def test_models_learn_from_one_scope() -> None:
    assert {METERS[source].scope for source in (*POWER_SOURCES, SERVING_SOURCE)} == {"gpu_board"}


def test_bundles_name_the_meter() -> None:
    found = source_meter("zeus-nsdi23")
    assert found["meter"] == {
        "instrument": "NVML board power",
        "scope": "gpu_board",
        "averaged_over": "a training epoch, data loading included",
    }
    assert source_meter("neusight") == {}
