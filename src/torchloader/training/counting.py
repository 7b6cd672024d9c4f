"""Counts the parameters and operations of a model."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchloader.prediction.counts import Counts

__all__ = ["count"]


def count(model: nn.Module, sample: Sequence[int] = (3, 224, 224), dtype: torch.dtype | None = None) -> Counts:
    """Count for one sample of that shape, without computing anything: on PyTorch's "meta" device.

    The model is not changed. Raises what the model raises if it needs values, or does not accept such a sample.
    """
    shadow = copy.deepcopy(model).to("meta").eval()
    kinds: Counter[str] = Counter()

    def convolution(
        inputs: Sequence[int],
        weight: Sequence[int],
        bias: object,
        stride: object,
        padding: object,
        dilation: object,
        transposed: bool,
        output_padding: object,
        groups: int,
        *,
        out_shape: Sequence[int],
    ) -> int:
        positions = math.prod((inputs if transposed else out_shape)[2:])
        operations = 2 * inputs[0] * positions * math.prod(weight)
        kinds[_kind(weight, groups)] += operations
        return operations

    mapping = {torch.ops.aten.convolution: convolution}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        shadow(torch.empty(1, *sample, device="meta", dtype=dtype))
    return Counts(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        ordinary=kinds["ordinary"],
        pointwise=kinds["pointwise"],
        depthwise=kinds["depthwise"],
        other=counter.get_total_flops() - kinds.total(),
    )


def _kind(weight: Sequence[int], groups: int) -> str:
    if groups > 1 and weight[1] == 1:
        return "depthwise"
    return "pointwise" if all(side == 1 for side in weight[2:]) else "ordinary"
