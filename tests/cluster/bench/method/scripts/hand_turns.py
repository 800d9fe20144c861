"""The loop of `hand_loop.py` for a program that takes turns with another one: it knows nothing of this project either.

python hand_turns.py MODEL-FOLDER LENGTH THREADS

Each line of input, a number of calls, is answered by a line with their latencies in nanoseconds, as a JSON array.
"""

import json
import sys
from time import perf_counter_ns

import torch
from transformers import AutoModelForSequenceClassification

WARMUP = 10


def main() -> None:
    """Answer until the input ends."""
    folder, (length, threads) = sys.argv[1], map(int, sys.argv[2:])
    torch.set_num_threads(threads)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    inputs = {
        "input_ids": torch.randint(1, model.config.vocab_size, (1, length)),
        "attention_mask": torch.ones((1, length), dtype=torch.long),
        "token_type_ids": torch.zeros((1, length), dtype=torch.long),
    }
    with torch.inference_mode():
        for _ in range(WARMUP):
            model(**inputs)
        for line in sys.stdin:
            times = []
            for _ in range(int(line)):
                start = perf_counter_ns()
                model(**inputs)
                times.append(perf_counter_ns() - start)
            sys.stdout.write(json.dumps(times) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
