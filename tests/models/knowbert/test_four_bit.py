"""Matrices in 4 bits: what is lost is little, whatever the matrix is."""

import pytest
import torch

from wellread.models.knowbert.four_bit import GROUP, code, decode


@pytest.mark.parametrize("shape", [(5, 128), (3, 100), (2, 1), (4, GROUP), (1, GROUP + 1)])
def test_a_matrix_comes_back_nearly(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64) * 0.01
    codes, scales = code(matrix)
    groups = -(-shape[1] // GROUP)
    assert codes.shape == (shape[0], groups * GROUP // 2)
    assert codes.dtype == torch.uint8
    assert scales.shape == (shape[0], groups)
    assert scales.dtype == torch.float16
    back = decode(codes, scales, shape[1])
    assert back.shape == shape
    assert float((back - matrix).norm() / matrix.norm()) < 0.12


def test_what_is_a_code_is_kept_exactly():
    matrix = torch.arange(-7.0, 8.0).repeat(2, 5) * 0.125
    assert torch.equal(decode(*code(matrix), matrix.shape[1]), matrix)


def test_nothing_stays_nothing():
    assert not decode(*code(torch.zeros(2, 70)), 70).any()


def test_one_large_number_spoils_only_its_group():
    torch.manual_seed(0)
    matrix = torch.randn(1, 2 * GROUP)
    matrix[0, 0] = 1000.0
    back = decode(*code(matrix), 2 * GROUP)
    assert float(back[0, 0]) == pytest.approx(1000.0, rel=0.01)
    assert float((back - matrix)[:, GROUP:].norm() / matrix[:, GROUP:].norm()) < 0.12


def test_scales_lose_less_than_the_largest_number_would():
    torch.manual_seed(0)
    matrix = torch.randn(64, 4 * GROUP)
    largest = matrix.view(64, 4, GROUP).abs().amax(-1, keepdim=True) / 7
    plain = ((matrix.view(64, 4, GROUP) / largest).round() * largest).view_as(matrix)
    assert (decode(*code(matrix), 4 * GROUP) - matrix).norm() < 0.95 * (plain - matrix).norm()


def test_numbers_too_small_for_a_scale_become_nothing():
    assert decode(*code(torch.full((1, GROUP), 1e-9)), GROUP).abs().max() < 1e-6
