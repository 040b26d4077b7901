"""Device on which torch runs a model."""

from __future__ import annotations

import torch

from wellread.errors import UsageError


def find_device(name: str) -> torch.device:
    """Return a device by name ("cpu", "cuda", "cuda:1", "mps"); raise if torch does not have it here."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"device={name!r} is not known; choose cpu, cuda, cuda:1 or mps") from error
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device.type not in here:
        raise UsageError(f"device={name!r} is not supported; choose {', '.join(here)}")
    if not here[device.type]:
        raise UsageError(
            f"device={name!r}: torch {torch.__version__} finds no {device.type.upper()} device on this machine; leave "
            "device out, or install a build of torch for it"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device={name!r}: this machine has {torch.cuda.device_count()} CUDA devices, from cuda:0")
    return device
