import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from predictor.errors import InvalidInput, UnknownDevice
from predictor.hardware import catalog
from predictor.hardware.catalog import find_device, list_devices, normalize_name
from predictor.hardware.spec import DeviceKind

DEVICE = """
id = "{id}"
memory_gib = 8
memory_gb_per_s = 100
vector_tflops = 5
core_count = 10
clock_mhz = 1000
tdp_w = 75
"""

# Device names as public measurement sets write them, and the chip that each of them means there.
MEASURED = {
    # timm, torchvision harness, NAS latency tables
    "rtx3090": "rtx-3090-24gb",
    "rtx4090": "rtx-4090-24gb",
    "4090": "rtx-4090-24gb",
    "i9_10940x": "core-i9-10940x",
    "GeForce GTX 1080 Ti": "gtx-1080-ti-11gb",
    "GeForce RTX 2080 Ti": "rtx-2080-ti-11gb",
    "TITAN RTX": "titan-rtx-24gb",
    "TITAN V": "titan-v-12gb",
    "TITAN Xp": "titan-xp-12gb",
    "1080ti": "gtx-1080-ti-11gb",
    "2080ti": "rtx-2080-ti-11gb",
    "titan_rtx": "titan-rtx-24gb",
    "titanx": "titan-x-pascal-12gb",
    "titan_xp": "titan-xp-12gb",
    "titanxp": "titan-xp-12gb",
    "gold_6226": "xeon-gold-6226",
    "gold_6240": "xeon-gold-6240",
    "silver_4114": "xeon-silver-4114",
    "silver_4210r": "xeon-silver-4210r",
    "pixel2": "pixel-2",
    "pixel3": "pixel-3",
    "raspi4": "raspberry-pi-4-4gb",
    "samsung_a50": "galaxy-a50",
    "samsung_s7": "galaxy-s7",
    "essential_ph_1": "essential-ph-1",
    # Lambda
    "A10": "a10-pcie-24gb",
    "A100 40GB PCIe": "a100-pcie-40gb",
    "A100 40GB SXM4": "a100-sxm-40gb",
    "A100 80GB PCIe": "a100-pcie-80gb",
    "A100 80GB SXM4": "a100-sxm-80gb",
    "A40": "a40-pcie-48gb",
    "GTX 1080 Ti": "gtx-1080-ti-11gb",
    "H100 80GB PCIe": "h100-pcie-80gb",
    "H100 80GB SXM5": "h100-sxm-80gb",
    "Quadro RTX 5000": "quadro-rtx-5000-16gb",
    "Quadro RTX 6000": "quadro-rtx-6000-24gb",
    "Quadro RTX 8000": "quadro-rtx-8000-48gb",
    "RTX 2070 Max-Q": "rtx-2070-max-q-8gb",
    "RTX 2080 Max-Q": "rtx-2080-max-q-8gb",
    "RTX 2080 Super Max-Q": "rtx-2080-super-max-q-8gb",
    "RTX 2080 Ti": "rtx-2080-ti-11gb",
    "RTX 3070": "rtx-3070-8gb",
    "RTX 3080": "rtx-3080-10gb",
    "RTX 3080 Max-Q": "rtx-3080-max-q-16gb",
    "RTX 3090": "rtx-3090-24gb",
    "RTX A4000": "rtx-a4000-16gb",
    "RTX A4500": "rtx-a4500-20gb",
    "RTX A5000": "rtx-a5000-24gb",
    "RTX A5500": "rtx-a5500-24gb",
    "RTX A6000": "rtx-a6000-48gb",
    "Titan RTX": "titan-rtx-24gb",
    "V100 16GB": "v100-sxm-16gb",
    "V100 16GB SXM2": "v100-sxm-16gb",
    "A100-PCIE-40GB": "a100-pcie-40gb",
    "A100-PCIE-80GB": "a100-pcie-80gb",
    "A100-SXM-80GB": "a100-sxm-80gb",
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "GeForce_RTX_2070_with_Max-Q_Design": "rtx-2070-max-q-8gb",
    "GeForce_RTX_2080_Super_with_Max-Q_Design": "rtx-2080-super-max-q-8gb",
    "GeForce_RTX_3080_Laptop_GPU": "rtx-3080-max-q-16gb",
    "NVIDIA_A100_80GB_PCIe": "a100-pcie-80gb",
    "NVIDIA_H100_80GB_HBM3": "h100-sxm-80gb",
    "NVIDIA_H100_PCIe": "h100-pcie-80gb",
    "NVIDIA_RTX_A5500": "rtx-a5500-24gb",
    "Tesla_V100-SXM2-16GB": "v100-sxm-16gb",
    "Tesla_V100-SXM2-32GB": "v100-sxm-32gb",
    # NeuSight
    "AMD_Instinct_MI100": "mi100-pcie-32gb",
    "AMD Instinct MI210": "mi210-pcie-64gb",
    "NVIDIA_A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA_L4": "l4-pcie-24gb",
    "Tesla_P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla_P4": "p4-pcie-8gb",
    "Tesla_T4": "t4-pcie-16gb",
    "Tesla_V100-PCIE-32GB": "v100-pcie-32gb",
    # gavel, catapult layers, Zeus, GAISSA, Sia
    "k40": "k40-pcie-12gb",
    "k80": "k80-pcie-12gb",
    "m60": "m60-pcie-8gb",
    "p100": "p100-pcie-16gb",
    "v100": "v100-sxm-16gb",
    "rtx6000": "quadro-rtx-6000-24gb",
    "NVIDIA GeForce GTX 750 Ti": "gtx-750-ti-2gb",
    "NVIDIA GeForce RTX 3090": "rtx-3090-24gb",
    "t4": "t4-pcie-16gb",
    # AIConfigurator, vidur, nccl-tests, ML.ENERGY
    "a100_sxm": "a100-sxm-80gb",
    "b200_sxm": "b200-sxm-180gb",
    "b300_sxm": "b300-sxm-288gb",
    "b60": "arc-pro-b60-24gb",
    "gb200": "gb200-superchip-186gb",
    "gb300": "gb300-superchip-288gb",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "l40s": "l40s-pcie-48gb",
    "rtx_pro_6000_server": "rtx-pro-6000-server-96gb",
    "NVIDIA B200": "b200-sxm-180gb",
    "NVIDIA B300 SXM6 AC": "b300-sxm-288gb",
    "NVIDIA H200": "h200-sxm-141gb",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server-96gb",
    "Intel(R) Arc(TM) Pro B60 Graphics": "arc-pro-b60-24gb",
    "Intel(R) Graphics [0xe211]": "arc-pro-b60-24gb",
    "a40": "a40-pcie-48gb",
    "a800": "a800-sxm-80gb",
    "h800": "h800-sxm-80gb",
    "h20": "h20-sxm-96gb",
    "MI300X": "mi300x-oam-192gb",
    "MI325X": "mi325x-oam-256gb",
    "Trainium": "trainium1-32gb",
    "A800-SXM4-80GB": "a800-sxm-80gb",
    "V100-SXM2-32GB": "v100-sxm-32gb",
    # MLPerf Training
    "AMD Instinct MI300X 192GB HBM3": "mi300x-oam-192gb",
    "AMD Instinct MI325X 256GB HBM3E DLC": "mi325x-oam-256gb",
    "AMD Radeon RX 7900 XTX": "rx-7900-xtx-24gb",
    "Graphcore Bow IPU": "bow-ipu",
    "Graphcore IPU GC200": "gc200-ipu",
    "H100 NVL Tensor Core GPU (PCIe)": "h100-nvl-94gb",
    "Habana Gaudi": "gaudi-oam-32gb",
    "Habana Gaudi HL-205": "gaudi-oam-32gb",
    "Habana Gaudi2": "gaudi2-oam-96gb",
    "Intel Gaudi2": "gaudi2-oam-96gb",
    "Intel(R) Gaudi(R) 2 AI Accelerator": "gaudi2-oam-96gb",
    "NVIDIA A100 - PCIe - 80 GB": "a100-pcie-80gb",
    "NVIDIA A100-PCIE-40GB (250W)": "a100-pcie-40gb",
    "NVIDIA A100-PCIE-80GB (300W)": "a100-pcie-80gb",
    "NVIDIA A100-PCIe-40GB": "a100-pcie-40gb",
    "NVIDIA A100-SXM-40GB": "a100-sxm-40gb",
    "NVIDIA A100-SXM-80GB (400W)": "a100-sxm-80gb",
    "NVIDIA A100-SXM-80GB CTS": "a100-sxm-80gb",
    "NVIDIA A100-SXM4-40GB (400W)": "a100-sxm-40gb",
    "NVIDIA A100-SXM4-80GB (500W)": "a100-sxm-80gb",
    "NVIDIA A10G": "a10g-pcie-24gb",
    "NVIDIA A30": "a30-pcie-24gb",
    "NVIDIA A30-PCIE-24GB": "a30-pcie-24gb",
    "NVIDIA A40": "a40-pcie-48gb",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "b200-sxm-180gb",
    "NVIDIA Blackwell GPU (GB200)": "gb200-superchip-186gb",
    "NVIDIA GeForce RTX 4090": "rtx-4090-24gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
    "NVIDIA H100-PCIe-80GB": "h100-pcie-80gb",
    "NVIDIA H100-SXM-80GB": "h100-sxm-80gb",
    "NVIDIA H100-SXM5-96GB": "h100-sxm-96gb",
    "NVIDIA H200-NVL-141GB": "h200-nvl-141gb",
    "NVIDIA H200-SXM5-141GB": "h200-sxm-141gb",
    "NVIDIA L40": "l40-pcie-48gb",
    "NVIDIA L40S": "l40s-pcie-48gb",
    "NVIDIA RTX A5000": "rtx-a5000-24gb",
    "TPU-trillium": "tpu-v6e-32gb",
    "TPU-v4": "tpu-v4-32gb",
    "TPU-v5e": "tpu-v5e-16gb",
    "TPU-v5p": "tpu-v5p-95gb",
    # curated tables, NVIDIA example tables, optimum-habana
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "A100-SXM4-80GB (paper)": "a100-sxm-80gb",
    "DGX-B200": "b200-sxm-180gb",
    "DGX-B300": "b300-sxm-288gb",
    "DGX-GB200": "gb200-superchip-186gb",
    "DGX-GB300": "gb300-superchip-288gb",
    "DGX-H100": "h100-sxm-80gb",
    "GB200 (4 GPUs per node)": "gb200-superchip-186gb",
    "TPU v6e (Trillium)": "tpu-v6e-32gb",
    "TPU v7x (Ironwood)": "tpu-v7x-192gb",
    "V100-SXM2-16GB": "v100-sxm-16gb",
    "3070 8GB": "rtx-3070-8gb",
    "3080 10GB": "rtx-3080-10gb",
    "3080 Ti 12GB": "rtx-3080-ti-12gb",
    "3090 24GB": "rtx-3090-24gb",
    "4070 Ti 12GB": "rtx-4070-ti-12gb",
    "4080 16GB": "rtx-4080-16gb",
    "A100-80GB": "a100-sxm-80gb",
    "A100 SXM 80GB": "a100-sxm-80gb",
    "L40S 48GB": "l40s-pcie-48gb",
    "M1 7\u2011Core GPU 8GB": "apple-m1-7-core",
    "M1 Max 32\u2011Core GPU 64GB": "apple-m1-max",
    "M2 Ultra 76-Core GPU 192GB": "apple-m2-ultra",
    "M3 Max 40\u2011Core GPU 64GB": "apple-m3-max",
    "RTX 4000 Ada 20GB": "rtx-4000-ada-20gb",
    "RTX 6000 Ada 48GB": "rtx-6000-ada-48gb",
    "RTX PRO 6000 Blackwell Server": "rtx-pro-6000-server-96gb",
    "A100-80G-PCIe-NVLink": "a100-pcie-80gb",
    "AMD Radeon Pro V520": "radeon-pro-v520-8gb",
    "AWS Inferentia": "inferentia1-8gb",
    "NVIDIA GRID K520": "k520-pcie-4gb",
    "NVIDIA T4G Tensor Core": "t4g-pcie-16gb",
    "NVIDIA Tesla K80": "k80-pcie-12gb",
    "NVIDIA Tesla V100": "v100-sxm-16gb",
    "V100-16GB": "v100-sxm-16gb",
    "V100 32GB": "v100-sxm-32gb",
    "T4 16GB": "t4-pcie-16gb",
    "gaudi1": "gaudi-oam-32gb",
    "gaudi3": "gaudi3-oam-128gb",
    # MLPerf Mobile (the phones of which a document states clusters and clocks)
    "SD8G3": "snapdragon-8-gen-3",
    "SDM888+": "snapdragon-888-plus",
    "SDX_Elite": "snapdragon-x-elite",
    "TGL-i7-1195G7-OpenVINO": "core-i7-1195g7",
}


@pytest.fixture(autouse=True)
def no_devices_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PERFCAST_DEVICES", raising=False)


@pytest.mark.parametrize(("name", "device_id"), MEASURED.items())
def test_every_measured_name_means_one_chip(name: str, device_id: str) -> None:
    assert find_device(name).id == device_id


def test_names_are_unique() -> None:
    keys = Counter(
        key
        for spec in list_devices()
        for key in {normalize_name(text) for text in (spec.id, spec.name, *spec.aliases)}
        | {normalize_name(f"{spec.vendor} {text}") for text in (spec.id, spec.name, *spec.aliases)}
    )
    assert [key for key, times in keys.items() if times > 1] == []


def test_scanned_names_are_the_parsed_ones() -> None:
    parsed = {key for path in catalog._shipped_files() for key in catalog._shipped_devices(path)}
    assert set(catalog._shipped_names()) == parsed
    for spec in list_devices():
        assert find_device(spec.id) is find_device(spec.id.upper().replace("-", "_"))


def test_ids_are_slugs_with_memory_for_data_center_gpus() -> None:
    for spec in list_devices():
        assert spec.id == normalize_name(spec.id)
        assert set(spec.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        if spec.form_factor in {"sxm", "oam", "superchip"}:
            assert spec.id.endswith(f"-{spec.form_factor}-{spec.memory_bytes / 2**30:.0f}gb")


@pytest.mark.parametrize(
    ("device_id", "vector", "compute", "matrix"),
    [
        ("a100-pcie-40gb", 19.49, "fp16", 312),
        ("v100-pcie-32gb", 14.13, "fp16", 112),
        ("p4-pcie-8gb", 5.704, "fp32", 5.704),
        ("mi100-pcie-32gb", 23.07, "fp32", 46.1),
        ("mi210-pcie-64gb", 22.63, "fp32", 45.3),
        ("rtx-3090-24gb", 35.58, "fp16", 71.2),
        ("h100-sxm-80gb", 66.91, "bf16", 989.4),
    ],
)
def test_peaks_are_dense(device_id: str, vector: float, compute: str, matrix: float) -> None:
    spec = find_device(device_id)
    assert spec.vector_flops_per_s / 1e12 == pytest.approx(vector, rel=2e-3)
    assert spec.matrix_flops_per_s[compute] / 1e12 == pytest.approx(matrix, rel=1e-6)


def test_numbers_are_physical() -> None:
    for spec in list_devices():
        rates = spec.matrix_flops_per_s
        assert all(math.isfinite(rate) and rate > 0 for rate in rates.values()), spec.id
        assert rates["fp32"] >= spec.vector_flops_per_s, spec.id
        if "tf32" in rates and "bf16" in rates:
            assert spec.vector_flops_per_s * 0.999 <= rates["tf32"] * 1.03, spec.id
            assert rates["tf32"] <= rates["bf16"], spec.id
        if spec.idle_w is not None:
            assert spec.idle_w < spec.tdp_w
        if spec.reported_memory_bytes is not None:
            assert 0.9 * spec.memory_bytes < spec.reported_memory_bytes <= spec.memory_bytes * 1.001, spec.id


def test_vector_rate_follows_from_cores_and_clock_on_nvidia_cards() -> None:
    lanes = {
        "Pascal": {64, 128},
        "Volta": {64},
        "Turing": {64},
        "Ampere": {64, 128},
        "Hopper": {128},
        "Ada": {128},
    }
    for spec in list_devices(DeviceKind.GPU, "nvidia"):
        # H20: the data sheet caps the rates below what its SMs and clock would give.
        if spec.architecture in lanes and spec.id != "h20-sxm-96gb":
            rates = [spec.core_count * n * 2 * spec.clock_hz for n in lanes[spec.architecture]]
            assert any(rate == pytest.approx(spec.vector_flops_per_s, rel=0.02) for rate in rates), spec.id


def test_list_by_kind_and_vendor() -> None:
    cpus = list_devices(kind="cpu", vendor="AMD")
    assert {spec.kind for spec in cpus} == {DeviceKind.CPU}
    assert {spec.vendor for spec in cpus} == {"AMD"}
    assert [spec.id for spec in cpus] == sorted(spec.id for spec in cpus)


@pytest.mark.parametrize(
    ("name", "near"),
    [("rtx-3090x", "rtx-3090-24gb"), ("a100-sxm-90gb", "a100-sxm-80gb"), ("", "Add a device")],
)
def test_unknown_name_shows_the_nearest_ids(name: str, near: str) -> None:
    with pytest.raises(UnknownDevice) as caught:
        find_device(name)
    assert near in caught.value.message
    assert "\n" not in caught.value.message


def test_a_part_of_a_name_is_no_name() -> None:
    for name in ("a100-pcie-40", "3090 24", "titan", "GeForce", "NVIDIA"):
        with pytest.raises(UnknownDevice):
            find_device(name)


def test_users_files_are_found_and_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config" / "perfcast" / "devices"
    config.mkdir(parents=True)
    (config / "mine.toml").write_text(DEVICE.format(id="mine-8gb"))
    other = tmp_path / "other.toml"
    other.write_text(DEVICE.format(id="t4-pcie-16gb"))
    monkeypatch.setenv("PERFCAST_DEVICES", str(other))
    assert find_device("MINE 8GB").memory_bytes == 8 * 2**30
    assert find_device("t4-pcie-16gb").memory_bytes == 8 * 2**30
    assert {"mine-8gb", "t4-pcie-16gb"} <= {spec.id for spec in list_devices()}


def test_an_edited_file_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    path = tmp_path / "mine.toml"
    path.write_text(DEVICE.format(id="mine"))
    monkeypatch.setenv("PERFCAST_DEVICES", str(tmp_path))
    assert find_device("mine").tdp_w == 75
    path.write_text(DEVICE.format(id="mine").replace("75", "90"))
    os.utime(path, ns=(1, 1))
    assert find_device("mine").tdp_w == 90


def test_two_files_with_one_id_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one.toml", "two.toml"):
        (tmp_path / name).write_text(DEVICE.format(id="twice"))
    monkeypatch.setenv("PERFCAST_DEVICES", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"two\.toml.*twice.*one\.toml"):
        find_device("twice")


def test_absent_path_in_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERFCAST_DEVICES", str(tmp_path / "absent.toml"))
    with pytest.raises(InvalidInput, match=r"absent\.toml.*PERFCAST_DEVICES"):
        find_device("t4")


def test_one_look_up_does_not_read_every_file() -> None:
    code = (
        "from predictor.hardware import catalog;"
        "catalog.find_device('t4');"
        "print(catalog._shipped_devices.cache_info().currsize, len(catalog._shipped_files()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    parsed, files = map(int, done.stdout.split())
    assert parsed == 1 < files
