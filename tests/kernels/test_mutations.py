from __future__ import annotations

import pytest

from tests.kernels.mutations import MUTATIONS, Mutation, is_noticed, runs_here


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_turns_a_test_red(mutation: Mutation) -> None:
    if not runs_here(mutation):
        pytest.skip("no AVX512-BF16 or no C compiler here")
    assert is_noticed(mutation)
