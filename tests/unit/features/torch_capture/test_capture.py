"""What a capture holds: the calls of all three phases, lifetimes, and nothing of the module changed."""

from __future__ import annotations

from typing import Any

import pytest

from predictor.errors import InvalidGraph, InvalidInput
from predictor.features.programs.work import Phase
from predictor.features.torch_capture import TorchModel
from predictor.features.torch_capture.calls import Capture, Role
from predictor.types import Mode, Optimizer, Precision

torch = pytest.importorskip("torch")
nn = torch.nn


def kernels(capture: Capture, phase: Phase) -> list[str]:
    """Operators of one phase that are no views and take no memory only."""
    return [
        call.op
        for call in capture.calls
        if call.phase is phase and not call.is_view and not call.op.startswith(("empty", "new_empty"))
    ]


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_forward_backward_and_step_are_those_that_torch_runs() -> None:
    capture = TorchModel(mlp(), torch.empty(5, 8)).capture(mode=Mode.TRAIN, optimizer=Optimizer.MOMENTUM)
    assert kernels(capture, Phase.FORWARD) == ["addmm", "relu", "addmm"]
    # No gradient of the batch: the first layer makes one product less.
    assert kernels(capture, Phase.BACKWARD) == [
        "ones_like",
        "mm",
        "mm",
        "sum",
        "threshold_backward",
        "mm",
        "sum",
    ]
    assert kernels(capture, Phase.OPTIMIZER) == ["_foreach_mul", "_foreach_add", "_foreach_add"]


def test_inference_keeps_nothing_and_runs_forward_only() -> None:
    capture = TorchModel(mlp(), torch.empty(5, 8)).capture(mode=Mode.INFER)
    assert {call.phase for call in capture.calls} == {Phase.FORWARD}
    assert capture.gradients == ()
    assert capture.batch == 5


def test_state_of_the_optimizer_is_made_before_the_captured_step() -> None:
    capture = TorchModel(mlp(), torch.empty(5, 8)).capture(mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
    state = sum(item.size_bytes for item in capture.storages if item.role is Role.STATE)
    assert state == 2 * 4 * capture.parameter_count
    assert "zeros_like" not in kernels(capture, Phase.OPTIMIZER)


def test_calls_carry_the_module_that_ran_them_in_either_direction() -> None:
    capture = TorchModel(mlp(), torch.empty(5, 8)).capture(mode=Mode.TRAIN)
    found = [
        (call.op, module)
        for call, module in zip(capture.calls, capture.modules, strict=True)
        if not call.is_view
    ]
    assert ("relu", "1") in found
    assert ("threshold_backward", "1") in found
    assert [module for op, module in found if op == "addmm"] == ["0", "2"]
    assert [module for op, module in found if op == "mm"] == ["2", "2", "0"]


def test_gradients_become_ready_from_the_last_layer_on() -> None:
    capture = TorchModel(mlp(), torch.empty(5, 8)).capture(mode=Mode.TRAIN)
    ready = {item.parameter: item.call_index for item in capture.gradients}
    assert set(ready) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert max(ready["2.weight"], ready["2.bias"]) < min(ready["0.weight"], ready["0.bias"])


def test_no_weight_is_allocated() -> None:
    with torch.device("meta"):
        huge = nn.Linear(1_000_000, 1_000_000, bias=False)
    capture = TorchModel(huge, torch.empty(2, 1_000_000, device="meta")).capture(mode=Mode.TRAIN)
    assert capture.parameter_count == 10**12
    assert sum(s.size_bytes for s in capture.storages if s.role is Role.PARAMETER) == 4 * 10**12


def test_the_module_stays_as_it_is() -> None:
    module = mlp().eval()
    weight, before = module[0].weight, module[0].weight.detach().clone()
    TorchModel(module, torch.empty(5, 8)).capture(
        mode=Mode.TRAIN, optimizer=Optimizer.SGD, precision=Precision.BF16
    )
    assert module[0].weight is weight
    assert torch.equal(weight, before)
    assert weight.grad is None
    assert not module.training
    assert not module[0]._forward_hooks
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_shared_weight_is_counted_once_and_used_as_often_as_it_is_applied() -> None:
    class Thirds(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(100, 100, bias=False)

        def forward(self, data: Any) -> Any:
            return torch.cat([self.layer(part) for part in data.split(100, 1)], 1)

    program = TorchModel(Thirds(), torch.empty(1, 300)).program(mode=Mode.INFER)
    assert program.parameter_count == 10_000
    assert sum(op.work.matrix_flops for op in program.ops) == 60_000


def test_tied_parameters_are_one() -> None:
    table, head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
    head.weight = table.weight
    model = TorchModel(nn.Sequential(table, head), torch.zeros(2, 3, dtype=torch.int64))
    capture = model.capture(mode=Mode.TRAIN)
    assert capture.parameter_count == 50 * 16
    # Both uses add into one gradient.
    assert len([item for item in capture.storages if item.role is Role.GRADIENT]) == 1


def test_frozen_parameters_get_no_gradient() -> None:
    module = mlp()
    module[0].requires_grad_(False)
    capture = TorchModel(module, torch.empty(5, 8)).capture(mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
    assert {item.parameter for item in capture.gradients} == {"2.weight", "2.bias"}
    state = sum(item.size_bytes for item in capture.storages if item.role is Role.STATE)
    assert state == 2 * 4 * (16 * 4 + 4)


def test_batch_replaces_the_first_dimension_of_inputs_that_share_it() -> None:
    class Pair(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, data: Any, shift: Any) -> Any:
            return self.layer(data) + shift

    capture = TorchModel(Pair(), (torch.empty(2, 8), torch.empty(1, 8))).capture(mode=Mode.TRAIN, batch=64)
    assert capture.batch == 64
    inputs = [item.size_bytes for item in capture.storages if item.role is Role.INPUT]
    assert inputs == [4 * 64 * 8, 4 * 8]


def test_a_loss_starts_the_backward_pass() -> None:
    model = TorchModel(mlp(), torch.empty(5, 8), loss=lambda out: out.square().mean())
    capture = model.capture(mode=Mode.TRAIN)
    assert kernels(capture, Phase.FORWARD)[-2:] == ["pow", "mean"]
    ones = next(call for call in capture.calls if call.op == "ones_like")
    assert ones.outputs[0].shape == ()


def test_keyword_inputs_and_containers_of_outputs() -> None:
    class Named(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, *, data: Any, mask: Any = None) -> Any:
            out = self.layer(data)
            return {"first": out, "more": [out * mask, 3]}

    inputs = {"data": torch.empty(4, 8), "mask": torch.empty(4, 8)}
    capture = TorchModel(Named(), inputs).capture(mode=Mode.TRAIN)
    assert "mul" in kernels(capture, Phase.FORWARD)


def test_the_fingerprint_tells_structure_and_not_names() -> None:
    def fingerprint(module: Any, rows: int = 5, precision: Precision = Precision.FP32) -> str:
        return (
            TorchModel(module, torch.empty(rows, 8)).capture(mode=Mode.TRAIN, precision=precision).fingerprint
        )

    named = nn.Sequential()
    for name, part in zip("abc", mlp(), strict=True):
        named.add_module(name, part)
    assert fingerprint(mlp()) == fingerprint(named)
    assert len({fingerprint(mlp()), fingerprint(mlp(), 6), fingerprint(mlp(), precision=Precision.FP16)}) == 3


def test_half_precision_stores_half_and_amp_casts() -> None:
    model = TorchModel(mlp(), torch.empty(5, 8))
    half = model.capture(mode=Mode.TRAIN, precision=Precision.BF16)
    assert {t.dtype.value[0] for call in half.calls for t in call.outputs} == {"bfloat16"}
    amp = model.capture(mode=Mode.TRAIN, precision=Precision.AMP, optimizer=Optimizer.SGD)
    assert kernels(amp, Phase.FORWARD).count("_to_copy") == 5
    assert kernels(amp, Phase.OPTIMIZER)[0] == "_amp_foreach_non_finite_check_and_unscale"


def test_activation_checkpoints_run_forward_again_and_keep_less() -> None:
    from torch.utils.checkpoint import checkpoint

    class Kept(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.body, self._again = nn.Sequential(*(mlp_of(64) for _ in range(3))), again

        def forward(self, data: Any) -> Any:
            return checkpoint(self.body, data, use_reentrant=False) if self._again else self.body(data)

    def mlp_of(width: int) -> Any:
        return nn.Sequential(nn.Linear(width, width), nn.GELU())

    plain, again = (
        TorchModel(Kept(flag), torch.empty(32, 64)).program(mode=Mode.TRAIN) for flag in (False, True)
    )
    assert again.memory.saved_bytes < plain.memory.saved_bytes / 3
    flops = [
        sum(op.work.matrix_flops for op in program.ops if op.work.phase is Phase.BACKWARD)
        for program in (plain, again)
    ]
    assert flops[1] - flops[0] == 3 * 2 * 32 * 64 * 64


def test_a_module_that_fails_says_so() -> None:
    with pytest.raises(InvalidInput, match=r"Sequential failed on the example inputs.*shapes"):
        TorchModel(mlp(), torch.empty(5, 9)).capture(mode=Mode.INFER)
    with pytest.raises(InvalidInput, match="no output needs a gradient"):
        TorchModel(nn.ReLU(), torch.empty(5, 9)).capture(mode=Mode.TRAIN)
    with pytest.raises(InvalidInput, match=r"expected a torch.nn.Module, got int"):
        TorchModel(3, torch.empty(1))  # type: ignore[arg-type]


def test_a_module_whose_structure_depends_on_data_says_so() -> None:
    class Branch(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, data: Any) -> Any:
            return data * 2 if data.sum() > 0 else data

    with pytest.raises(InvalidGraph, match="depends on the contents of tensors"):
        TorchModel(Branch(), torch.empty(3)).capture(mode=Mode.INFER)


def test_captures_are_kept_per_job() -> None:
    model = TorchModel(mlp(), torch.empty(5, 8))
    assert model.capture(mode=Mode.TRAIN) is model.capture(mode=Mode.TRAIN)
    # TF32 is a rate: the calls are those of FP32.
    assert model.capture(mode=Mode.TRAIN) is model.capture(mode=Mode.TRAIN, precision=Precision.TF32)
    assert model.capture(mode=Mode.TRAIN) is not model.capture(mode=Mode.INFER)
