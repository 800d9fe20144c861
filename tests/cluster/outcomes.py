"""Scripted outcomes for pods on simulated nodes, and reports as a runner would have written them.

A `Script` looks at a pod and gives its outcome, or None to leave it to an earlier script. Without any, a pod succeeds
after 50 ms with plausible figures for the plan in its environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cluster.pods import Pod
from cluster.states import Interruption, Waiting, evicted, rejected
from cluster.termination import KILLED
from inferbench_runner.contract import PLAN_VARIABLE, CellMeasured, CompactReport, Plan, Verdict

Text = str | Callable[[Pod], str]
"""A text, or how to make it from the pod."""

FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """The container starts, runs, and ends."""

    start_delay: float = 0.0
    """Seconds in ContainerCreating."""
    run_seconds: float = 0.05
    exit_code: int = 0
    reason: str | None = None
    """None means Completed or Error, by the exit code."""
    message: Text = ""
    """Termination message."""
    log: Text = ""
    """The container's output, all there when it starts."""
    stopped_exit_code: int = 143
    """Exit code when it is told to end (SIGTERM) before its time."""
    stopped_message: Text = ""
    """Termination message in that case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The container starts and runs until its node ends it."""

    start_delay: float = 0.0
    run_seconds: float = 0.05
    interruption: Interruption
    message: Text = ""
    log: Text = ""


@dataclass(frozen=True, slots=True)
class Stuck:
    """The container never starts: it goes through these states, `every` seconds apart, and stays in the last one."""

    states: tuple[Waiting, ...]
    """`{image}` in a message becomes the container's image; likewise `{container}`, `{pod}`, `{namespace}`, `{uid}`."""
    every: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstartable:
    """The runtime can't start the container's program."""

    message: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The kubelet refuses the pod."""

    interruption: Interruption


Outcome = Exits | Interrupted | Stuck | Unstartable | Rejected
Script = Callable[[Pod], Outcome | None]


def oom_killed(*, after: float = 0.05, message: Text = "", log: Text = "") -> Exits:
    """The kernel kills the container for its memory limit."""
    return Exits(run_seconds=after, exit_code=KILLED, reason="OOMKilled", message=message, log=log)


def node_lost() -> Exits:
    """The container was gone when its runtime came back, as after a restart of its node."""
    return Exits(run_seconds=0, exit_code=255, reason="Unknown")


def killed(*, after: float = 0.05, message: Text = "", log: Text = "") -> Exits:
    """Something kills the container's process."""
    return Exits(run_seconds=after, exit_code=KILLED, message=message, log=log)


def eviction(*, after: float = 0.05, resource: str = "memory", message: Text = "") -> Interrupted:
    """The kubelet evicts the pod."""
    return Interrupted(run_seconds=after, interruption=evicted(resource), message=message)


def image_pull_failure(error: str = "not found") -> Stuck:
    """The image cannot be pulled."""
    # The kubelet shows the code of some of the runtime's errors, and of others only the words.
    code = "rpc error: code = NotFound desc = " if error == "not found" else ""
    pull = (
        f'{code}failed to pull and unpack image "{{image}}": failed to resolve reference "{{image}}": {{image}}: '
        f"{error.replace('{', '').replace('}', '')}"
    )
    back_off = f'Back-off pulling image "{{image}}": ErrImagePull: {pull}'
    return Stuck((Waiting(), Waiting("ErrImagePull", pull), Waiting("ImagePullBackOff", back_off)))


def image_never_pulled() -> Stuck:
    """The image is not on the node, and may not be pulled."""
    message = 'Container image "{image}" is not present with pull policy of Never'
    return Stuck((Waiting(), Waiting("ErrImageNeverPull", message)))


def invalid_image_name(why: str = "repository name (library/Runner) must be lowercase") -> Stuck:
    """The image's name is none."""
    text = f'couldn\'t parse image name "{{image}}": invalid reference format: {why}'
    message = f'Failed to apply default image tag "{{image}}": {text}'
    return Stuck((Waiting(), Waiting("InvalidImageName", message)))


def config_failure(message: str) -> Stuck:
    """The kubelet can't make the container as it is specified."""
    return Stuck((Waiting(), Waiting("CreateContainerConfigError", message)))


def no_such_program(name: str) -> Unstartable:
    """The image has no such program on its path."""
    runc = f'runc create failed: unable to start container process: exec: "{name}": executable file not found in $PATH'
    task = f"failed to create containerd task: failed to create shim task: OCI runtime create failed: {runc}: unknown"
    return Unstartable(message=task)


def unhealthy_device(resource: str) -> Rejected:
    """The device plugin has no healthy device left when the pod comes."""
    message = f"Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {resource}"
    return Rejected(rejected("UnexpectedAdmissionError", f"{message}, which is unexpected"))


def out_of(resource: str, requested: int) -> Rejected:
    """The kubelet counts fewer devices than the scheduler, as after its own restart."""
    message = f"Node didn't have enough resource: {resource}, requested: {requested}, used: 0, capacity: 0"
    return Rejected(rejected(f"OutOf{resource}", message))


def create_container_failure(message: str = "failed to reserve container name") -> Stuck:
    """The container runtime refuses to create the container."""
    return Stuck((Waiting(), Waiting("CreateContainerError", message)))


def never_starts() -> Stuck:
    """The container stays in ContainerCreating, as with a volume that cannot be mounted."""
    return Stuck((Waiting(),))


def measured(**figures: float) -> Exits:
    """Success with a plausible report; `figures` are fields of `Exits` such as run_seconds."""
    return Exits(message=report_message, **figures)  # type: ignore[arg-type]  # only numeric fields are meant


def for_labels(outcome: Outcome, **labels: str) -> Script:
    """One outcome for all pods that carry these labels under the prefix `inferbench.dev/`."""
    wanted = {f"inferbench.dev/{name}": value for name, value in labels.items()}
    return lambda pod: outcome if wanted.items() <= dict(pod.labels).items() else None


def in_turn(*outcomes: Outcome | None) -> Script:
    """The first outcome for the first pod that is asked about, and so on; None after the last."""
    left = list(outcomes)
    return lambda _pod: left.pop(0) if left else None


def choose(scripts: list[Script], pod: Pod) -> Outcome:
    """What happens to the pod: the last script that has an outcome for it decides."""
    for script in reversed(scripts):
        try:
            outcome = script(pod)
        except Exception as error:  # noqa: BLE001  (it must show in the test, not stop the agent)
            return Unstartable(message=f"the script for this pod failed: {error!r}")
        if outcome is not None:
            return outcome
    return measured()


def text_for(text: Text, pod: Pod) -> str:
    """The text itself, or what its maker says for this pod."""
    return text if isinstance(text, str) else text(pod)


def plan_of(pod: Pod) -> Plan | None:
    """The plan in the pod's environment."""
    text = pod.variable(PLAN_VARIABLE)
    return None if text is None else Plan.model_validate_json(text)


def report_message(pod: Pod) -> str:
    """A termination message in which all shapes of the pod's plan are measured; empty without a plan."""
    plan = plan_of(pod)
    return "" if plan is None else measured_report(plan).model_dump_json(exclude_defaults=True)


def measured_report(plan: Plan, p95_microseconds: Mapping[str, int] | None = None) -> CompactReport:
    """Figures for all shapes of a plan, the same at each call; p95 by cell hash where it matters."""
    given = p95_microseconds or {}
    speed = {"CPU": 40, "Neuron": 9, "NVIDIA": 6}[plan.device.kind]
    cells = []
    for shape in plan.shapes:
        tokens = (shape.sequence_length or 196) * shape.batch_size
        p95 = given.get(shape.cell, 800 + speed * tokens)
        cells.append(
            CellMeasured(
                cell=shape.cell,
                samples=plan.measurement.min_samples,
                mean_microseconds=p95 * 92 // 100,
                p50_microseconds=p95 * 90 // 100,
                p90_microseconds=p95 * 97 // 100,
                p95_microseconds=p95,
                p95_low_microseconds=p95 * 99 // 100,
                p95_high_microseconds=p95 * 101 // 100,
                p99_microseconds=p95 * 105 // 100,
                max_microseconds=p95 * 120 // 100,
                inferences_per_second=f"{shape.batch_size * 1e6 / max(1, p95 * 92 // 100):.3f}",
                verdict=Verdict.VALID,
            )
        )
    return CompactReport(measured=tuple(cells))
