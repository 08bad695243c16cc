"""Workloads as token ids: generated from one seed, held against a recorded hash.

A workload is a list of phases, a phase a list of groups: rows that share a prefix. Every
repeat of a measurement runs a :func:`variant` of the workload, in which each word is replaced
by another one. No cache has seen its text, and what the rows share is unchanged.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from benchmarks.vocabulary import Vocabulary

SEED: Final = "radix-scorer/1"
PhaseKind: TypeAlias = Literal["fill", "together", "one_by_one", "open_loop"]
SizeName: TypeAlias = Literal["full", "quick", "tiny"]


class Group(msgspec.Struct, frozen=True):
    """Rows with one prefix: ``head + body`` followed by one of ``tails``.

    The head is also shared between groups. Prefixes are worth keeping, tails are not.
    """

    head: tuple[int, ...]
    body: tuple[int, ...]
    tails: tuple[tuple[int, ...], ...]

    @property
    def prefix(self) -> tuple[int, ...]:
        return self.head + self.body

    @property
    def prompt_tokens(self) -> int:
        return len(self.tails) * (len(self.head) + len(self.body)) + sum(map(len, self.tails))


class Phase(msgspec.Struct, frozen=True):
    """One timed part of a workload.

    Args:
        kind: ``fill`` is not timed and only puts prefixes into caches; ``together`` sends all
            groups at once; ``one_by_one`` waits for each row before the next; ``open_loop``
            sends each group when its time has come, whatever is still under way.
        gaps: Open loop: time before each group, in units of the mean time between two.
    """

    name: str
    kind: PhaseKind
    groups: tuple[Group, ...]
    gaps: tuple[float, ...] = ()

    @property
    def num_rows(self) -> int:
        return sum(len(group.tails) for group in self.groups)

    @property
    def prompt_tokens(self) -> int:
        return sum(group.prompt_tokens for group in self.groups)


class Workload(msgspec.Struct, frozen=True):
    name: str
    title: str
    phases: tuple[Phase, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self.phases)).hexdigest()


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

TITLES: Final = {
    "W1": "query first: one prefix of 160, 100 documents of 120 tokens (90 to 150)",
    "W2": "document first: 8 documents of 1,000, 16 questions of 24 each",
    "W3": "one document of 4,000, 64 questions of 24",
    "W4": "latency of one question of 24 on a cached document of 2,000",
    "W5": "nothing shared: 100 rows of 300",
    "W6": "2,000 documents of 300, requests by Zipf's law, pool at 10 % and 30 % of them",
    "W7": "open loop: reranking and document questions mixed, Poisson arrivals at 30, 60 and 90 % of capacity",
    "SWEEP": "16 questions of 24 on cached documents of 250 to 8,000",
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

_HEAD = 60
_RERANK_HEAD = 160
_RERANK_ROW = 120
_QUESTION = 24
_MIX_TAILS = 4


class WorkloadError(Exception):
    """A workload did not come out as it was recorded."""


def build_workload(name: str, size: SizeName, vocabulary: Vocabulary) -> Workload:
    """The workload called ``name``, the same ids on every machine.

    Raises:
        WorkloadError: the ids differ from those that were recorded.
    """
    writer = _Writer(vocabulary, name, SIZES[size])
    phases = {
        "W1": writer.rerank,
        "W2": writer.documents,
        "W3": writer.long_document,
        "W4": writer.latency,
        "W5": writer.unshared,
        "W6": writer.corpus,
        "W7": writer.mix,
        "SWEEP": writer.sweep,
    }[name]()
    workload = Workload(name, TITLES[name], phases)
    wanted = HASHES[size][name]
    if workload.sha256 != wanted:
        raise WorkloadError(f"{name} ({size}) has SHA-256 {workload.sha256}; {wanted} was recorded")
    return workload


def variant(workload: Workload, number: int, vocabulary: Vocabulary) -> Workload:
    """``workload`` in other words; ``number`` from 0 (the workload itself) to the number of words less one."""
    turned = vocabulary.turned(number)

    def turn(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(turned.get(token, token) for token in tokens)

    phases = []
    for phase in workload.phases:
        bodies = {group.body: turn(group.body) for group in phase.groups}
        groups = tuple(
            Group(turn(group.head), bodies[group.body], tuple(map(turn, group.tails))) for group in phase.groups
        )
        phases.append(msgspec.structs.replace(phase, groups=groups))
    return msgspec.structs.replace(workload, phases=tuple(phases))


def trimmed(phase: Phase, most_tokens: int) -> Phase:
    """The first rows of ``phase``, as many as it takes to reach ``most_tokens``."""
    groups, left = [], most_tokens
    for group in phase.groups:
        tails = []
        for tail in group.tails:
            if left > 0:
                tails.append(tail)
                left -= len(group.prefix) + len(tail)
        if tails:
            groups.append(msgspec.structs.replace(group, tails=tuple(tails)))
    return msgspec.structs.replace(phase, groups=tuple(groups))


def warm_up_phase(vocabulary: Vocabulary, number: int) -> Phase:
    """A few rows that bring a system back to speed after a pause; ``number`` makes them new."""
    writer = _Writer(vocabulary, f"warm-up/{number}", SIZES["quick"])
    tails = tuple(writer.question(_RERANK_ROW) for _ in range(4))
    return Phase("warm-up", "fill", (Group(writer.head(_HEAD), (), tails),))


class _Writer:
    """Writes the phases of one workload."""

    def __init__(self, vocabulary: Vocabulary, name: str, size: Size) -> None:
        self._vocabulary = vocabulary
        self._random = random.Random(f"{SEED}/{name}")
        self._size = size

    def words(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.choices(self._vocabulary.ids, k=count))

    def head(self, count: int) -> tuple[int, ...]:
        opening, closing = self._vocabulary.system_open, self._vocabulary.system_to_user
        return opening + self.words(count - len(opening) - len(closing)) + closing

    def question(self, count: int) -> tuple[int, ...]:
        """Words, then the tokens after which the model answers; ``count`` in all."""
        return self.words(count - len(self._vocabulary.close)) + self._vocabulary.close

    def questions(self, count: int) -> tuple[tuple[int, ...], ...]:
        return tuple(self.question(_QUESTION) for _ in range(count))

    def rerank(self) -> tuple[Phase, ...]:
        count = self._size.rerank_rows
        # lengths spread evenly over 90 to 150, then moved so that the mean is exact
        lengths = [_RERANK_ROW - 30 + place * 61 // count for place in range(count)]
        for place in range(count * _RERANK_ROW - sum(lengths)):
            lengths[place % count] += 1
        self._random.shuffle(lengths)
        tails = tuple(map(self.question, lengths))
        return (Phase("cold", "together", (Group(self.head(_RERANK_HEAD), (), tails),)),)

    def documents(self) -> tuple[Phase, ...]:
        return self._cold_and_warm(self._size.documents, self._size.document_tokens, self._size.questions)

    def long_document(self) -> tuple[Phase, ...]:
        return self._cold_and_warm(1, self._size.long_document_tokens, self._size.long_questions)

    def _cold_and_warm(self, documents: int, tokens: int, questions: int) -> tuple[Phase, ...]:
        head, bodies = self.head(_HEAD), [self.words(tokens) for _ in range(documents)]
        return tuple(
            Phase(name, "together", tuple(Group(head, body, self.questions(questions)) for body in bodies))
            for name in ("cold", "warm")
        )

    def latency(self) -> tuple[Phase, ...]:
        head, body = self.head(_HEAD), self.words(self._size.latency_document_tokens)
        return (
            Phase("fill", "fill", (Group(head, body, self.questions(1)),)),
            Phase("warm", "one_by_one", (Group(head, body, self.questions(self._size.latency_questions)),)),
        )

    def unshared(self) -> tuple[Phase, ...]:
        count, length = self._size.unshared_rows, self._size.unshared_tokens
        first = self._random.sample(self._vocabulary.ids, count)
        tails = tuple((word, *self.question(length - 1)) for word in first)
        return (Phase("cold", "together", (Group((), (), tails),)),)

    def corpus(self) -> tuple[Phase, ...]:
        size = self._size
        head, bodies = self.head(_HEAD), [self.words(size.corpus_tokens) for _ in range(size.corpus)]
        asked = self._random.choices(bodies, weights=[1 / rank for rank in range(1, size.corpus + 1)], k=size.accesses)
        return (Phase("requests", "one_by_one", tuple(Group(head, body, self.questions(1)) for body in asked)),)

    def mix(self) -> tuple[Phase, ...]:
        size = self._size
        head, bodies = self.head(_HEAD), [self.words(size.document_tokens) for _ in range(size.documents)]
        # first words that differ, so that it makes no difference which requests run at one time
        first = iter(self._random.sample(self._vocabulary.ids, size.mix_requests * _MIX_TAILS))
        groups = []
        for _ in range(size.mix_requests):
            if self._random.random() < 0.5:
                tails = tuple(self.question(_RERANK_ROW) for _ in range(_MIX_TAILS))
                groups.append(Group(self.head(_RERANK_HEAD), (), tails))
            else:
                tails = tuple((next(first), *self.question(_QUESTION - 1)) for _ in range(_MIX_TAILS))
                groups.append(Group(head, self._random.choice(bodies), tails))
        gaps = tuple(self._random.expovariate(1.0) for _ in groups)
        return (
            Phase("fill", "fill", tuple(Group(head, body, self.questions(1)) for body in bodies)),
            Phase("mix", "open_loop", tuple(groups), gaps),
        )

    def sweep(self) -> tuple[Phase, ...]:
        head, phases = self.head(_HEAD), []
        for tokens in self._size.sweep:
            body = self.words(tokens)
            phases.append(Phase(f"fill {tokens}", "fill", (Group(head, body, self.questions(1)),)))
            phases.append(
                Phase(f"{tokens}", "together", (Group(head, body, self.questions(self._size.sweep_questions)),))
            )
        return tuple(phases)
