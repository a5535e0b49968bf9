"""A model and a data set of one's own: two functions, nothing of Asteroid is imported."""

from __future__ import annotations

import math

import torch
from torch import nn


def network(width: int = 32) -> nn.Module:
    """Two inputs, three classes; batch norm and a skip connection, to make the cuts interesting."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x)

    return nn.Sequential(nn.Linear(2, width), nn.GELU(), Block(), Block(), nn.Linear(width, 3))


class Spirals(torch.utils.data.Dataset):
    """Points on three arms of a spiral, and the arm. Any map-style data set will do."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        arm, radius = index % 3, 0.1 + 0.9 * (index / self.samples)
        angle = 2 * math.pi * (arm / 3 + radius)
        noise = torch.randn(2, generator=torch.Generator().manual_seed(index)) * 0.02
        return torch.tensor([radius * math.cos(angle), radius * math.sin(angle)]) + noise, arm


def spirals(samples: int = 600) -> Spirals:
    """The data set."""
    return Spirals(samples)
