"""Time a model with pyperf: `python with_pyperf.py PYPERF-OPTIONS MODEL-FOLDER LENGTH THREADS`."""

import argparse

import pyperf  # type: ignore[import-not-found]
import torch
from transformers import AutoModelForSequenceClassification


def main() -> None:
    """Let pyperf start its workers; only they load the model."""
    runner = pyperf.Runner(add_cmdline_args=pass_on)
    runner.argparser.add_argument("folder")
    runner.argparser.add_argument("length", type=int)
    runner.argparser.add_argument("threads", type=int)
    arguments = runner.parse_args()
    if not arguments.worker:
        runner.bench_func("forward", int)
        return
    torch.set_num_threads(arguments.threads)
    model = AutoModelForSequenceClassification.from_pretrained(arguments.folder).eval()
    size = (1, arguments.length)
    inputs = {
        "input_ids": torch.randint(1, model.config.vocab_size, size),
        "attention_mask": torch.ones(size, dtype=torch.long),
        "token_type_ids": torch.zeros(size, dtype=torch.long),
    }
    with torch.inference_mode():
        runner.bench_func("forward", lambda: model(**inputs))


def pass_on(command: list[str], arguments: argparse.Namespace) -> None:
    """Give the workers our own arguments as well."""
    command += [arguments.folder, str(arguments.length), str(arguments.threads)]


if __name__ == "__main__":
    main()
