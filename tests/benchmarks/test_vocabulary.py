from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.check_prompts import check_prompts
from benchmarks.vocabulary import VocabularyError, load_vocabulary
from scorer.tokens.tokenizer_files import load_tokenizer

VOCABULARY = load_vocabulary()


@pytest.mark.model
def test_every_word_is_one_token_of_the_default_model_wherever_it_stands(default_model_path: Path) -> None:
    tokenizer = load_tokenizer(default_model_path).tokenizer
    VOCABULARY.check(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)

    backwards = VOCABULARY.ids[::-1]
    assert tokenizer.encode(" " + VOCABULARY.text(backwards), add_special_tokens=False).ids == list(backwards)


@pytest.mark.model
def test_chat_tokens_and_labels_are_those_of_the_default_model(default_model_path: Path) -> None:
    tokenizer = load_tokenizer(default_model_path).tokenizer
    texts = [
        "<|im_start|>system\n",
        "<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
        "Yes",
        "No",
    ]
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]

    assert ids[:3] == [VOCABULARY.system_open, VOCABULARY.system_to_user, VOCABULARY.close]
    assert ids[3:] == [(VOCABULARY.labels[0],), (VOCABULARY.labels[1],)]


def test_another_tokenizer_is_refused_by_its_first_word_that_differs() -> None:
    ids = list(VOCABULARY.ids)
    ids[3] += 1
    word = list(VOCABULARY.words)[3]

    with pytest.raises(VocabularyError, match=f"' {word}' is token {ids[3]} here"):
        VOCABULARY.check(lambda _: ids)


def test_tokenizer_that_splits_a_word_is_refused() -> None:
    with pytest.raises(VocabularyError, match="512 words gave 513 tokens"):
        VOCABULARY.check(lambda _: [*VOCABULARY.ids, 7])


def test_turning_moves_every_word_and_no_chat_token() -> None:
    turned = VOCABULARY.turned(5)

    assert sorted(turned) == sorted(turned.values()) == sorted(VOCABULARY.ids)
    assert all(token != other for token, other in turned.items())
    assert not set(turned) & {*VOCABULARY.system_open, *VOCABULARY.system_to_user, *VOCABULARY.close}


def test_text_of_a_question_is_its_words_alone() -> None:
    first, second = VOCABULARY.ids[:2]
    words = list(VOCABULARY.words)

    assert VOCABULARY.text((first, second, *VOCABULARY.close)) == f"{words[0]} {words[1]}"


def test_there_are_twenty_check_prompts_and_no_two_are_alike() -> None:
    prompts = check_prompts(lambda text: [ord(letter) for letter in text])

    assert len(set(prompts)) == 20
    assert all("".join(map(chr, prompt)).endswith("<|im_start|>assistant\n") for prompt in prompts)
