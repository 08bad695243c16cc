"""How large the workloads are, and the SHA-256 of the token ids that come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

SizeName: TypeAlias = Literal["full", "quick", "tiny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the workloads are; every length in tokens."""

    rerank_rows: int = 100
    documents: int = 8
    document_tokens: int = 1000
    questions: int = 16
    long_document_tokens: int = 4000
    long_questions: int = 64
    latency_document_tokens: int = 2000
    latency_questions: int = 100
    unshared_rows: int = 100
    unshared_tokens: int = 300
    corpus: int = 2000
    corpus_tokens: int = 300
    accesses: int = 3000
    mix_requests: int = 60
    sweep: tuple[int, ...] = (250, 500, 1000, 2000, 4000, 8000)
    sweep_questions: int = 16


SIZES: Final[dict[SizeName, Size]] = {
    "full": Size(),
    "quick": Size(
        rerank_rows=20,
        documents=2,
        document_tokens=500,
        questions=8,
        long_document_tokens=1000,
        long_questions=16,
        latency_document_tokens=500,
        latency_questions=20,
        unshared_rows=16,
        corpus=200,
        accesses=300,
        mix_requests=12,
        sweep=(250, 500, 1000),
        sweep_questions=8,
    ),
    "tiny": Size(
        rerank_rows=3,
        documents=2,
        document_tokens=40,
        questions=2,
        long_document_tokens=60,
        long_questions=2,
        latency_document_tokens=40,
        latency_questions=3,
        unshared_rows=3,
        unshared_tokens=30,
        corpus=60,
        corpus_tokens=30,
        accesses=60,
        mix_requests=4,
        sweep=(40, 80),
        sweep_questions=2,
    ),
}

HASHES: Final[dict[SizeName, dict[str, str]]] = {
    "full": {
        "W1": "be8537ce4a11f340cec259fb7e558863834c983d2bfe896c8fdd62163e75a983",
        "W2": "9081b35c79574491fe5c3fb5d6d7d6a29df4f913a5ec4353d86639b8a6f6f361",
        "W3": "2137e5f561c885bf56942ce73ef00cfd9a1810b8e2b7fbe3e65679b565410b65",
        "W4": "a97a5c990edd51665a05726cc6afb8fca8f7e5598e395488a418b116397648dd",
        "W5": "f692733036e7ecb7c4723e6e9c3ff477038640b9c11b7416c3607c1b9f74fafb",
        "W6": "faee721f4d7db3b7625af0fee9d72df5f797915c2f155a9602cfbdda71c048bd",
        "W7": "8940109fe9ff84bc6f96dbdb76c0ce00598d58b4509f04ce522a2404e98ed3de",
        "SWEEP": "379718a8febff505034dca5b05f6490b58f932187a4fc7bb3afdd688ba01f82f",
    },
    "quick": {
        "W1": "cee5bb46cfe87b374b6f5b9a0bc2ef810172be166671ecd727d89ea583b6976b",
        "W2": "3ac6e4cb3b9afa06fa4291a9bad433ed4e1a7fece7624ca390b79867f8901cc0",
        "W3": "ae0776c7543c876331c57b7704e8cc809ed40a6c623ed64d03021a9f9aadb24c",
        "W4": "559fdc7a6d7c9de50e0e82817d60a577029e57778a01b503ef9ff35c2867b783",
        "W5": "3864eb4aa4422f7114a8b11e9273487c70685b991cdce7cac69e1de85e6a1c87",
        "W6": "c4360e2c2ea21ed41c231f17c73e6774c31a9554c2357e01cd79485a993d1c6b",
        "W7": "3fc34500f6d203f534706175925979ba1c51b19a318712745bd7484819685d09",
        "SWEEP": "5eec3380fbebeed10fecbac1612ecf5a9e743f3b50d033bc2900dfc137414be9",
    },
    "tiny": {
        "W1": "3d7fffe8e75c51e48f6db1ea5a2235cca177aec5c781c39eedc00621571da9d0",
        "W2": "71e32fa9b2d000e4b94865ba00da04ffa28b1bf46760f912d728305ee9e4ea97",
        "W3": "1ea7e7865cea46380843b1744865d7e406ac4cfcfc31e44815b97820c9b3770b",
        "W4": "e7e8861f947a1f1c73fc028563ca9890b61375a832c2a562f4ae1e796c4d436d",
        "W5": "16ca3fb0a78446aab3e0c58e7b55487754aca1e64a3231e3f59190c0f7f5ffec",
        "W6": "b8eeb06a7616af77adeba774ad4c6a7a63b8b8731ba09e8f6414c06f55eb45ab",
        "W7": "acb7332352d2ade9560eb6b57357806683edc7c054bc5074476e46ff20900322",
        "SWEEP": "6a5754e3d529227f2d71989f0d93379a5f2c64ef491e25e9fe8c3f8360db03c9",
    },
}
