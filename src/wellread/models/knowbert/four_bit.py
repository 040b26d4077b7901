"""Matrices in 4 bits, for what learning changed in a weight: small to keep, read back before it is computed with.

Numbers of a row share a scale, 64 by 64. A code is one of -7 to 7, and two of them are a byte. The scale is the one of
a few that loses least: a little is cut off at both ends, where there are few numbers.

    codes, scales = code(change)
    change = decode(codes, scales, change.shape[1])
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float16, UInt8
from torch import Tensor
from torch.nn.functional import pad

GROUP = 64
"""Numbers of a row that share a scale."""
_MOST = 7
_SHARES = torch.linspace(0.5, 1.0, 11)
"""Of a group's largest number, what its largest code may mean."""


def code(matrix: Float[Tensor, "row column"]) -> tuple[UInt8[Tensor, "row byte"], Float16[Tensor, "row group"]]:
    """The codes of a matrix, and the scales of its groups."""
    rows, columns = matrix.shape
    groups = pad(matrix.detach().float(), (0, -columns % GROUP)).view(rows, -1, GROUP)
    largest = groups.abs().amax(-1) / _MOST
    best = torch.full_like(largest, float("inf"))
    scales = torch.zeros_like(largest, dtype=torch.float16)
    for share in _SHARES:
        scale = (largest * share).half()
        lost = (_round(groups, scale) * scale.float()[..., None] - groups).square().sum(-1)
        scales = torch.where(lost < best, scale, scales)
        best = torch.minimum(lost, best)
    codes = (_round(groups, scales) + 8).to(torch.uint8).view(rows, -1)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales


def decode(
    codes: UInt8[Tensor, "row byte"], scales: Float16[Tensor, "row group"], columns: int
) -> Float[Tensor, "row column"]:
    """The matrix that was coded, nearly."""
    pairs = torch.stack([codes & 15, codes >> 4], -1).view(*scales.shape, GROUP)
    return ((pairs.float() - 8) * scales.float()[..., None]).view(len(codes), -1)[:, :columns]


def _round(groups: Tensor, scales: Tensor) -> Tensor:
    return (groups / scales.float().clamp(min=torch.finfo(torch.float16).tiny)[..., None]).round().clamp(-_MOST, _MOST)
