"""Checkpoints: weights and optimizer state in one safetensors file, written atomically; no pickle.

A checkpoint is one file, so that its parts are consistent: tensors, and a line of JSON in the header. Only the trained
part of a model is saved: parameters with `requires_grad`, and buffers. Frozen weights are loaded from their source.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from wellread.errors import TrainingError
from wellread.io.files import storage


def trained(model: nn.Module) -> dict[str, Tensor]:
    """Return the parts of a model that a checkpoint contains: trainable parameters and saved buffers."""
    kept = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    saved = model.state_dict(keep_vars=True).keys()
    return kept | {name: buffer for name, buffer in model.named_buffers() if name in saved}


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and metadata to one file, atomically."""
    part = path.with_name(f".{path.name}.part")
    with storage(path):
        try:
            flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb") as file:
                mode = os.fstat(file.fileno()).st_mode
            save_file(flat, part, {"about": json.dumps(about)})
            with open(part, "rb+") as file:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))  # safetensors makes it readable by the owner only
                os.fsync(file.fileno())
            os.replace(part, path)
        except SafetensorError as error:
            part.unlink(missing_ok=True)
            if number := re.search(r"os error (\d+)", str(error)):  # safetensors does not raise OSError
                raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
            raise
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and metadata of a file written by `save_tensors`."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise TrainingError(
            f"{path} is not a complete checkpoint: {error}; copy it again, or train in another folder"
        ) from error


def load_weights(model: nn.Module, path: str | Path) -> dict[str, Any]:
    """Load the weights of a checkpoint into the model; return its metadata (step, scores)."""
    tensors, about = load_tensors(Path(path))
    put(model, tensors, Path(path))
    return about


@torch.no_grad()
def put(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors into the trained parts of the model; names and shapes must match."""
    parts = trained(model)
    wrong = sorted(parts.keys() ^ tensors.keys()) or [n for n, part in parts.items() if part.shape != tensors[n].shape]
    if wrong:
        raise TrainingError(
            f"{path} belongs to another model: {wrong[0]!r} is {_size(tensors, wrong[0])} there and "
            f"{_size(parts, wrong[0])} here; build the model with the run's recipe, or train in another folder"
        )
    for name, part in parts.items():
        part.copy_(tensors[name])


def _size(tensors: Mapping[str, Tensor], name: str) -> str:
    return "×".join(map(str, tensors[name].shape)) or "a number" if name in tensors else "not"


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """Return the optimizer's state by the names of the weights: {"head.bias:exp_avg": …}."""
    return {
        f"{names[weight]}:{kind}": torch.as_tensor(value)
        for weight, memory in optimizer.state.items()
        for kind, value in memory.items()
    }


def put_optimizer(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], tensors: Mapping[str, Tensor]) -> None:
    """Restore the optimizer's state."""
    kinds: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition(":")
        kinds.setdefault(name, {})[kind] = tensor
    plain = optimizer.state_dict()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    plain["state"] = {number: kinds[names[weight]] for number, weight in enumerate(weights) if names[weight] in kinds}
    optimizer.load_state_dict(plain)
