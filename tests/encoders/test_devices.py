"""Devices by name: those that torch has here, and errors for others."""

import pytest
import torch

from wellread.encoders.devices import find_device
from wellread.errors import UsageError


def test_the_cpu_is_always_there():
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [("gpu", "is not known; choose cpu, cuda"), ("meta", "is not supported; choose cpu, cuda, mps")],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(UsageError, match=message):
        find_device(name)


def test_a_device_that_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="finds no CUDA device on this machine"):
        find_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert find_device("cuda:0").index == 0
    with pytest.raises(UsageError, match="this machine has 1 CUDA devices"):
        find_device("cuda:1")
