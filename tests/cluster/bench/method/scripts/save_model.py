"""Save a model with random weights, so that all tools load the same files: `python save_model.py FOLDER CONFIG`.

CONFIG is the JSON of a transformers configuration, its `model_type` included.
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification


def main() -> None:
    """Save it."""
    torch.manual_seed(0)
    configuration = AutoConfig.for_model(**json.loads(sys.argv[2]))
    AutoModelForSequenceClassification.from_config(configuration).save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
