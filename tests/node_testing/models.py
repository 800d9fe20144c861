"""Models that are so small that loading and a thousand calls take seconds on any machine."""

from __future__ import annotations

from typing import Any, Final

BERT: Final[dict[str, Any]] = {
    "name": "bert-base",
    "id": "google-bert/bert-base-uncased",
    "weights": "Random",
    "config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
}
DISTILBERT: Final[dict[str, Any]] = {
    "name": "distilbert",
    "id": "distilbert/distilbert-base-uncased",
    "weights": "Random",
    "config": {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64},
}
