"""The embedded cluster from the command line: `python -m cluster build|check-node|demo|bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from cluster.bench import PARTS, bench
from cluster.binary import find_or_build
from cluster.demo import Where, demo
from cluster.errors import ClusterError
from cluster.real import check_node


def main() -> int:
    """Do what the command line asks for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description="The embedded Kubernetes control plane.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="find the control plane's program, or build it, and print its path")
    commands.add_parser("check-node", help="say whether this machine can have a real node; the exit code is 1 if not")
    show = commands.add_parser("demo", help="run the quick start")
    show.add_argument("--keep", action="store_true", help="leave the cluster running until Ctrl-C")
    show.add_argument("--cluster", choices=[*Where], default=Where.EMBEDDED, help="where to run it")
    measure = commands.add_parser("bench", help="measure the operator and the runner")
    # With "choices", argparse would refuse to be given none.
    measure.add_argument("parts", nargs="*", type=_part, metavar="PART", help=f"{', '.join(PARTS)}; without any, all")
    measure.add_argument("--only", nargs="+", choices=PARTS, default=[], metavar="PART", help="the same")
    arguments = parser.parse_args()
    if arguments.command == "demo":
        return demo(Where(arguments.cluster), keep=arguments.keep)
    if arguments.command == "bench":
        return bench([*arguments.parts, *arguments.only])
    if arguments.command == "check-node":
        return _done(check_node)
    return _done(lambda: sys.stdout.write(f"{find_or_build()}\n"))


def _part(text: str) -> str:
    if text not in PARTS:
        message = f"{text!r} is none of {', '.join(PARTS)}"
        raise argparse.ArgumentTypeError(message)
    return text


def _done(work: Callable[[], object]) -> int:
    try:
        work()
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
