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


@pytest.mark.parametrize("activation", private_ops._ACTIVATIONS)
def test_int8_products_agree_with_plain_ones(activation: tuple[str, str]) -> None:
    if not private_ops.has_int8_linear():
        pytest.skip("this torch or CPU has no 8-bit products")
    chance = torch.Generator().manual_seed(0)
    weights = torch.randint(-64, 65, (12, 8), dtype=torch.int8, generator=chance)
    inputs = torch.randint(0, 256, (5, 8), dtype=torch.uint8, generator=chance)
    scales, bias = torch.rand(12, generator=chance) / 50 + 0.001, draw(12)
    step, zero = (1.0, 0) if activation[0] == "none" else (0.2, 3)
    packed, zeros = private_ops.pack_int8_weights(weights), torch.zeros(12, dtype=torch.long)
    found = private_ops.int8_linear(inputs, packed, scales, zeros, bias, activation, step, zero)
    plain = private_ops.plain_int8_linear(inputs, weights, scales, bias, activation, step, zero)
    assert found.dtype == plain.dtype
    torch.testing.assert_close(found.double(), plain.double(), rtol=1e-5, atol=1e-3 if step == 1 else 1.0)
