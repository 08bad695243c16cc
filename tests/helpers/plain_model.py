"""A decoder in the plainest form: one row, every position, no cache. Judges the engine."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint import Checkpoint
from engine.records import (
    LabelOutcome,
    LabelReadout,
    LikelihoodOutcome,
    LikelihoodReadout,
    Outcome,
    Row,
    TokenOutcome,
    Unscored,
)
from kernels.weights import dense


def plain_logits(checkpoint: Checkpoint, tokens: list[int]) -> Tensor:
    """Logits ``[tokens, vocabulary]`` in float64, whatever the type of the weights."""
    config, weights = checkpoint.config, checkpoint.weights
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    length = len(tokens)
    powers = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(length, dtype=torch.float64)[:, None] / config.layers[0].rotary.theta ** powers
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * weight.double()

    def rotate(x: Tensor) -> Tensor:
        turned = torch.complex(x[..., : width // 2], x[..., width // 2 :]) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    x = weights.embedding[torch.tensor(tokens)].double()
    for layer in weights.layers:
        qkv = norm(x, layer.input_norm) @ dense(layer.qkv).double().T
        query, key, value = torch.split(qkv.view(length, -1, width), [heads, kv_heads, kv_heads], dim=1)
        query, key = rotate(query), rotate(key)
        key, value = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / width**0.5
        seen = scores.masked_fill(future, float("-inf")).softmax(-1)
        x = x + torch.einsum("hqk,khd->qhd", seen, value).flatten(1) @ dense(layer.attention_out).double().T
        gate, up = (norm(x, layer.feed_forward_norm) @ dense(layer.gate_up).double().T).chunk(2, dim=-1)
        x = x + (F.silu(gate) * up) @ dense(layer.down).double().T
    return norm(x, weights.final_norm) @ weights.head.double().T


def plain_numbers(checkpoint: Checkpoint, row: Row) -> list[float]:
    """What the readout of ``row`` should give by :func:`plain_logits`."""
    return numbers_from(plain_logits(checkpoint, row.tokens.tolist()), row)


def numbers_from(logits: Tensor, row: Row) -> list[float]:
    """What the readout of ``row`` should give: label logits and denominator, or log-probabilities."""
    if isinstance(row.readout, LabelReadout):
        denominator = [logits[-1].logsumexp(0).item()] if row.readout.log_sum_exp else []
        return logits[-1, list(row.readout.label_ids)].tolist() + denominator
    assert isinstance(row.readout, LikelihoodReadout)
    target = torch.from_numpy(row.readout.target_ids).long()
    log_probs = logits[-len(target) :].log_softmax(-1).gather(1, target[:, None])
    return [float(value) for value in log_probs.flatten()]


def numbers(outcome: Outcome) -> list[float]:
    """The numbers of an outcome in the order of :func:`numbers_from`."""
    match outcome:
        case LabelOutcome(logits=logits, log_sum_exp=log_sum_exp):
            return [*logits, *([] if log_sum_exp is None else [log_sum_exp])]
        case LikelihoodOutcome(log_probs=log_probs):
            return list(log_probs)
        case TokenOutcome(log_probs=log_probs):
            return list(log_probs)
        case Unscored(reason=reason):
            raise AssertionError(f"unscored: {reason}")
