"""Readers of timed collectives, on a few lines in each publisher's format."""

import gzip
from pathlib import Path

import pytest

from predictor.models.corpus import aiconfigurator_comm, nccl_tests_logs, vidur_network
from predictor.models.corpus.exchanges import Exchange, exchange_of
from predictor.models.corpus.schema import Counted, conform


def _gzipped(path: Path, lines: list[str]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


def _rows(counted: Counted, source: str) -> list[tuple[Exchange, float]]:
    frame = conform(counted.frame, source)
    return [(exchange_of(text), value) for text, value in frame.select("configuration", "value").iter_rows()]


_SHARED = "system,stack,version,framework,orig_version,device,op_name,kernel_source"


def test_message_sizes_of_aiconfigurator_are_elements(tmp_path: Path) -> None:
    start = "h100_sxm,nccl,2.27,X,2.27,H100"
    _gzipped(
        tmp_path / "nccl_perf.csv.gz",
        [
            f"{_SHARED},nccl_dtype,num_gpus,message_size,latency",
            f"{start},all_reduce,NCCL,half,8,1024,0.02",
            f"{start},all_reduce,NCCL,half,8,1024,0.04",
            f"{start},all_reduce,NCCL,int8,8,1024,0.01",
            f"{start},alltoall,NCCL,half,8,1024,0.01",
        ],
    )
    _gzipped(
        tmp_path / "oneccl_perf.csv.gz",
        [
            f"{_SHARED},nccl_dtype,num_gpus,message_size,latency",
            "b60,oneccl,1,V,1,Intel,all_gather,oneCCL,half,2,256,0.013",
        ],
    )
    _gzipped(
        tmp_path / "custom_allreduce_perf.csv.gz",
        [
            f"{_SHARED},allreduce_dtype,num_gpus,message_size,latency,backend,implementation",
            "a100_sxm,v,1,V,1,A100,all_reduce,vLLM_custom_graph,bfloat16,4,128,0.005,vllm_graph,",
            "a100_sxm,v,1,V,1,A100,all_reduce,vLLM_custom_eager,bfloat16,4,128,0.045,vllm_eager,",
        ],
    )
    counted = aiconfigurator_comm.read(tmp_path)
    found = {
        (row.library, row.collective, row.size_bytes): (row, time_s)
        for row, time_s in _rows(counted, aiconfigurator_comm.SOURCE)
    }
    assert counted.counts["available"] == sum(n for name, n in counted.counts.items() if name != "available")
    half, time_s = found["nccl", "all_reduce", 2048]
    assert (half.in_switch, half.intra, half.nodes) == (True, ("nvlink", 450e9), 1)
    assert time_s == pytest.approx(30e-6)
    assert not found["nccl", "all_reduce", 1024][0].in_switch
    assert ("nccl", "all_to_all", 2048) in found
    assert found["custom", "all_reduce", 256][1] == pytest.approx(5e-6)
    assert found["oneccl", "all_gather", 512][0].device == "arc-pro-b60-24gb"


def test_vidur_keeps_the_slowest_rank_inside_a_node(tmp_path: Path) -> None:
    columns = "topology,collective,num_workers,devices_per_node,size,rank"
    times = "time_stats.all_reduce.median,time_stats.send_recv.median"
    _gzipped(
        tmp_path / "network.csv.gz",
        [
            f"{columns},{times}",
            "a100_dgx,all_reduce,8,8,65536,0,0.030,",
            "a100_dgx,all_reduce,8,8,65536,1,0.032,",
            "a100_dgx,all_reduce,16,8,65536,0,0.097,",
            "a100_pairwise_nvlink,all_reduce,4,4,1048576,0,0.124,",
            "h100_pairwise_nvlink,send_recv,2,2,65536,0,,0.010",
            "a40_pairwise_nvlink,send_recv,2,2,65536,0,,0.016",
        ],
    )
    counted = vidur_network.read(tmp_path)
    rows = _rows(counted, vidur_network.SOURCE)
    assert counted.counts["available"] == sum(n for name, n in counted.counts.items() if name != "available")
    assert {(row.system, row.intra[0]): time_s for row, time_s in rows} == {
        ("vidur-network/a100_dgx", "nvlink"): pytest.approx(32e-6),
        ("vidur-network/a100_pairwise_nvlink", "pcie"): pytest.approx(124e-6),
    }


def test_logs_without_device_or_network_are_left_out(tmp_path: Path) -> None:
    columns = "system,gpu,nodes,gpus_per_node,ranks,inter_node,collective,size_B,time_us"
    lines = [
        columns,
        "AWS p4d,A100-SXM4-40GB,2,8,16,EFA v1 4x100Gb/s,all_reduce,1024,179",
        "node,H200-SXM5-141GB,1,8,8,n/a,all_reduce,1024,30",
        "8x H200 node (NVLS off),H200-SXM5-141GB,1,8,8,n/a,all_reduce,1024,31",
        "AWS Trn1,Trainium,,,,unknown,all_reduce,8,63",
        "A800,A800-SXM4-80GB,12,2,24,unknown RDMA,all_reduce,1024,90",
    ]
    (tmp_path / "nccl_tests_parsed.csv").write_text("\n".join(lines) + "\n")
    counted = nccl_tests_logs.read(tmp_path)
    rows = {row.system.split("/")[1]: row for row, _ in _rows(counted, nccl_tests_logs.SOURCE)}
    assert counted.counts["available"] == sum(n for name, n in counted.counts.items() if name != "available")
    assert set(rows) == {"AWS p4d", "node", "8x H200 node (NVLS off)"}
    across = rows["AWS p4d"]
    assert (across.nodes, across.per_node, across.inter) == (2, 8, ("efa", 6.25e9))
    assert rows["node"].in_switch
    assert not rows["8x H200 node (NVLS off)"].in_switch
