"""Which weights move how fast: the groups of the optimizer, and what it divides by."""

import pytest
import torch

from wellread import config
from wellread.training.optimizer import build_optimizer
from wellread.training.schedule import Schedule


@pytest.mark.parametrize(("options", "eps"), [({}, 1e-8), ({"eps": 1e-6}, 1e-6)])
def test_a_schedule_says_what_is_added_to_what_gradients_are_divided_by(options, eps):
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    schedule = Schedule(steps=1, learning_rate=1.0, weight_decay=0.0, **options)
    optimizer, _ = build_optimizer({"one": weight}, schedule)
    weight.grad = torch.full((2, 2), 1e-7)
    optimizer.step()
    assert weight[0, 0].item() == pytest.approx(-1e-7 / (1e-7 + eps), rel=1e-3)


def test_a_run_of_before_there_was_the_setting_goes_on():
    assert "eps" not in config.to_dict(Schedule(steps=1))
    assert config.override(Schedule(steps=1), ["eps=1e-6"]).eps == 1e-6
