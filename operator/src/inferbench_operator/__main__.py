"""`python -m inferbench_operator`: reads the settings, connects, and runs until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import kopf

from inferbench_operator.core.names import MANAGER
from inferbench_operator.core.settings import Settings
from inferbench_operator.handlers import watches
from inferbench_operator.handlers.connection import patient
from inferbench_operator.kube.client import Client
from inferbench_operator.kube.errors import NoClusterError
from inferbench_operator.kube.exporter import metrics_server
from inferbench_operator.kube.reconciler import Reconciler
from inferbench_operator.kube.table_file import TableFile

LIMIT_VARIABLE = "INFERBENCH_MAX_PARALLEL_JOBS"
TABLE_VARIABLE = "INFERBENCH_INSTANCE_TYPES"


def main() -> None:
    """Run the operator."""
    arguments = _arguments()
    logging.basicConfig(level=arguments.log_level, format="%(asctime)s %(levelname)-7s %(name)s %(message)s")
    # Kopf reports every event handled; what counts is what the reconciler makes of it.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    try:
        asyncio.run(_run(arguments))
    except NoClusterError as error:
        sys.exit(str(error))


async def _run(arguments: argparse.Namespace) -> None:
    asyncio.get_running_loop().set_exception_handler(_report)
    namespaces: tuple[str, ...] = tuple(arguments.namespace)
    own = settings_from_environment()
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    watches.configure(settings)

    @kopf.on.login(registry=registry)
    async def login(**arguments: Any) -> kopf.AiohttpSession | None:  # noqa: ANN401 - Kopf passes everything it has
        # A kubeconfig may name a program to ask for a token.
        found = await asyncio.to_thread(kopf.login_via_client, **arguments)
        return patient(found) if found else None

    async with (
        await Client.connect() as client,
        Reconciler(client, own, namespaces or (None,), instance_table()) as reconciler,
        metrics_server(reconciler.cache, arguments.metrics_address, arguments.metrics_port),
    ):
        watches.register(registry, reconciler)
        await kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            # Without one, Kopf asks for the user's name, and the user of a pod has none.
            identity=MANAGER,  # type: ignore[arg-type]  # a text, under a name that Kopf keeps to itself
            clusterwide=not namespaces,
            namespaces=namespaces,
            liveness_endpoint=arguments.liveness,
        )


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what went wrong outside any task, but for the ends of Kopf's watches, which it leaves to the loop."""
    if "asyncgen" in context:
        logging.getLogger(__name__).debug("%s: %r", context["message"], context.get("exception"))
    else:
        loop.default_exception_handler(context)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="inferbench-operator", description=__doc__)
    parser.add_argument(
        "--namespace", action="append", default=[], help="namespace to watch; may be repeated (default: all)"
    )
    parser.add_argument("--metrics-address", help="address of /metrics (default: all interfaces)")
    parser.add_argument("--metrics-port", type=int, default=8080, help="port of /metrics (default: 8080)")
    parser.add_argument("--liveness", help="URL to answer liveness probes on, such as http://0.0.0.0:8081/healthz")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser.parse_args()


def settings_from_environment() -> Settings:
    """Return the settings, with images from INFERBENCH_RUNNER_IMAGE_{CPU,NEURON,NEURON_INF1,NVIDIA} where given."""
    defaults = Settings()

    def image(name: str, default: str) -> str:
        return os.environ.get(f"INFERBENCH_RUNNER_IMAGE_{name}", default)

    return Settings(
        runner_images=MappingProxyType(
            {kind: image(kind.upper(), default) for kind, default in defaults.runner_images.items()}
        ),
        inf1_image=image("NEURON_INF1", defaults.inf1_image),
        max_parallel_jobs=_limit(),
    )


def instance_table() -> TableFile | None:
    """Return the operator's own table of instance types, if INFERBENCH_INSTANCE_TYPES names its file."""
    path = os.environ.get(TABLE_VARIABLE, "").strip()
    return TableFile(Path(path)) if path else None


def _limit() -> int | None:
    """Return the limit of parallel Jobs over all benchmarks; anything but a whole number above 0 is refused."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        sys.exit(f"{LIMIT_VARIABLE}: {text!r} is no number of Jobs; use a whole number above 0, or leave it out.")
    return int(text)


if __name__ == "__main__":
    main()
