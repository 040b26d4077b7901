"""All private torch operators that wellread uses, each with a plain implementation of the same function.

They are faster than the public operations, but may change without notice. So each is tried once on a small input:
it is used if torch is of a major version that it was tested with and its result agrees with the plain implementation,
which is used otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

_TESTED_MAJOR = 2
"""Major version of torch that the operators' signatures were tested with."""


def softmax_backward(
    gradient: Float[Tensor, "... column"], weights: Float[Tensor, "... column"]
) -> Float[Tensor, "... column"]:
    """Return the gradient of a softmax's input, from that of its output `weights`."""
    return (_softmax_backward if _agrees("softmax_backward") else plain_softmax_backward)(gradient, weights)


def _softmax_backward(gradient: Tensor, weights: Tensor) -> Tensor:
    return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)


def plain_softmax_backward(gradient: Tensor, weights: Tensor) -> Tensor:
    """Compute `softmax_backward` by public operations."""
    product = gradient * weights
    return product - weights * product.sum(-1, keepdim=True)


def convolution_backward(
    gradient: Float[Tensor, "text head row column"],
    channels: Float[Tensor, "text channel row column"],
    kernel: Float[Tensor, "head channel 3 3"],
) -> tuple[Float[Tensor, "text channel row column"], Float[Tensor, "head channel 3 3"]]:
    """Return the gradients of the input and the kernel of a 3 × 3 convolution with padding 1."""
    compute = _convolution_backward if _agrees("convolution_backward") else plain_convolution_backward
    return compute(gradient, channels, kernel)


def _convolution_backward(gradient: Tensor, channels: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    d_channels, d_kernel, _ = torch.ops.aten.convolution_backward(
        gradient, channels, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, (True, True, False)
    )
    return d_channels, d_kernel


def plain_convolution_backward(gradient: Tensor, channels: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `convolution_backward` by public operations."""
    d_channels = conv2d_input(list(channels.shape), kernel, gradient, padding=1)  # type: ignore[no-untyped-call]
    d_kernel = conv2d_weight(channels, list(kernel.shape), gradient, padding=1)  # type: ignore[no-untyped-call]
    return d_channels, d_kernel


def attention_with_logsumexp(
    query: Float[Tensor, "head row dim"],
    key: Float[Tensor, "head column dim"],
    value: Float[Tensor, "head column dim"],
    scaling: float,
) -> tuple[Float[Tensor, "head row dim"], Float[Tensor, "head row"]]:
    """Return attention on a CPU, and the log of the sum of each row's exponentials, to merge several parts by."""
    compute = _flash_attention if _agrees("flash_attention") else plain_attention_with_logsumexp
    return compute(query, key, value, scaling)


def _flash_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    parts = (part[None] for part in (query, key, value))
    mixed, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*parts, scale=scaling)
    return mixed[0], logsumexp[0]


def plain_attention_with_logsumexp(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Compute `attention_with_logsumexp` by public operations."""
    scores = (query * scaling) @ key.transpose(1, 2)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


@cache
def _agrees(name: str) -> bool:
    """Return True if a private operator exists and computes what its plain implementation does."""
    private, plain, inputs = _TRIALS[name]
    if int(torch.__version__.partition(".")[0]) != _TESTED_MAJOR:
        return False
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            given = inputs()
            found, expected = private(*given), plain(*given)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    except (AttributeError, RuntimeError, TypeError, ValueError, AssertionError):
        return False
    return True


def _waves(*shape: int) -> Tensor:
    """Return varied numbers without drawing any: training must not depend on this trial."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32, device="cpu").mul_(1.7).sin_().view(shape)


_TRIALS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "softmax_backward": (
        _softmax_backward,
        plain_softmax_backward,
        lambda: (_waves(2, 5), (2 * _waves(2, 5)).softmax(-1)),
    ),
    "convolution_backward": (
        _convolution_backward,
        plain_convolution_backward,
        lambda: (_waves(2, 3, 5, 4), _waves(2, 4, 5, 4), _waves(3, 4, 3, 3)),
    ),
    "flash_attention": (
        _flash_attention,
        plain_attention_with_logsumexp,
        lambda: (_waves(2, 3, 8), 2 * _waves(2, 5, 8), _waves(2, 5, 8), 0.3),
    ),
}
