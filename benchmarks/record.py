"""What every record in docs/benchmarks says about itself, and how samples become numbers."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "docs" / "benchmarks"


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The sample below which that fraction lies (nearest rank)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def cpu_name() -> str:
    """Model name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def commit() -> str:
    """The checkout's commit, marked when files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def process_status(pid: int) -> dict[str, int]:
    """Resident memory now and at its peak, in bytes, and CPU time so far in clock ticks."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {
        "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "peak_resident_bytes": int(status["VmHWM"].split()[0]) * 1024,
        # Fields 14 and 15 of stat(5): user and system time.
        "cpu_ticks": int(fields[11]) + int(fields[12]),
    }


def own_bytes(field: str) -> int:
    """A size in this process' /proc/self/status, e.g. VmRSS."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> None:
    """Makes VmHWM of this process start again from here, where the kernel permits (proc(5), clear_refs)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    return process_status(pid)["cpu_ticks"] / os.sysconf("SC_CLK_TCK")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(name: str, title: str, command: str, bundle: str, body: str) -> Path:
    """Writes docs/benchmarks/NAME.md with the circumstances of the run."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    facts = (
        f"- Command: `{command}` · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · commit {commit()}\n"
        f"- Bundle: `{bundle}`\n"
        f"- Machine: {os.cpu_count()} cores, {cpu_name()}, Python {platform.python_version()}\n"
        f"- Load average at the end: {load}\n"
    )
    path = RECORDS / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {title}\n\n{facts}\n{body.strip()}\n", encoding="utf-8")
    return path
