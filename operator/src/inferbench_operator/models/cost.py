"""What a measurement costs: the price of its node, and of what it does there."""

from __future__ import annotations

import operator
from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from inferbench_operator.models.base import ApiModel, Decimals
from inferbench_runner.contract import ShortText


class Pricing(StrEnum):
    """Under which terms nodes are paid for."""

    ON_DEMAND = "OnDemand"
    RESERVED = "Reserved"
    SPOT = "Spot"


class InferenceCost(ApiModel):
    """Cost of inferences at the throughput that was measured, and the price behind it.

    A node that is busy all the time costs usdPerHour / 3600 a second, in which it serves inferencesPerSecond inputs.
    """

    usd_per_million_inferences: Decimals = Field(
        alias="usdPerMillionInferences",
        description="Cost of a million inputs if nothing else runs on the node, in US dollars, a decimal string.",
    )
    usd_per_million_tokens: Decimals | None = Field(
        default=None,
        alias="usdPerMillionTokens",
        description="The same for a million input tokens of a full sequence, a decimal string; absent for models "
        "without sequence lengths.",
    )
    used_share: Decimals | None = Field(
        default=None,
        description="Part of the node that was at work, a decimal string: NeuronCores, GPUs or processors over those "
        "that the node has. Absent where it is not known, as for a part of a GPU.",
    )
    share_usd_per_million_inferences: Decimals | None = Field(
        default=None,
        alias="shareUSDPerMillionInferences",
        description="Cost of a million inputs if the rest of the node is put to use as well, in US dollars, a decimal "
        "string.",
    )
    share_usd_per_million_tokens: Decimals | None = Field(
        default=None,
        alias="shareUSDPerMillionTokens",
        description="The same for a million input tokens, a decimal string.",
    )
    usd_per_hour: Decimals = Field(
        alias="usdPerHour", description="Price of the node when its Job was made, in US dollars, a decimal string."
    )
    pricing: Pricing = Field(description="Terms of the price: OnDemand, Reserved or Spot.")
    instance_type: Annotated[str, StringConstraints(max_length=40)] = Field(
        default="",
        exclude_if=operator.not_,
        description="Instance type whose price it is: of several that are allowed, the dearest.",
    )
    price_source: ShortText = Field(
        default="", exclude_if=operator.not_, description="Where the price comes from, with its region."
    )
    price_date: Annotated[str, StringConstraints(max_length=10, pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = Field(
        default="", exclude_if=operator.not_, description="Of which day the price is."
    )
