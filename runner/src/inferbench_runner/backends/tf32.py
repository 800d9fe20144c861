"""Both switches of TF32, in which NVIDIA's devices may compute what is asked for in fp32.

For matrix products it is off by default and for cuDNN's convolutions on, so that a vision model's first layer would be
TF32 in a run that is called fp32: neither is left to its default.
"""

from __future__ import annotations

import torch

from inferbench_runner.backends.base import Facts


def allow_tf32(*, allowed: bool) -> Facts:
    """Set both switches, and return what they then say themselves."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    return {
        "matmulTF32": "on" if torch.backends.cuda.matmul.allow_tf32 else "off",
        "cudnnTF32": "on" if torch.backends.cudnn.allow_tf32 else "off",
    }
