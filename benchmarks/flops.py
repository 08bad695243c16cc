"""What a forward pass costs by formula, in floating-point operations and bytes.

A multiply-add counts as two. Everybody is credited with the work that a perfect prefix cache
leaves (``token_counts``), whatever a system computes on top of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint_files import find_checkpoint_files, read_model_config
from engine.model_config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """Costs of one model; elements of ``element_bytes``."""

    config: ModelConfig
    element_bytes: int = 2

    @property
    def linear_weights(self) -> int:
        """Weights of the linear layers; embedding and head are left out."""
        c = self.config
        attention = c.hidden_size * c.head_dim * 2 * (c.num_heads + c.num_kv_heads)
        return c.num_layers * (attention + 3 * c.hidden_size * c.intermediate_size)

    def linear_flop(self, tokens: int) -> int:
        return 2 * self.linear_weights * tokens

    def attention_flop(self, attended: int) -> int:
        """``attended`` is the number of (query position, key position) pairs of one layer."""
        c = self.config
        return 4 * c.num_layers * c.num_heads * c.head_dim * attended

    @property
    def kv_bytes_per_token(self) -> int:
        c = self.config
        return 2 * c.num_layers * c.num_kv_heads * c.head_dim * self.element_bytes

    def workspace_bytes(self, step_tokens: int) -> int:
        """Activations that are alive at one time in the widest place of a layer, the feed-forward.

        Residual, normed input and its float32 copy, gate and up, and their product in float32.
        """
        c = self.config
        per_token = c.hidden_size * (2 * self.element_bytes + 4) + c.intermediate_size * (3 * self.element_bytes + 4)
        return step_tokens * per_token


def read_model_cost(model: Path) -> ModelCost:
    """Costs of the model at ``model``; only its configuration is read.

    Raises:
        CheckpointError: there is no model that the engine could load.
    """
    return ModelCost(config=read_model_config(find_checkpoint_files(model)))
