"""Generates predictor/v1 from proto/ and lints the protos: `python proto/generate.py [--check]`.

The stubs are committed. grpcio-tools is pinned to 1.74, so that they load with every protobuf from 6.31.1 on.
`--check` writes to a temporary folder and exits 1 when the committed stubs differ.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "proto"
SOURCES = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.glob("predictor/v1/*.proto"))


def _protoc(*outputs: str) -> None:
    spec = find_spec("google.rpc.status_pb2")
    if spec is None or spec.origin is None:
        raise SystemExit("googleapis-common-protos is missing: pip install -e '.[dev,server]'")
    includes = ("-I", "proto", "-I", str(Path(spec.origin).parents[2]))
    command = [sys.executable, "-m", "grpc_tools.protoc", *includes, *outputs, *SOURCES]
    subprocess.run(command, cwd=ROOT, check=True)


def _generate(target: Path) -> None:
    _protoc(f"--python_out={target}", f"--pyi_out={target}", f"--grpc_python_out={target}")


def _lint(folder: Path) -> None:
    image = folder / "image.binpb"
    # An image, because buf would otherwise fetch google/rpc/status.proto from the network.
    _protoc(f"--descriptor_set_out={image}", "--include_imports", "--include_source_info")
    buf = Path(sys.executable).with_name("buf")
    if buf.exists():
        done = subprocess.run(
            [str(buf), "lint", str(image), "--config", "proto/buf.yaml"], cwd=ROOT, check=False
        )
        if done.returncode:
            raise SystemExit(done.returncode)


def main() -> int:
    """Generates or checks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when the stubs are stale")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _lint(folder)
        if not check:
            _generate(ROOT)
            return 0
        _generate(folder)
        fresh = {path.name: path.read_bytes() for path in (folder / "predictor/v1").iterdir()}
        kept = {path.name: path.read_bytes() for path in (ROOT / "predictor/v1").glob("*_pb2*")}
    stale = sorted(name for name in fresh.keys() | kept.keys() if fresh.get(name) != kept.get(name))
    if stale:
        print(f"stale stubs: {', '.join(stale)}; run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
