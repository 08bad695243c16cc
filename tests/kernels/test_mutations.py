from __future__ import annotations

import pytest

from tests.kernels.mutations import MUTATIONS, Mutation, is_noticed


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_turns_a_test_red(mutation: Mutation) -> None:
    assert is_noticed(mutation)
