"""How often a classifier is right."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_accuracy(logits: Tensor, labels: Tensor, k: int = 1) -> float:
    """Share of clips whose label is among the k likeliest; logits [N, classes], labels [N]."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return float((best == labels[:, None]).any(dim=1).double().mean())


def average_precision(scores: Tensor, targets: Tensor) -> float:
    """Mean over the classes that occur of the precision at each of their clips (AudioSet's mAP).

    scores, targets: [N, classes], targets 0 or 1.
    """
    present = targets.sum(dim=0) > 0
    if not bool(present.any()):
        return 0.0
    order = scores[:, present].argsort(dim=0, descending=True, stable=True)
    hits = targets[:, present].double().gather(0, order)
    ranks = torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)[:, None]
    precision = hits.cumsum(dim=0) / ranks
    return float(((precision * hits).sum(dim=0) / hits.sum(dim=0)).mean())


def per_class_accuracy(logits: Tensor, labels: Tensor) -> dict[int, float]:
    """Of each class that occurs, the share of its clips that are recognised; for a model card."""
    right = logits.argmax(dim=1) == labels
    return {int(label): float(right[labels == label].double().mean()) for label in labels.unique()}
