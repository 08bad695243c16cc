from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Encoding
from transformers import LlamaForCausalLM

from engine.checkpoint_files import gguf_model_config
from engine.checkpoint_gguf import load_gguf
from engine.errors import CheckpointError
from engine.gguf_file import read_gguf_header
from engine.weights import ModelWeights
from kernels.weights import CodedWeight, dense
from tests.helpers.llama_files import HEAD_SHAPES, assert_same_weights, head_shape, tiny_llama, write_gguf

DEQUANTISED = [
    Encoding.F32, Encoding.F16, Encoding.BF16, Encoding.Q4_0, Encoding.Q4_1, Encoding.Q5_0, Encoding.Q5_1,
    Encoding.Q8_0, Encoding.Q2_K, Encoding.Q3_K, Encoding.Q4_K, Encoding.Q5_K, Encoding.Q6_K, Encoding.TQ1_0,
    Encoding.TQ2_0, Encoding.MXFP4, Encoding.IQ2_XXS, Encoding.IQ2_XS, Encoding.IQ2_S, Encoding.IQ3_XXS,
    Encoding.IQ3_S, Encoding.IQ1_S, Encoding.IQ1_M, Encoding.IQ4_NL, Encoding.IQ4_XS,
]  # fmt: skip


def load(path: Path, dtype: torch.dtype = torch.float32, *, coded: bool = False) -> ModelWeights:
    header = read_gguf_header(path)
    return load_gguf(header, gguf_model_config(header), dtype, coded=coded)


def rounded(model: LlamaForCausalLM, encoding: Encoding) -> LlamaForCausalLM:
    """The model after its matrices have been through ``encoding``, which works along rows."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                stored = gguf.quantize(parameter.numpy(), encoding)
                parameter.copy_(torch.from_numpy(np.array(gguf.dequantize(stored, encoding))))
    return model


@pytest.mark.parametrize("shape", HEAD_SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_equals_the_one_that_was_written(
    tmp_path: Path, shape: tuple[int, int, int, int], *, tied: bool
) -> None:
    model = tiny_llama(**head_shape(shape), tie_word_embeddings=tied)

    weights = load(write_gguf(model, tmp_path / "model.gguf"))

    assert_same_weights(weights, model)
    assert (weights.head is weights.embedding) == tied


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding.F16,
        Encoding.BF16,
        Encoding.Q4_0,
        Encoding.Q4_1,
        Encoding.Q5_0,
        Encoding.Q5_1,
        Encoding.Q8_0,
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_encoding_is_undone_and_converted(tmp_path: Path, encoding: Encoding, dtype: torch.dtype) -> None:
    model = tiny_llama()

    weights = load(write_gguf(model, tmp_path / "model.gguf", encoding=encoding), dtype)

    assert_same_weights(weights, rounded(model, encoding), dtype)


@pytest.mark.parametrize("encoding", DEQUANTISED)
def test_every_encoding_that_can_be_dequantised_is_read(tmp_path: Path, encoding: Encoding) -> None:
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[encoding]
    # bytes below 64 keep every scale finite, whether it is stored in 8, 16 or 32 bits
    stored = np.random.default_rng(0).integers(0, 64, (160, 256 // block_elements * block_bytes), dtype=np.uint8)
    model = tiny_llama(hidden_size=256)

    weights = load(write_gguf(model, tmp_path / "model.gguf", extra={"token_embd.weight": (stored, encoding)}))

    assert torch.equal(weights.embedding, torch.from_numpy(np.array(gguf.dequantize(stored, encoding))))


CODED = [Encoding.Q4_0, Encoding.Q4_1, Encoding.Q5_0, Encoding.Q5_1, Encoding.Q8_0]


@pytest.mark.parametrize("encoding", CODED)
def test_codes_that_are_kept_stand_for_the_same_numbers(tmp_path: Path, encoding: Encoding) -> None:
    model = tiny_llama()

    weights = load(write_gguf(model, tmp_path / "model.gguf", encoding=encoding), torch.bfloat16, coded=True)

    assert_same_weights(weights, rounded(model, encoding), torch.bfloat16)
    for layer in weights.layers:
        for weight in (layer.qkv, layer.attention_out, layer.gate_up, layer.down):
            assert isinstance(weight, CodedWeight)
            assert weight.bits == (4 if encoding in (Encoding.Q4_0, Encoding.Q4_1) else 8)


@pytest.mark.parametrize(("encoding", "bits"), [(Encoding.Q8_0, 8), (Encoding.F16, None)])
def test_a_weight_of_several_encodings_has_codes_that_hold_all_or_none(
    tmp_path: Path, encoding: Encoding, bits: int | None
) -> None:
    model = tiny_llama()
    value = model.state_dict()["model.layers.0.self_attn.v_proj.weight"].numpy()
    extra = {"blk.0.attn_v.weight": (gguf.quantize(value, encoding), encoding)}
    path = write_gguf(model, tmp_path / "model.gguf", encoding=Encoding.Q4_1, extra=extra)

    mixed, whole = load(path, torch.bfloat16, coded=True).layers[:2]

    assert (mixed.qkv.bits if isinstance(mixed.qkv, CodedWeight) else None) == bits
    assert isinstance(whole.qkv, CodedWeight)
    assert whole.qkv.bits == 4
    assert torch.equal(dense(mixed.qkv), dense(load(path, torch.bfloat16).layers[0].qkv))


def test_bytes_of_codes_are_counted_as_they_are_packed(tmp_path: Path) -> None:
    path = write_gguf(tiny_llama(), tmp_path / "model.gguf", encoding=Encoding.Q4_1)

    coded, numbers = load(path, torch.bfloat16, coded=True), load(path, torch.bfloat16)

    in_layers = sum(
        weight.numel()
        for layer in coded.layers
        for weight in (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
    )
    assert coded.num_bytes(as_codes=False) == numbers.num_bytes(as_codes=False) == numbers.num_bytes(as_codes=True)
    # 32 codes in 16 bytes, a scale and an offset in two each
    assert coded.num_bytes(as_codes=False) - coded.num_bytes(as_codes=True) == 2 * in_layers - in_layers // 32 * 20


def test_a_matrix_longer_than_one_run_of_rows_is_complete(tmp_path: Path) -> None:
    model = tiny_llama(vocab_size=20_000)  # 1.28 million elements: two runs, the second one short

    assert_same_weights(load(write_gguf(model, tmp_path / "model.gguf")), model)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tiny_llama(), tmp_path / "model.gguf", without=frozenset({"blk.1.attn_k.weight"}))

    with pytest.raises(CheckpointError, match=r"lacks tensors that the model needs: blk\.1\.attn_k\.weight"):
        load(path)


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.2.attn_norm.weight"])
def test_a_tensor_without_a_use_is_named(tmp_path: Path, name: str) -> None:
    path = write_gguf(tiny_llama(), tmp_path / "model.gguf", extra={name: (np.zeros(8, np.float32), Encoding.F32)})

    with pytest.raises(CheckpointError, match=f"no use for: {name}"):
        load(path)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_down.weight": (np.zeros((96, 64), np.float32), Encoding.F32)}
    path = write_gguf(tiny_llama(), tmp_path / "model.gguf", extra=extra)

    with pytest.raises(CheckpointError, match=r"ffn_down.weight has shape \[96, 64\]; the config asks for \[64, 96\]"):
        load(path)


def test_an_encoding_that_cannot_be_undone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(tiny_llama(), path)
    raw = path.read_bytes()
    record = (1).to_bytes(4, "little") + (64).to_bytes(8, "little") + Encoding.F32.to_bytes(4, "little")
    at = raw.index(b"output_norm.weight") + len(b"output_norm.weight")
    assert raw[at : at + len(record)] == record
    path.write_bytes(raw[: at + 12] + Encoding.I32.to_bytes(4, "little") + raw[at + 16 :])

    with pytest.raises(CheckpointError, match=r"output_norm.weight has encoding I32, which cannot be dequantised"):
        load(path)


def test_weights_do_not_depend_on_the_file_once_loaded(tmp_path: Path) -> None:
    path = write_gguf(tiny_llama(), tmp_path / "model.gguf")
    weights = load(path)

    path.write_bytes(b"\0" * path.stat().st_size)

    assert_same_weights(weights, tiny_llama())
