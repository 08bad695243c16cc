from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.model_config import LayerAttention, ModelConfig
from engine.rotary import Rotary
from scorer.commands.plan import command
from scorer.plan import MemoryPlan, format_bytes, parse_bytes, plan_memory
from tests.helpers.llama_files import tiny_llama, write_gguf

CONFIG = ModelConfig(
    architecture="llama",
    layers=(LayerAttention(rotary=Rotary(theta=1e4)),) * 2,
    hidden_size=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    intermediate_size=16,
    vocab_size=10,
    max_positions=64,
    rms_norm_eps=1e-5,
    query_scale=0.5,
    tie_word_embeddings=True,
)
# by hand: a layer holds q 16×8, k and v 8×8, o 8×16, gate, up and down 16×8, two norms of 8: 784
PARAMETERS = 2 * 784 + 10 * 8 + 8
BLOCK_BYTES = 4 * 2 * (2 * 2 * 2 * 4)  # 4 tokens of 2 bytes × K and V × 2 layers × 2 heads × 4


def plan(memory_bytes: int, *, document_tokens: int = 10, prefix_tokens: int = 0) -> MemoryPlan:
    return plan_memory(
        CONFIG,
        memory_bytes=memory_bytes,
        element_bytes=2,
        token_bytes=BLOCK_BYTES // 4,
        block_size=4,
        document_tokens=document_tokens,
        prefix_tokens=prefix_tokens,
    )


@pytest.mark.parametrize(
    ("spare_bytes", "num_blocks"), [(0, 0), (BLOCK_BYTES - 1, 0), (BLOCK_BYTES, 1), (100 * BLOCK_BYTES + 1, 100)]
)
def test_blocks_are_what_fits_beside_the_weights(spare_bytes: int, num_blocks: int) -> None:
    result = plan(2 * PARAMETERS + spare_bytes)

    assert (result.weight_bytes, result.block_bytes) == (2 * PARAMETERS, BLOCK_BYTES)
    assert (result.num_blocks, result.num_tokens) == (num_blocks, 4 * num_blocks)


@pytest.mark.parametrize(
    ("document_tokens", "prefix_tokens", "num_documents"),
    [
        (10, 0, 33),  # 3 blocks each of 100
        (12, 0, 33),
        (13, 0, 25),
        (1, 0, 100),
        (10, 1, 33),  # 99 blocks are left
        (10, 8, 32),
        (10, 400, 0),
        (10, 4000, 0),
        (401, 0, 0),
    ],
)
def test_documents_are_whole_blocks_beside_one_prefix(
    document_tokens: int, prefix_tokens: int, num_documents: int
) -> None:
    memory_bytes = 2 * PARAMETERS + 100 * BLOCK_BYTES

    result = plan(memory_bytes, document_tokens=document_tokens, prefix_tokens=prefix_tokens)

    assert result.num_documents == num_documents


def test_weights_that_do_not_fit_are_an_error_with_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"the weights take 3\.2 KiB; only 3 KiB are given"):
        plan(3 * 1024)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("512B", 512),
        ("8GiB", 8 * 2**30),
        ("8 GiB", 8 * 2**30),
        ("8gb", 8 * 2**30),
        ("8G", 8 * 2**30),
        ("1.5 MiB", 3 * 2**19),
        ("64k", 65_536),
        ("2TiB", 2**41),
    ],
)
def test_a_size_is_read_in_binary_units(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "8 bits", "8PiB", "1e9", "inf", "0", "0.1", "8GiB8", "٣GiB", 19 * "9"]
)
def test_a_text_that_is_no_size_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is looked for below
        parse_bytes(text)

    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (360 * 1024, "360 KiB"),
        (2**20 - 1, "1,024 KiB"),
        (2**33, "8 GiB"),
        (2**50, "1,024 TiB"),
    ],
)
def test_a_size_is_written_in_the_greatest_unit_it_fills(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tiny_llama(), tmp_path / "Tiny.gguf")


def test_the_command_prints_the_arithmetic_with_its_numbers(model: Path) -> None:
    result = CliRunner().invoke(
        command, [str(model), "--memory", "1MiB", "--document-tokens", "100", "--prefix-tokens", "40"]
    )

    # 2 × 2 × 2 × 16 × 2 = 256 bytes a token; 82,240 parameters; (2**20 - 164,480) / 4096 = 215.8 blocks
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "model          Tiny, llama, bfloat16",
        "weights        82,240 parameters × 2 bytes = 160.6 KiB",
        "KV per token   2 × 2 layers × 2 KV heads × 16 head size × 2 bytes = 256 bytes",
        "KV per block   16 tokens × 256 bytes = 4 KiB",
        "memory         1 MiB = weights 160.6 KiB + KV 860 KiB + rest; activations and the process come on top",
        "KV that fits   215 blocks = 3,440 tokens",
        "documents      30 of 100 tokens (7 blocks each)",
        "               beside one prefix of 40 tokens (3 blocks)",
    ]


def test_the_command_needs_no_memory_to_print_what_a_token_takes(model: Path) -> None:
    result = CliRunner().invoke(command, [str(model), "--dtype", "float32", "--block-size", "8"])

    assert result.exit_code == 0
    assert "16 head size × 4 bytes = 512 bytes" in result.stdout
    assert "8 tokens × 512 bytes = 4 KiB" in result.stdout
    assert "documents" not in result.stdout


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8"])
def test_the_command_counts_codes_and_scales(model: Path, kv_dtype: str) -> None:
    result = CliRunner().invoke(command, [str(model), "--kv-dtype", kv_dtype])

    assert result.exit_code == 0
    assert "82,240 parameters × 2 bytes" in result.stdout
    assert "2 × 2 layers × 2 KV heads × (16 head size × 1 bytes + 4 bytes of scale) = 160 bytes" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{model}", "--memory", "10KiB"], "the weights take 160.6 KiB; only 10 KiB are given"),
        (["{model}", "--memory", "much"], "'much' is no size"),
        (["{model}.absent"], "there is no model"),
        (["{folder}"], "holds neither model.safetensors"),
    ],
)
def test_the_command_reports_failure_without_a_traceback(model: Path, arguments: list[str], said: str) -> None:
    empty = model.parent / "empty"
    empty.mkdir()

    result = CliRunner().invoke(command, [each.format(model=model, folder=empty) for each in arguments])

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr


@pytest.mark.model
def test_a_token_of_the_default_model_takes_what_its_cache_takes(default_model_path: Path) -> None:
    result = CliRunner().invoke(command, [str(default_model_path)])

    assert "2 × 30 layers × 3 KV heads × 64 head size × 2 bytes = 23,040 bytes" in result.stdout
    assert "134,515,008 parameters" in result.stdout
