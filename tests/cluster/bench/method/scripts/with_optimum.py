"""Time a model with optimum-benchmark, as its own documentation shows it; runs in an environment of its own.

python with_optimum.py MODEL-FOLDER LENGTH SAMPLES
"""

import json
import sys

from optimum_benchmark import (  # type: ignore[import-not-found]
    Benchmark,
    BenchmarkConfig,
    InferenceConfig,
    ProcessConfig,
    PyTorchConfig,
)


def main() -> None:
    """Print its percentiles of so many calls in milliseconds."""
    folder, (length, samples) = sys.argv[1], map(int, sys.argv[2:])
    shapes = {"batch_size": 1, "sequence_length": length}
    config = BenchmarkConfig(
        name="peer",
        launcher=ProcessConfig(),
        # A duration of 0 leaves the number of iterations to decide.
        scenario=InferenceConfig(iterations=samples, duration=0, warmup_runs=10, input_shapes=shapes),
        # Its settings for threads are left alone: the one for threads within an operation sets those between
        # operations, and the other way round. OMP_NUM_THREADS says how many there are to be.
        backend=PyTorchConfig(model=folder, model_type="bert", task="text-classification", device="cpu"),
    )
    latency = Benchmark.launch(config).forward.latency
    found = {"samples": latency.count, "p50_ms": 1000 * latency.p50, "p95_ms": 1000 * latency.p95}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
