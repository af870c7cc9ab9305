"""Two-line recipes over scores: kernel matrix-vector products, chamfer distance, MMD, one Sinkhorn step.

Each works on point clouds x [.., N, D] and y [.., K, D], is differentiable in all of its tensors,
and never writes the [N, K] matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

import tilefold as tf


def rbf_matvec(x: Tensor, y: Tensor, v: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """K v with the Gaussian kernel k(x, y) = exp(-|x - y|^2 / (2 sigma^2)); v [.., K, M]."""
    square = tf.scores(x, y, metric="sqeuclidean")
    return torch.exp(square * (-0.5 / sigma**2)) @ v


def laplace_matvec(x: Tensor, y: Tensor, v: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """K v with the Laplace kernel k(x, y) = exp(-|x - y| / sigma); v [.., K, M]."""
    distance = tf.scores(x, y, metric="euclidean")
    return torch.exp(-distance / sigma) @ v


def chamfer(x: Tensor, y: Tensor) -> Tensor:
    """The chamfer distance of two point clouds: mean squared distance to the nearest point, both ways."""
    square = tf.scores(x, y, metric="sqeuclidean")
    return square.amin(-1).mean(-1) + square.amin(-2).mean(-1)


def mmd(x: Tensor, y: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """The squared maximum mean discrepancy of samples [N, D], [K, D] in a Gaussian kernel (Gretton et al., 2012)."""
    similarity = lambda a, b: torch.exp(tf.scores(a, b, metric="sqeuclidean") * (-0.5 / sigma**2)).mean()
    return similarity(x, x) + similarity(y, y) - 2 * similarity(x, y)


def sinkhorn_step(x: Tensor, y: Tensor, g: Tensor, log_b: Tensor, epsilon: float) -> Tensor:
    """The potential f [N] of x that fits the potential g [K] of y, on the cost |x - y|^2 (Cuturi, 2013).

    Exchange the sides for the other half of a round.

    Args:
        log_b: [K], logarithms of the weights of y's points
        epsilon: strength of the entropic regularisation
    """
    cost = tf.scores(x, y, metric="sqeuclidean")
    return -epsilon * torch.logsumexp((g - cost) / epsilon + log_b, -1)


def main() -> None:
    torch.manual_seed(0)
    x, y, v = torch.randn(800, 3), torch.randn(1000, 3) + 0.5, torch.randn(1000, 2)
    d = torch.cdist(x.double(), y.double())
    torch.testing.assert_close(
        rbf_matvec(x, y, v), ((-d.square() / 2).exp() @ v.double()).float(), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(laplace_matvec(x, y, v), ((-d).exp() @ v.double()).float(), rtol=1e-4, atol=1e-4)
    nearest = d.square().amin(1).mean() + d.square().amin(0).mean()
    torch.testing.assert_close(chamfer(x, y), nearest.float(), rtol=1e-4, atol=1e-5)
    g, log_a, log_b = torch.zeros(1000), torch.full((800,), 1 / 800).log(), torch.full((1000,), 1e-3).log()
    for _ in range(50):
        f = sinkhorn_step(x, y, g, log_b, epsilon=0.5)
        g = sinkhorn_step(y, x, f, log_a, epsilon=0.5)
    plan = (
        (f.double().unsqueeze(1) + g.double() - d.square()) / 0.5 + log_a.double().unsqueeze(1) + log_b.double()
    ).exp()
    assert (plan.sum(0) - 1e-3).abs().max() < 1e-6
    print(f"recipes: chamfer {chamfer(x, y):.3f}, MMD {mmd(x, y):.3f}, transport cost {(plan * d.square()).sum():.3f}")


if __name__ == "__main__":
    main()
