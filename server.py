"""Runs the gRPC server from a checkout or container: `python server.py`.

Settings come from PERFCAST_* variables (PERFCAST_HOST, PERFCAST_PORT, PERFCAST_WORKERS, ...; the fields of
predictor.serve.settings.ServerSettings). `perfcast serve` is the same with flags.
"""

from __future__ import annotations

import sys

from predictor.errors import PerfcastError


def main() -> int:
    """Serves until SIGTERM; returns the exit code."""
    from predictor.serve.app import main as serve
    from predictor.serve.settings import ServerSettings

    try:
        serve(ServerSettings.from_environment())
    except PerfcastError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
