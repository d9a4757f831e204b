"""Which chip a catalogue device is: what leaves together when a device is held out.

A chip is one under every name, memory size, form factor and power limit of its boards.
"""

from __future__ import annotations

from collections.abc import Mapping

_SHARED: Mapping[str, tuple[str, ...]] = {
    "p100": ("p100-pcie-16gb", "p100-sxm-16gb"),
    "v100": (
        "v100-pcie-16gb",
        "v100-pcie-32gb",
        "v100-sxm-16gb",
        "v100-sxm-32gb",
        "v100s-pcie-32gb",
    ),
    "a100": ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm-40gb", "a100-sxm-80gb"),
    "a800": ("a800-pcie-80gb", "a800-sxm-80gb"),
    "h100": ("h100-pcie-80gb", "h100-sxm-80gb", "h100-sxm-96gb", "h100-nvl-94gb"),
    "h200": ("h200-sxm-141gb", "h200-nvl-141gb"),
    # The full TU102.
    "titanrtx": ("titan-rtx-24gb", "quadro-rtx-6000-24gb", "quadro-rtx-8000-48gb"),
    "rtxa6000": ("rtx-a6000-48gb", "a40-pcie-48gb"),
    "rtx3080max-q": ("rtx-3080-max-q-16gb",),
}
_CHIPS = {device: chip for chip, devices in _SHARED.items() for device in devices}


def chip_of(device: str) -> str:
    """The chip of a catalogue id: boards that share one have one name, others their own without the memory.

    `rtx-2080-ti-11gb` -> `rtx2080ti`.
    """
    if device in _CHIPS:
        return _CHIPS[device]
    parts = device.split("-")
    named = [part for part in parts if not part.endswith("gb") and part not in ("pcie", "sxm")]
    return "".join(named) if any(part.endswith("gb") for part in parts) else device


def multiplies_in_tf32(device: str) -> bool:
    """Whether FP32 of a framework that allows TF32 runs on tensor cores there. Raises UnknownName."""
    from predictor.hardware.catalog import find_device

    return "tf32" in find_device(device).matrix_flops_per_s
