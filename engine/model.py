"""The forward pass of a Llama-shaped decoder over packed tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import ExtendBatch
from engine.kv_pool import KvPool
from engine.model_config import ModelConfig
from engine.weights import LayerWeights, ModelWeights
from kernels.api import AttentionPlan, AttentionShape, KernelSet, LinearOp


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    input_norm: Tensor
    post_norm: Tensor
    qkv: LinearOp
    attention_out: LinearOp
    gate_up: LinearOp
    down: LinearOp


class Decoder:
    """Runs one step of a model.

    The last layer is special, because nothing after it looks at most rows: every row still
    gives K and V for the cache, but only rows that are read go on (DESIGN 2.3).
    """

    def __init__(self, config: ModelConfig, weights: ModelWeights, kernels: KernelSet) -> None:
        self._config = config
        self._kernels = kernels
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm.float()
        self.head = weights.head
        self._layers = [self._prepare(layer) for layer in weights.layers]
        self._query_width = config.num_heads * config.head_dim
        last = weights.layers[-1].qkv
        self._last_query = kernels.pack_linear(last[: self._query_width])
        self._last_key_value = kernels.pack_linear(last[self._query_width :])
        self._shape = AttentionShape(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        )
        self.device = weights.embedding.device
        self._cos, self._sin = (table.to(self.device) for table in rotary_tables(config))

    def _prepare(self, layer: LayerWeights) -> _Layer:
        pack = self._kernels.pack_linear
        return _Layer(
            input_norm=layer.input_norm.float(),
            post_norm=layer.post_norm.float(),
            qkv=pack(layer.qkv),
            attention_out=pack(layer.attention_out),
            gate_up=pack(layer.gate_up),
            down=pack(layer.down),
        )

    def forward(self, batch: ExtendBatch, pool: KvPool) -> Tensor:
        """Run the step and write the K and V that are kept into ``pool``.

        Returns:
            ``[R, d]`` float32: hidden states of the rows that are read, after the final norm.
        """
        kernels = self._kernels
        update = self._embedding[batch.tokens]
        stream = torch.zeros(update.shape, device=self.device)  # the residual stream; layers add to it
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        plan = kernels.plan(batch.spans)
        for index, layer in enumerate(self._layers[:-1]):
            h = kernels.add_rms_norm(stream, update, layer.input_norm, self._config.rms_norm_eps)
            query, key, value = self._split(layer.qkv(h))
            query, key = kernels.rotate(query, cos, sin), kernels.rotate(key, cos, sin)
            update = layer.attention_out(self._attend(index, query, key, value, batch, pool, plan))
            update = self._feed_forward(layer, stream, update)
        h = kernels.add_rms_norm(stream, update, self._layers[-1].input_norm, self._config.rms_norm_eps)
        return self._last_layer(stream[batch.read_rows], h, batch, pool, cos, sin)

    def _last_layer(
        self, stream: Tensor, h: Tensor, batch: ExtendBatch, pool: KvPool, cos: Tensor, sin: Tensor
    ) -> Tensor:
        kernels, config, layer, index = self._kernels, self._config, self._layers[-1], len(self._layers) - 1
        key, value = self._last_key_value(h).view(len(h), 2, config.num_kv_heads, config.head_dim).unbind(1)
        key = kernels.rotate(key, cos, sin)
        read = batch.read_rows
        query = self._last_query(h[read]).view(len(read), config.num_heads, config.head_dim)
        query = kernels.rotate(query, cos[read], sin[read])
        plan = kernels.plan(batch.read_spans)
        update = layer.attention_out(self._attend(index, query, key, value, batch, pool, plan))
        update = self._feed_forward(layer, stream, update)
        return kernels.rms_norm(stream + update, self._final_norm, config.rms_norm_eps)

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self._config
        heads = qkv.view(len(qkv), config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        key_from, value_from = config.num_heads, config.num_heads + config.num_kv_heads
        return heads[:, :key_from], heads[:, key_from:value_from], heads[:, value_from:]

    def _attend(
        self,
        index: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: ExtendBatch,
        pool: KvPool,
        plan: AttentionPlan,
    ) -> Tensor:
        key_pool, value_pool = pool.layer(index)
        self._kernels.store_kv(key, value, key_pool, value_pool, batch.keep_rows, batch.keep_slots)
        if not len(query):
            return query.flatten(1)
        return self._kernels.attend(query, key, value, key_pool, value_pool, plan, self._shape).flatten(1)

    def _feed_forward(self, layer: _Layer, stream: Tensor, update: Tensor) -> Tensor:
        h = self._kernels.add_rms_norm(stream, update, layer.post_norm, self._config.rms_norm_eps)
        return layer.down(self._kernels.swiglu(layer.gate_up(h)))


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position (Su et al. 2021), ``[max_positions, D/2]`` float32."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = config.rope_theta**-half
    angles = torch.outer(torch.arange(config.max_positions, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()
