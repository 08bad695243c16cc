"""The forward pass of a decoder over packed tokens. What sets families apart is data, read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from engine.batch import ExtendBatch, PaddedBatch
from engine.kv_pool import KvPool
from engine.model_config import LayerAttention, ModelConfig
from engine.readout import LmHead
from engine.rotary import Rotary
from engine.weights import LayerWeights, ModelWeights
from kernels.api import (
    AttentionPlan,
    AttentionShape,
    KernelSet,
    LastLayerOps,
    LayerOps,
    LayersInput,
    LayersOp,
    LinearOp,
    SublayerOp,
)
from kernels.weights import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    shape: AttentionShape
    rotary: Rotary
    qkv: SublayerOp
    attention_out: LinearOp
    feed_forward: SublayerOp
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_out_norm: Tensor | None
    feed_forward_out_norm: Tensor | None


_Turn: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of some rows, ``[T, D/2]`` float32 each."""


class Decoder:
    """Runs one step of a model.

    The last layer is special, because nothing after it looks at most rows: every row still
    gives K and V for the cache, but only rows that are read go on (DESIGN 2.3).

    Args:
        int8_feed_forward: Multiply in 8 bits in feed-forward parts, where most of the multiplying is. What attention
            reads stays as it is: to round the inputs of query and key moves scores more than all the rest.
    """

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, kernels: KernelSet, *, int8_feed_forward: bool = False
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._int8 = int8_feed_forward
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm
        self.head = LmHead(weight=weights.head, soft_cap=config.logit_soft_cap)
        pairs = zip(config.layers, weights.layers, strict=True)
        self._layers = [self._prepare(attention, layer) for attention, layer in pairs]
        self.device = weights.embedding.device
        self._tables = {
            rotary: _rotary_tables(rotary, config.head_dim, config.max_positions, self.device)
            for rotary in {layer.rotary for layer in config.layers}
        }
        width, last = config.num_heads * config.head_dim, weights.layers[-1]
        bias = last.qkv_bias
        self._last_query = self._normed(last, last.qkv[:width], None if bias is None else bias[:width])
        self._last_key_value = self._normed(last, last.qkv[width:], None if bias is None else bias[width:])
        self._joined = self._join()
        # rounded to the dtype of what it multiplies, as models with a scale were trained
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=self._embedding.dtype, device=self.device)

    def _prepare(self, attention: LayerAttention, layer: LayerWeights) -> _Layer:
        config = self._config
        shape = AttentionShape(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.query_scale,
            window=attention.window,
            soft_cap=config.attention_soft_cap,
        )
        return _Layer(
            shape=shape,
            rotary=attention.rotary,
            qkv=self._normed(layer, layer.qkv, layer.qkv_bias),
            attention_out=self._kernels.pack_linear(layer.attention_out, layer.attention_out_bias),
            feed_forward=self._feed_forward(layer),
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
            attention_out_norm=layer.attention_out_norm,
            feed_forward_out_norm=layer.feed_forward_out_norm,
        )

    def _join(self) -> LayersOp | None:
        """All layers as one operation, if the kernels have such a thing for this model."""
        *layers, last = self._layers
        norms = [
            norm
            for layer in self._layers
            for norm in (layer.query_norm, layer.key_norm, layer.attention_out_norm, layer.feed_forward_out_norm)
        ]
        if any(norm is not None for norm in norms):
            return None
        turns = list(self._tables)
        return self._kernels.join_layers(
            [
                LayerOps(
                    qkv=layer.qkv,
                    attention_out=layer.attention_out,
                    feed_forward=layer.feed_forward,
                    shape=layer.shape,
                    turn=turns.index(layer.rotary),
                )
                for layer in layers
            ],
            LastLayerOps(
                query=self._last_query,
                key_value=self._last_key_value,
                attention_out=last.attention_out,
                feed_forward=last.feed_forward,
                norm=self._final_norm,
                eps=self._config.rms_norm_eps,
                shape=last.shape,
                turn=turns.index(last.rotary),
            ),
        )

    def _normed(self, layer: LayerWeights, weight: Weight, bias: Tensor | None) -> SublayerOp:
        """A linear layer of the normed input of ``layer``."""
        return self._kernels.pack_normed_linear(layer.input_norm, self._config.rms_norm_eps, weight, bias)

    def _feed_forward(self, layer: LayerWeights) -> SublayerOp:
        config = self._config
        return self._kernels.pack_feed_forward(
            layer.feed_forward_norm, config.rms_norm_eps, layer.gate_up, layer.down, config.activation, int8=self._int8
        )

    @property
    def shapes(self) -> set[AttentionShape]:
        """The attention shapes of its layers: one, or two where some layers have a window."""
        return {layer.shape for layer in self._layers}

    @property
    def dtype(self) -> torch.dtype:
        """Of activations, and of what attention reads."""
        return self._embedding.dtype

    @property
    def max_positions(self) -> int:
        return self._config.max_positions

    def forward(self, batch: ExtendBatch, pool: KvPool) -> Tensor:
        """Run the step and write the K and V that are kept into ``pool``.

        Returns:
            ``[R, d]`` float32: hidden states of the rows that are read, after the final norm.
        """
        stream, update, turns = self._begin(batch.tokens, batch.positions)
        plan, read_plan = (self._kernels.plan(spans) for spans in (batch.spans, batch.read_spans))
        if self._joined is not None and pool.scales is None:
            return self._joined(
                LayersInput(
                    stream=stream,
                    update=update,
                    turns=list(turns.values()),
                    key_pools=pool.keys,
                    value_pools=pool.values,
                    keep_rows=batch.keep_rows,
                    keep_slots=batch.keep_slots,
                    read_rows=batch.read_rows,
                    plan=plan,
                    read_plan=read_plan,
                )
            )
        for index in range(len(self._layers) - 1):
            update = self._layer(index, stream, update, turns, batch, pool, plan)
        return self._last_layer(stream, update, batch, pool, turns[self._layers[-1].rotary], read_plan)

    def forward_padded(self, batch: PaddedBatch, pool: KvPool) -> Tensor:
        """As :meth:`forward`, in a way that depends on the shapes of ``batch`` alone and asks nothing on the host.

        So what it launches can be recorded, and does the same for another step in the same memory. All
        rows go through the last layer, for which are read is not known then.

        Returns:
            ``[T, d]`` float32: hidden states of ``batch.read_rows``.
        """
        stream, update, turns = self._begin(batch.tokens, batch.positions)
        for index in range(len(self._layers)):
            update = self._layer(index, stream, update, turns, batch, pool, batch.plan)
        read = batch.read_rows
        return self._kernels.rms_norm(stream[read] + update[read], self._final_norm, self._config.rms_norm_eps)

    def _begin(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, dict[Rotary, _Turn]]:
        """The residual stream, to which layers add; the first update of it; the turns of all rows."""
        update = self._embed(tokens)
        turns = {}
        for rotary, tables in self._tables.items():
            cos, sin = tables.index_select(1, positions)  # one operation; each is dense
            turns[rotary] = cos, sin
        return torch.zeros(update.shape, device=self.device), update, turns

    def _layer(
        self,
        index: int,
        stream: Tensor,
        update: Tensor,
        turns: dict[Rotary, _Turn],
        batch: ExtendBatch | PaddedBatch,
        pool: KvPool,
        plan: AttentionPlan,
    ) -> Tensor:
        """The update of a layer that all rows go through."""
        layer = self._layers[index]
        query, key, value = self._place_all(layer, layer.qkv(stream, update), turns[layer.rotary])
        attended = self._attend(index, query, key, value, batch, pool, plan)
        return self._after_attention(layer, stream, attended)

    def _last_layer(
        self,
        stream: Tensor,
        update: Tensor,
        batch: ExtendBatch,
        pool: KvPool,
        turn: _Turn,
        plan: AttentionPlan,
    ) -> Tensor:
        kernels, config, layer, index = self._kernels, self._config, self._layers[-1], len(self._layers) - 1
        read = batch.read_rows
        read_stream, read_update = stream[read], update[read]
        key, value = self._last_key_value(stream, update).view(-1, 2, config.num_kv_heads, config.head_dim).unbind(1)
        key = self._place(key, layer.key_norm, turn)
        query = self._last_query(read_stream, read_update).view(len(read), config.num_heads, config.head_dim)
        query = self._place(query, layer.query_norm, (turn[0][read], turn[1][read]))
        attended = self._attend(index, query, key, value, batch, pool, plan)
        update = self._after_attention(layer, read_stream, attended)
        return kernels.rms_norm(read_stream + update, self._final_norm, config.rms_norm_eps)

    def _embed(self, tokens: Tensor) -> Tensor:
        rows = self._embedding.index_select(0, tokens)
        return rows if self._config.embedding_scale == 1 else rows * self._embedding_scale

    def _place(self, heads: Tensor, norm: Tensor | None, turn: _Turn) -> Tensor:
        """Heads of query or key, normed where the model does so, and turned by their positions."""
        if norm is None:
            return self._kernels.rotate(heads, *turn)
        return self._kernels.norm_rotate(heads, norm, self._config.rms_norm_eps, *turn)

    def _place_all(self, layer: _Layer, qkv: Tensor, turn: _Turn) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value ``[T, heads, D]``, the first two placed; as one where no norm comes between."""
        config = self._config
        heads = qkv.view(len(qkv), config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        key_from, value_from = config.num_heads, config.num_heads + config.num_kv_heads
        value = heads[:, value_from:]
        if layer.query_norm is None and layer.key_norm is None:
            turned = self._kernels.rotate(heads[:, :value_from], *turn)
            return turned[:, :key_from], turned[:, key_from:], value
        query = self._place(heads[:, :key_from], layer.query_norm, turn)
        return query, self._place(heads[:, key_from:value_from], layer.key_norm, turn), value

    def _attend(
        self,
        index: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: ExtendBatch | PaddedBatch,
        pool: KvPool,
        plan: AttentionPlan,
    ) -> Tensor:
        key_pool, value_pool = pool.layer(index)
        # a quantised pool also rounds what is not kept, so that scores do not hang on what is
        if batch.keep_rows.shape[0] or pool.scales is not None:
            self._kernels.store_kv(key, value, key_pool, value_pool, batch.keep_rows, batch.keep_slots)
        if not query.shape[0]:
            return query.flatten(1)
        return self._kernels.attend(query, key, value, key_pool, value_pool, plan, self._layers[index].shape).flatten(1)

    def _after_attention(self, layer: _Layer, stream: Tensor, attended: Tensor) -> Tensor:
        """What the feed-forward part gives, after the part of attention went into ``stream``."""
        kernels, eps = self._kernels, self._config.rms_norm_eps
        update = layer.attention_out(attended)
        if layer.attention_out_norm is not None:
            update = kernels.rms_norm(update, layer.attention_out_norm, eps)
        update = layer.feed_forward(stream, update)
        if layer.feed_forward_out_norm is not None:
            update = kernels.rms_norm(update, layer.feed_forward_out_norm, eps)
        return update


def _rotary_tables(rotary: Rotary, head_dim: int, max_positions: int, device: torch.device) -> Tensor:
    """Cosines and sines of every position, ``[2, max_positions, D/2]`` float32."""
    frequencies = torch.tensor(rotary.frequencies(head_dim), dtype=torch.float64)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), frequencies)
    return (torch.stack([angles.cos(), angles.sin()]) * rotary.magnitude).float().to(device)
