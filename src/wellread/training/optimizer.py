"""Optimizer groups, and sums of gradients and losses over processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import torch
from accelerate.utils import gather, pad_across_processes, reduce  # type: ignore[import-untyped]
from torch import nn

from wellread.errors import UsageError
from wellread.training.schedule import Schedule

_EPS = 1e-8
"""Default of torch."""


def build_optimizer(weights: Mapping[str, nn.Parameter], schedule: Schedule) -> tuple[torch.optim.AdamW, list[float]]:
    """Build AdamW with a group per learning rate and weight decay; return it with the groups' peak rates."""
    if not weights:
        raise UsageError("the model has no trainable weight; set requires_grad")
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    unused = set(schedule.rates)
    for name, weight in weights.items():
        begins = [start for start in schedule.rates if name.startswith(start)]
        unused.difference_update(begins)
        rate = schedule.rates[max(begins, key=len)] if begins else schedule.learning_rate
        groups.setdefault((rate, weight.ndim == 2), []).append(weight)
    if unused:
        parts = ", ".join(dict.fromkeys(name.split(".")[0] for name in weights))
        raise UsageError(f"no trainable weight begins with {min(unused)!r} (in rates); they begin with: {parts}")
    decay = schedule.weight_decay
    plain = [
        {"params": of, "lr": rate, "weight_decay": decay if heavy else 0.0} for (rate, heavy), of in groups.items()
    ]
    eps = _EPS if schedule.eps is None else schedule.eps
    return torch.optim.AdamW(plain, eps=eps, fused=True), [rate for rate, _ in groups]


@torch.no_grad()
def add_gradients(weights: Sequence[nn.Parameter]) -> None:
    """Sum gradients over all processes; weights without gradient in all processes keep none."""
    used = reduce(torch.tensor([float(w.grad is not None) for w in weights], device=weights[0].device), "sum").tolist()
    shared = [weight for weight, count in zip(weights, used, strict=True) if count]
    if not shared:
        return
    flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in shared])
    for weight, part in zip(shared, reduce(flat, "sum").split([w.numel() for w in shared]), strict=True):
        weight.grad = part.view_as(weight).clone()


def join_names(names: Iterable[str], device: torch.device) -> list[str]:
    """Return the union of names over all processes, in the same order everywhere.

    A batch without candidates for a knowledge layer lacks its loss, which may be the case in one process only.
    """
    encoded = torch.tensor([list(json.dumps(list(names)).encode())], dtype=torch.uint8, device=device)
    every = gather(pad_across_processes(encoded, dim=1))
    return list(dict.fromkeys(name for row in every for name in json.loads(bytes(row.tolist()).rstrip(b"\0"))))
