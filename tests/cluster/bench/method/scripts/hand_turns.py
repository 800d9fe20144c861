"""The loop of `hand_loop.py` for a program that takes turns with another one: it knows nothing of this project either.

python hand_turns.py MODEL-FOLDER THREADS

Each line of input, "LENGTH CALLS", is answered by a line with the calls' latencies in nanoseconds, as a JSON array;
one call before them is not timed.
"""

import json
import sys
from time import perf_counter_ns

import torch
from transformers import AutoModelForSequenceClassification

WARMUP = 10


def main() -> None:
    """Answer until the input ends."""
    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    prepared: dict[int, dict[str, torch.Tensor]] = {}
    with torch.inference_mode():
        for line in sys.stdin:
            length, calls = map(int, line.split())
            if length not in prepared:
                prepared[length] = {
                    "input_ids": torch.randint(1, model.config.vocab_size, (1, length)),
                    "attention_mask": torch.ones((1, length), dtype=torch.long),
                    "token_type_ids": torch.zeros((1, length), dtype=torch.long),
                }
                for _ in range(WARMUP):
                    model(**prepared[length])
            inputs, times = prepared[length], []
            model(**inputs)
            for _ in range(calls):
                start = perf_counter_ns()
                model(**inputs)
                times.append(perf_counter_ns() - start)
            sys.stdout.write(json.dumps(times) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
