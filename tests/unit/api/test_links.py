"""Which measured times a job's cluster carries."""

from pathlib import Path

from predictor.api import Predictor
from predictor.api.links import Links
from predictor.hardware.catalog import find_cluster
from predictor.models.bundle import Bundle, write_bundle
from predictor.models.corpus.exchanges import frame_of
from predictor.models.plans.exchange_curves import MODEL_NAME, ExchangeModel
from predictor.models.plans.exchange_training import train_exchanges
from predictor.models.plans.network_calibration import NetworkCalibration, link_numbers
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Mode, Precision, Runtime
from tests.unit.models.test_exchanges import rows

CLUSTER = find_cluster("dgx-a100-80gb")


def test_learned_times_and_calibrated_links_go_together(tmp_path: Path) -> None:
    trained = train_exchanges([frame_of(rows(), "made-up")], 3)[0]
    write_bundle(tmp_path / "bundle", {MODEL_NAME: trained}, {})
    network = NetworkCalibration(link_numbers(CLUSTER), (0.5, 0.0), (0.1, 0.1), 4)
    links = Links(Bundle.load(tmp_path / "bundle"), [network])
    found = links.measured(CLUSTER)
    assert isinstance(found.exchanges, ExchangeModel)
    assert not found.exchanges.own_kernels
    assert found.intra_node.bytes_per_s < CLUSTER.intra_node.bytes_per_s
    engine = links.measured(CLUSTER, Runtime.TENSORRT).exchanges
    assert isinstance(engine, ExchangeModel)
    assert engine.own_kernels


def test_explanations_name_the_exchanges_of_a_plan() -> None:
    request = PredictionRequest(
        "examples/gpt2.onnx",
        "a100-sxm-80gb",
        batch=8,
        mode=Mode.INFER,
        precision=Precision.FP16,
        cluster="dgx-a100-80gb",
        plan=Plan(tp=2),
    )
    found = Predictor.load().explain(request).exchanges
    assert [(row.group, row.ranks, row.nodes, row.link) for row in found] == [("tp", 2, 1, "nvlink")]
