"""The last step: costs of one program become a Prediction, its warnings and its explanation."""

from __future__ import annotations

from collections import Counter, defaultdict

from predictor.compose.energy import compose_energy
from predictor.compose.memory import compose_memory
from predictor.compose.time import ProgramCosts, TimeCost, compose_time
from predictor.features.work import OpWork, Program
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.memory import MemoryModel
from predictor.models.power import PowerModel
from predictor.request import PredictionRequest
from predictor.types import Notice, OpCostRow, Prediction

# Shares of time below this are not worth a warning.
_NOTABLE_FRACTION = 0.02
