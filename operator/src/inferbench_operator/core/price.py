"""Prices of nodes, and what inferences cost at them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pydantic import ValidationError

from inferbench_operator.models.benchmark import Accelerator
from inferbench_operator.models.cost import InferenceCost, Pricing
from inferbench_operator.models.instances import RESOURCES, InstanceType
from inferbench_runner.contract import AcceleratorKind

_SECONDS: Final = Decimal(3600)
_MILLION: Final = Decimal(1_000_000)
_DIGITS: Final = 4
"""Significant ones of a cost: a throughput is known to no more."""


@dataclass(frozen=True, slots=True)
class Price:
    """What an hour of a node costs, and by whose word."""

    usd_per_hour: Decimal
    pricing: Pricing = Pricing.ON_DEMAND
    instance_type: str = ""
    source: str = ""
    date: str = ""

    def to_text(self, used_share: Decimal | None) -> str:
        """Convert to the text that a Job keeps, with the part of the node that its runner uses."""
        found = {
            "pricing": self.pricing.value,
            "instanceType": self.instance_type,
            "priceSource": self.source,
            "priceDate": self.date,
            "usedShare": None if used_share is None else _written(used_share),
        }
        return json.dumps({name: value for name, value in found.items() if value}, separators=(",", ":"))


def price_of(instances: Sequence[InstanceType], pricing: Pricing) -> Price | None:
    """Return the price of the dearest of some instance types; None where one of them has none on these terms."""
    prices = [(price, instance) for instance in instances if (price := instance.price(pricing)) is not None]
    if not prices or len(prices) < len(instances):
        return None
    dearest, instance = max(prices, key=lambda one: one[0])
    return Price(dearest, pricing, instance.name, instance.price_source, instance.price_date)


def used_share(
    accelerator: Accelerator, instances: Sequence[InstanceType], kind: AcceleratorKind, *, copies: int, exclusive: bool
) -> Decimal | None:
    """Return the part of a node that a runner keeps busy, of the largest of the types; None where it is not known.

    Every copy of the model has its NeuronCores, all copies together one GPU, and on an exclusive node all processors.
    """
    shares: list[Decimal] = []
    for instance in instances:
        if kind is AcceleratorKind.NEURON and instance.neuron_cores:
            shares.append(Decimal((accelerator.cores or 1) * copies) / instance.neuron_cores)
        elif kind is AcceleratorKind.NVIDIA and accelerator.resource_name in {None, RESOURCES[kind]}:
            shares.append(Decimal(1) / max(instance.devices, 1))
        elif kind is AcceleratorKind.CPU and exclusive:
            shares.append(Decimal(1))
        else:
            return None
    return min([Decimal(1), *shares]) if shares else None


def inference_cost(
    usd_per_hour: Decimal, details: str, inferences_per_second: str, sequence_length: int | None
) -> InferenceCost | None:
    """Return what inferences cost, given the price and its details as the Job keeps them; None if they cost nothing.

    US dollars per million inferences = price of an hour / 3600 / inferences per second * 1,000,000.
    """
    rate = Decimal(inferences_per_second)
    if not rate:
        return None
    each = usd_per_hour / _SECONDS / rate * _MILLION
    kept = _details(details)
    share = _decimal(kept.get("usedShare"))
    costs = {
        "usdPerMillionInferences": each,
        "usdPerMillionTokens": each / sequence_length if sequence_length else None,
        "usedShare": share,
        "shareUSDPerMillionInferences": None if share is None else each * share,
        "shareUSDPerMillionTokens": each * share / sequence_length if share is not None and sequence_length else None,
    }
    written = {name: _written(value) for name, value in costs.items() if value is not None}
    found = {"pricing": Pricing.ON_DEMAND, **kept, **written, "usdPerHour": f"{usd_per_hour:f}"}
    try:
        return InferenceCost.model_validate(found)
    except ValidationError:
        # A person has edited the annotation: the price stands, what was said of it does not.
        plain = {name: value for name, value in written.items() if "share" not in name.lower()}
        return InferenceCost.model_validate(plain | {"pricing": Pricing.ON_DEMAND, "usdPerHour": f"{usd_per_hour:f}"})


def _details(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _decimal(value: object) -> Decimal | None:
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() and found >= 0 else None


def _written(value: Decimal) -> str:
    """Write a positive number with four significant digits, and without an exponent."""
    if not value:
        return "0"
    return f"{round(value, _DIGITS - 1 - value.adjusted()).normalize():f}"
