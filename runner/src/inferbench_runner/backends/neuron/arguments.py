"""What the compilers are told: the precision always, since its default has changed between releases."""

from __future__ import annotations

from typing import Final

from inferbench_runner.backends.neuron.targets import INF1
from inferbench_runner.contract import AcceleratorKind, Execution, Plan, Precision
from inferbench_runner.errors import ExecutionUnsupportedError, InvalidPlanError, PrecisionUnsupportedError

KIND: Final = AcceleratorKind.NEURON

DEFAULT_EXECUTION: Final = Execution.TRACE

EXECUTIONS: Final = (Execution.TRACE, Execution.TORCH_NEURON)

ACCUMULATION: Final = "--enable-mixed-precision-accumulation"
"""Sums in fp32 where the operands are smaller: the default since release 2.27, told so that older ones do it too."""

OPTLEVEL: Final = "2"
"""The compiler's default, told so that another release can't change it."""

CASTS: Final = {
    # As the model defines it. Releases before 2.27 computed products in bfloat16 unless they were told this.
    Precision.FP32: (None, None),
    # A precision is that of all the model's arithmetic, as in the other back ends, and not of its products alone:
    # hence "all", and not "matmult", which leaves the rest in fp32.
    Precision.BF16: ("all", "bf16"),
    Precision.FP16: ("all", "fp16"),
    # Everywhere else, TF32 is a format of products only: what goes in and what comes out is fp32.
    Precision.TF32: ("matmult", "tf32"),
}
"""Which operations `neuronx-cc` casts, and to what, by precision."""

INF1_CASTS: Final = {
    Precision.BF16: "fp32-cast-all",
    Precision.FP16: "fp32-cast-all-fp16",
}
"""The same for `neuron-cc`: the first generation multiplies in 16 bits only, whatever it is told."""

NATIVE_PRECISIONS: Final = (Precision.FP32, Precision.BF16, Precision.FP16)
"""Number formats that PyTorch itself has types for."""


def check(plan: Plan, target: str) -> None:
    """Raise the `RunnerError` that says why this family of devices can't do what the plan asks for."""
    execution = plan.device.execution or DEFAULT_EXECUTION
    supported = [DEFAULT_EXECUTION] if target == INF1 else list(EXECUTIONS)
    if execution not in supported:
        raise ExecutionUnsupportedError(execution, _name(target), supported)
    precisions = list(
        INF1_CASTS if target == INF1 else NATIVE_PRECISIONS if execution is Execution.TORCH_NEURON else CASTS
    )
    if plan.precision not in precisions:
        raise PrecisionUnsupportedError(plan.precision, f"{execution} on {_name(target)}", precisions)
    if execution is Execution.TORCH_NEURON:
        _require_one_core(plan)


def compiler_arguments(precision: Precision, target: str, *, transformer: bool) -> tuple[str, ...]:
    """Return the arguments of `neuronx-cc`, in the order in which optimum-neuron gives them for the same precision."""
    cast, kind = CASTS[precision]
    casts = ("--auto-cast", "none") if cast is None or kind is None else ("--auto-cast", cast, "--auto-cast-type", kind)
    model_type = "transformer" if transformer else "generic"
    return (*casts, "--optlevel", OPTLEVEL, "--target", target, "--model-type", model_type)


def inf1_arguments(precision: Precision) -> tuple[str, ...]:
    """Return the arguments of `neuron-cc`; transposes are told to lose nothing, so that only the casts do."""
    return ("--fast-math", INF1_CASTS[precision], "no-fast-relayout")


def _name(target: str) -> str:
    return f"{KIND} {target}"


def _require_one_core(plan: Plan) -> None:
    wanted = {"device.cores": plan.device.cores or 1, "measurement.load.concurrency": plan.measurement.load.concurrency}
    for field, number in wanted.items():
        if number > 1:
            problem = f"{Execution.TORCH_NEURON} has one copy of the model, on one core"
            several = "measurement.load.concurrency puts a copy on each of several cores"
            raise InvalidPlanError(field, problem, f"use 1; with execution {DEFAULT_EXECUTION}, {several}")
