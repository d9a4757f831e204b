"""Real processes: `perfcast serve` and `server.py` answer as the command line does, and stop as asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from predictor.client import RemotePredictor
from predictor.request import PredictionRequest

ROOT = Path(__file__).resolve().parents[2]
PERFCAST = [sys.executable, "-m", "predictor.cli.main"]
ARGUMENTS = ("examples/resnet50.onnx", "--device", "a100-pcie-40gb", "--batch", "32", "--output", "json")


def _environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERFCAST_")}
    return {**kept, **variables}


def _perfcast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERFCAST, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, env=_environment()
    )


@contextmanager
def _running(command: list[str], **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its address; stopped hard if the test leaves it running."""
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=_environment(**variables)
    )
    assert process.stderr is not None
    try:
        yield process, _address(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def _address(process: subprocess.Popen[str]) -> str:
    return str(_event(process, "serving")["address"])


def _event(process: subprocess.Popen[str], name: str) -> dict[str, object]:
    """The next event of that name in the log."""
    assert process.stderr is not None
    for line in process.stderr:
        event: dict[str, object] = json.loads(line) if line.startswith("{") else {}
        if event.get("event") == name:
            return event
    raise AssertionError(f"the server ended with {process.wait()} before {name!r}")


def test_one_command_answers_alike_in_process_and_through_a_server() -> None:
    local = _perfcast("predict", *ARGUMENTS)
    assert local.returncode == 0, local.stderr
    with _running([*PERFCAST, "serve", "--port", "0"]) as (process, address):
        remote = _perfcast("predict", *ARGUMENTS, "--server", address)
        assert json.loads(remote.stdout) == json.loads(local.stdout)
        bad = _perfcast("predict", "README.md", *ARGUMENTS[1:], "--server", address)
        assert bad.returncode == 3
        assert len(bad.stderr.splitlines()) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    gone = _perfcast("predict", *ARGUMENTS, "--server", address, "--timeout", "2")
    assert gone.returncode == 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_script_takes_variables_and_stops(number: signal.Signals) -> None:
    with _running([sys.executable, "server.py"], PERFCAST_PORT="0", PERFCAST_TOKEN="t") as (process, address):
        with RemotePredictor(address, token="t") as client:
            answer = client.predict(PredictionRequest(str(ROOT / ARGUMENTS[0]), "a100-pcie-40gb", batch=2))
            assert answer.bundle == client.bundle_id
        process.send_signal(number)
        assert process.wait(20) == 0


def test_server_script_names_a_bad_variable() -> None:
    done = subprocess.run(
        [sys.executable, "server.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=_environment(PERFCAST_PORT="http"),
    )
    assert done.returncode == 3
    assert done.stderr == "error: PERFCAST_PORT='http': expected int\n"


def test_workers_share_a_port_and_are_replaced() -> None:
    request = PredictionRequest(str(ROOT / ARGUMENTS[0]), "a100-pcie-40gb", batch=2)
    with _running([*PERFCAST, "serve", "--port", "0", "--workers", "2"]) as (process, address):
        with RemotePredictor(address, timeout_s=60, attempts=50) as client:
            assert _address(process) == address
            before = client.predict(request)
            workers = _children(process.pid)
            assert len(workers) == 2
            os.kill(workers[0], signal.SIGKILL)
            assert _event(process, "worker died")["pid"] == workers[0]
            assert _address(process) == address
            assert set(workers) - set(_children(process.pid)) == {workers[0]}
            assert len(_children(process.pid)) == 2
            client.close()
            assert client.predict(request) == before
        taken = _perfcast("serve", "--port", address.rpartition(":")[2])
        assert taken.returncode == 3
        assert "cannot listen" in taken.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def _children(pid: int) -> list[int]:
    """Worker processes of the server; multiprocessing's resource tracker is none."""
    tasks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(task) for task in tasks if "spawn_main" in Path(f"/proc/{task}/cmdline").read_text()]


def test_workers_do_not_outlive_the_process_that_watches_them() -> None:
    with _running([*PERFCAST, "serve", "--port", "0", "--workers", "2"]) as (process, _):
        workers = _children(process.pid)
        process.kill()
        deadline_s = time.monotonic() + 20
        while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
