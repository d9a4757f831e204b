"""How a stored booster is read: on one thread, so that answers are bit-identical and forks are safe."""

from __future__ import annotations

from typing import Any


def load_booster(blob: bytes) -> Any:
    """The `xgboost.Booster` in UBJ bytes, set to one thread.

    Reading counts too: it would start OpenMP's threads, and a process forked after that hangs in its first
    parallel region (libgomp keeps its pool's state, not its threads).
    """
    import xgboost

    with xgboost.config_context(nthread=1):
        booster = xgboost.Booster()
        booster.load_model(bytearray(blob))
        booster.set_param({"nthread": 1})
    return booster
