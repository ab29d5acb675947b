"""The norm of a gradient does not depend on how rows are shared out."""

from __future__ import annotations

import pytest
import torch

from trainer_client.agreement import Agreement
from trainer_client.gradnorm import _add_squares, _halved, clip, gradient_norm


def parameters_with(*gradients: torch.Tensor | None) -> list[torch.Tensor]:
    found = [torch.nn.Parameter(torch.zeros(2, 3) if one is None else torch.zeros_like(one)) for one in gradients]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = gradient
    return list(found)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3, 17, 64, 257, 40_000])
def test_a_row_has_the_same_sum_whatever_rows_are_beside_it(kind: torch.dtype, width: int) -> None:
    rows = torch.randn(7, width).to(kind)
    whole = torch.zeros(7, dtype=torch.float64)
    _add_squares(rows, whole)
    for size in (1, 2, 4):
        parts = torch.zeros(7, dtype=torch.float64)
        for start in range(0, 7, size):
            _add_squares(rows[start : start + size].clone(), parts[start : start + size])
        assert torch.equal(parts, whole)
    torch.testing.assert_close(whole, _halved(rows.double().square()), rtol=1e-5, atol=0.0)


def test_it_is_the_norm_that_torch_finds_and_clips_to() -> None:
    gradients = [torch.randn(5, 4), None, torch.randn(3), torch.randn(())]
    ours, theirs = parameters_with(*gradients), parameters_with(*(g if g is None else g.clone() for g in gradients))
    norm = gradient_norm(ours, Agreement())
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs, 0.5)), rel=1e-6)
    clip(ours, norm, 0.5)
    for own, other in zip(ours, theirs, strict=True):
        assert (own.grad is None) == (other.grad is None)
        assert own.grad is None or torch.allclose(own.grad, other.grad, rtol=1e-6)
    assert gradient_norm(ours, Agreement()) == pytest.approx(0.5, rel=1e-4)
