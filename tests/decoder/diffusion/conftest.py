"""The slow, obvious form of the forward process: explicit matrices and enumerated Bayes."""

from dataclasses import dataclass

import numpy as np
import pytest

from diffsound.decoder.diffusion.process import (
    Schedule,
    linear_schedule,
    quarter_schedule,
)

KINDS = ("uniform", "mask", "mask_uniform")


@dataclass(frozen=True)
class Explicit:
    """Matrices [K+1, K+1] with [i, j] = q(x_t=i | x_s=j), as the paper writes them."""

    schedule: Schedule
    one_step: list[np.ndarray]  # Q_1 .. Q_T at 0 .. T-1

    def between(self, t: int, s: int) -> np.ndarray:
        product = np.eye(len(self.one_step[0]))
        for matrix in self.one_step[s:t]:
            product = matrix @ product
        return product

    def posterior(self, t: int, s: int) -> np.ndarray:
        """q(x_s | x_t, x_0) as [x_0, x_t, x_s]; NaN where q(x_t | x_0) = 0."""
        size = self.schedule.codebook_size
        upto_t, upto_s = self.between(t, 0)[:, :size], self.between(s, 0)[:, :size]
        joint = np.einsum("ts,si->its", self.between(t, s), upto_s)
        with np.errstate(invalid="ignore", divide="ignore"):
            return joint / upto_t.T[:, :, None]


def _paper_matrix(kind: str, size: int, alpha: float, beta: float, gamma: float) -> np.ndarray:
    matrix = np.zeros((size + 1, size + 1))
    matrix[size, size] = 1
    if kind == "uniform":  # eq. 13, with an unused mask state
        matrix[:size, :size] = beta + alpha * np.eye(size)
    elif kind == "mask":  # eq. 16, where the paper calls α β
        matrix[:size, :size] = alpha * np.eye(size)
        matrix[size, :size] = gamma
    else:  # eq. 19
        matrix[:size, :size] = beta + alpha * np.eye(size)
        matrix[size, :size] = gamma
    return matrix


def explicit_form(shape: str, kind: str, size: int, steps: int, gamma_end: float) -> Explicit:
    make = {"linear": linear_schedule, "quarter": quarter_schedule}[shape]
    level = np.arange(steps + 1) / steps
    if shape == "quarter":
        level = np.sin(level * np.pi / 2)
    alphas, gammas = 1 - level, {"uniform": 0, "mask": 1, "mask_uniform": gamma_end}[kind] * level
    one_step = []
    for t in range(1, steps + 1):
        alpha = alphas[t] / alphas[t - 1]
        gamma = 1 - (1 - gammas[t]) / (1 - gammas[t - 1])
        one_step.append(_paper_matrix(kind, size, alpha, (1 - alpha - gamma) / size, gamma))
    return Explicit(make(steps, size, kind, gamma_end), one_step)


@pytest.fixture(scope="session", params=KINDS)
def explicit_forms(request: pytest.FixtureRequest) -> list[Explicit]:
    """One transition matrix, at every small size and length, linear and bent."""
    kind = request.param
    forms = [
        explicit_form("linear", kind, size, steps, 0.9)
        for size in (2, 3, 4, 5)
        for steps in range(1, 9)
    ]
    return [*forms, explicit_form("quarter", kind, 3, 6, 0.5)]
