"""Hugging Face transformers, with and without a shared prefix."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.messages import Start, Started
from benchmarks.systems.contract import Answer
from benchmarks.systems.futures import done
from benchmarks.workloads import Group
from engine.checkpoint_files import GgufFiles, find_checkpoint_files

_BATCH = 4
_Layers = list[tuple[Tensor, Tensor]]


class _Transformers:
    """A model of the library, in bfloat16, with its fused attention."""

    is_remote = False

    def __init__(self, start: Start, labels: tuple[int, int]) -> None:
        torch.set_num_threads(start.threads)
        torch.set_grad_enabled(False)
        self._labels = list(labels)
        self._batch = int(start.options.get("batch", _BATCH))
        self._threads = start.threads
        self._model = load_model(Path(start.model), torch.bfloat16)
        self._computed = 0

    def started(self) -> Started:
        return Started(
            version=f"transformers {transformers.__version__}, torch {torch.__version__}",
            settings=f"bfloat16, attention sdpa, batch {self._batch}, threads {self._threads}",
            facts={},
        )

    def computed_tokens(self) -> int:
        return self._computed

    def exact_scores(self, prompts: tuple[tuple[int, ...], ...]) -> tuple[float, ...]:
        """Each prompt alone, the same weights widened to float32."""
        # a copy: casting the model itself back would round its rotary frequencies too
        wide = copy.deepcopy(self._model).float()
        return tuple(
            self._log_odds(wide.model(input_ids=torch.tensor([prompt])).last_hidden_state[:, -1])[0]
            for prompt in prompts
        )

    def close(self) -> None: ...

    def _log_odds(self, hidden: Tensor) -> list[float]:
        rows = self._model.lm_head.weight[self._labels].float()
        first, second = (hidden.float() @ rows.T).unbind(-1)
        odds: list[float] = (first - second).tolist()
        return odds

    def _padded_scores(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        """Whole prompts, padded on the left, so that the last place is a prompt's end."""
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        self._computed += ids.numel()
        even = bool(mask.all())  # without padding no mask is needed and attention has a faster way
        hidden = self._model.model(
            input_ids=ids,
            attention_mask=None if even else mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            use_cache=False,
        ).last_hidden_state
        return self._log_odds(hidden[:, -1])

    def _by_length(self, tails: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Places of ``tails`` in batches, lengths that are alike together."""
        order = sorted(range(len(tails)), key=lambda place: len(tails[place]))
        for first in range(0, len(order), self._batch):
            yield order[first : first + self._batch]


class PaddedBatches(_Transformers):
    """Every prompt whole, in padded batches; nothing is reused."""

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        del namespace
        prompts = [group.prefix + tail for tail in group.tails]
        scores = [0.0] * len(prompts)
        for places in self._by_length(prompts):
            for place, score in zip(places, self._padded_scores([prompts[place] for place in places]), strict=True):
                scores[place] = score
        return done(Answer(log_odds=tuple(scores)))

    def forget(self) -> None:
        """Nothing is remembered."""


class SharedPrefix(_Transformers):
    """Keys and values of a prefix computed once, then expanded over batches of tails."""

    def __init__(self, start: Start, labels: tuple[int, int]) -> None:
        super().__init__(start, labels)
        self._prefixes: dict[tuple[int, ...], _Layers] = {}

    def submit(self, group: Group, namespace: str) -> Future[Answer]:
        del namespace
        scores = [0.0] * len(group.tails)
        for places in self._by_length(group.tails):
            tails = [group.tails[place] for place in places]
            found = self._tail_scores(group, tails) if group.prefix else self._padded_scores(tails)
            for place, score in zip(places, found, strict=True):
                scores[place] = score
        return done(Answer(log_odds=tuple(scores)))

    def forget(self) -> None:
        self._prefixes.clear()

    def _prefix(self, group: Group) -> _Layers:
        if group.prefix not in self._prefixes:
            if group.head not in self._prefixes:
                self._prefixes[group.head] = self._extend([], group.head)
            if group.body:
                self._prefixes[group.prefix] = self._extend(self._prefixes[group.head], group.body, len(group.head))
        return self._prefixes[group.prefix]

    def _extend(self, before: _Layers, tokens: Sequence[int], position: int = 0) -> _Layers:
        cache = _cache(before, 1)
        self._computed += len(tokens)
        self._model.model(
            input_ids=torch.tensor([tokens]),
            cache=cache,
            use_cache=True,
            position_ids=torch.arange(position, position + len(tokens))[None],
        )
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _tail_scores(self, group: Group, tails: Sequence[Sequence[int]]) -> list[float]:
        """Tails padded on the right; nothing looks at what stands behind the end of a tail."""
        prefix, longest = len(group.prefix), max(map(len, tails))
        ids = torch.zeros(len(tails), longest, dtype=torch.long)
        mask = torch.ones(len(tails), prefix + longest, dtype=torch.long)
        for row, tail in enumerate(tails):
            ids[row, : len(tail)] = torch.tensor(tail)
            mask[row, prefix + len(tail) :] = 0
        cache = _cache(self._prefix(group), len(tails))
        self._computed += ids.numel()
        hidden = self._model.model(
            input_ids=ids,
            attention_mask=None if bool(mask.all()) else mask,
            cache=cache,
            use_cache=True,
            position_ids=torch.arange(prefix, prefix + longest)[None].expand(len(tails), -1),
        ).last_hidden_state
        ends = torch.tensor([len(tail) - 1 for tail in tails])
        return self._log_odds(hidden[torch.arange(len(tails)), ends])


def load_model(path: Path, dtype: torch.dtype) -> Any:
    """The library's model of a folder or a GGUF file, dequantised, ready to score."""
    files = find_checkpoint_files(path)
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa"}
    folder = path
    if isinstance(files, GgufFiles):
        folder = files.gguf.parent
        options["gguf_file"] = files.gguf.name
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # from_pretrained leaves the model in evaluation mode
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def _cache(layers: _Layers, rows: int) -> Any:
    cache = transformers.DynamicCache()
    for index, (keys, values) in enumerate(layers):
        cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), index)
    return cache
