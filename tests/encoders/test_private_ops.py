"""Private torch operators agree with their plain implementations, and can be replaced by them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from wellread.encoders import private_ops


@pytest.fixture(autouse=True)
def _forget_trials() -> Iterator[None]:
    agrees = private_ops._agrees  # a test may replace it
    agrees.cache_clear()
    yield
    agrees.cache_clear()


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES = {
    "softmax_backward": lambda: private_ops.softmax_backward(draw(2, 3, 5, 7), draw(2, 3, 5, 7).softmax(-1)),
    "convolution_backward": lambda: private_ops.convolution_backward(
        draw(3, 4, 6, 5), draw(3, 7, 6, 5), draw(4, 7, 3, 3)
    ),
    "flash_attention": lambda: private_ops.attention_with_logsumexp(
        draw(2, 6, 16), draw(2, 9, 16), draw(2, 9, 16), 0.25
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_private_operators_agree_with_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert private_ops._agrees(name)
    private = CASES[name]()
    monkeypatch.setattr(private_ops, "_agrees", lambda _: False)
    torch.testing.assert_close(private, CASES[name](), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_another_major_version_of_torch_uses_plain_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "3.0.1")
    assert not private_ops._agrees(name)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, TypeError])
def test_an_operator_that_fails_is_replaced(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error("no such operator")

    plain, inputs = private_ops._TRIALS["softmax_backward"][1:]
    monkeypatch.setitem(private_ops._TRIALS, "softmax_backward", (fail, plain, inputs))
    assert not private_ops._agrees("softmax_backward")


def test_an_operator_that_disagrees_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, inputs = private_ops._TRIALS["softmax_backward"][1:]
    monkeypatch.setitem(private_ops._TRIALS, "softmax_backward", (lambda *given: 2 * plain(*given), plain, inputs))
    assert not private_ops._agrees("softmax_backward")


def test_the_trial_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert all(private_ops._agrees(name) for name in private_ops._TRIALS)
    assert torch.equal(torch.get_rng_state(), before)
