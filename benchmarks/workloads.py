"""Workloads as token ids: generated from one seed, held against a recorded hash.

A workload is a list of phases, a phase a list of groups: rows that share a prefix. Every
repeat of a measurement runs a :func:`variant` of the workload, in which each word is replaced
by another one. No cache has seen its text, and what the rows share is unchanged.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from benchmarks.sizes import HASHES, SIZES, Size, SizeName
from benchmarks.vocabulary import Vocabulary

SEED: Final = "radix-scorer/1"
PhaseKind: TypeAlias = Literal["fill", "together", "one_by_one", "open_loop"]


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
