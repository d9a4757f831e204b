"""How a stored booster is read: on one thread, so that answers are bit-identical and forks are safe."""

from __future__ import annotations

import hashlib
import re
from typing import Any

# The last entry of XGBoost's UBJ: the three numbers of the version that wrote it.
_VERSION = re.compile(rb"version\[#L\0{7}\x03(?:i.){3}\}\Z", re.DOTALL)


def content_sha256(blob: bytes) -> str:
    """Hex digest of a booster's UBJ bytes without the library version at their end.

    The same trees saved by another release of XGBoost have the same digest.
    """
    return hashlib.sha256(_VERSION.sub(b"", blob)).hexdigest()


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
