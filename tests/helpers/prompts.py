"""Prompts of real text: from the evaluation data beside the repository where it is, else from here."""

from __future__ import annotations

import json
from pathlib import Path

_DATA = Path(__file__).parents[2].parent / "shared/data"

_PASSAGES = [
    "Photosynthesis turns light, water and carbon dioxide into sugar. The pigments of a leaf reflect green light.",
    "The Danube rises in the Black Forest and flows through ten countries before it reaches the Black Sea.",
    "In 1847 Ignaz Semmelweis had doctors in Vienna wash their hands; deaths from childbed fever fell tenfold.",
    "def area(width: float, height: float) -> float:\n    return width * height\n",
    "Ein Prozeß, der nie endet: „Übung macht den Meister“, sagte sie – und zählte 12.345 Äpfel.",
]
_QUESTIONS = [
    "Which light do leaves reflect?",
    "Through how many countries does the river flow?",
    "Who asked doctors to wash their hands?",
    "What does the function return?",
]


def real_prompts(count: int) -> list[str]:
    """Distinct prompts of a passage and a question each; every passage comes more than once."""
    passages, questions = _PASSAGES, _QUESTIONS
    if (_DATA / "scifact/docs.jsonl").is_file():
        passages = [text[:250] for text in _texts(_DATA / "scifact/docs.jsonl", count)]
        questions = _texts(_DATA / "scifact/queries.jsonl", count)
    pairs = [(passage, question) for question in questions for passage in passages[: max(5, count // 4)]]
    return [f"{passage}\n\nQuestion: {question}\nAnswer:" for passage, question in pairs[:count]]


def _texts(path: Path, count: int) -> list[str]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line, _ in zip(lines, range(count), strict=False)]
