"""What a careful person writes by hand to time a model: the yardstick of the bench. It knows nothing of this project.

python hand_loop.py MODEL-FOLDER LENGTH SAMPLES THREADS
"""

import json
import sys
from math import ceil
from time import perf_counter_ns

import torch
from transformers import AutoModelForSequenceClassification

WARMUP = 10


def main() -> None:
    """Print percentiles of so many calls in milliseconds."""
    folder, (length, samples, threads) = sys.argv[1], map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = {
        "input_ids": torch.randint(1, model.config.vocab_size, (1, length)),
        "attention_mask": torch.ones((1, length), dtype=torch.long),
        "token_type_ids": torch.zeros((1, length), dtype=torch.long),
    }
    times = []
    with torch.inference_mode():
        for _ in range(WARMUP):
            model(**inputs)
        for _ in range(samples):
            start = perf_counter_ns()
            model(**inputs)
            times.append(perf_counter_ns() - start)
    times.sort()
    found = {f"p{percent}_ms": times[ceil(percent * samples / 100) - 1] / 1e6 for percent in (50, 95)}
    sys.stdout.write(json.dumps({"samples": samples, **found}) + "\n")


if __name__ == "__main__":
    main()
