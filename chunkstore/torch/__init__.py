"""Shuffled windows as torch tensors.

torch is imported in this package and in the adapters beside it, nowhere else.
"""

from __future__ import annotations

from chunkstore.errors import MissingDependencyError

try:
    import torch as _torch  # noqa: F401 - asked for here so that the message says what to install
except ImportError as error:  # pragma: no cover - the tests have torch
    raise MissingDependencyError(
        "training batches need torch; run: pip install 'chunkstore[torch]'"
    ) from error

from chunkstore.torch.dataset import ZarrWindowDataset
from chunkstore.torch.loader import TrainingLoader
from chunkstore.torch.mapped import WindowDataset

__all__ = ["TrainingLoader", "WindowDataset", "ZarrWindowDataset"]
