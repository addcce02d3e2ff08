import pytest
from hypothesis import given
from hypothesis import strategies as st

from trl_agent.processes import minibatch_shares, owned, permutation


def test_blocks_are_contiguous_and_complete():
    blocks = [list(owned(10, rank, 3)) for rank in range(3)]
    assert blocks == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert [len(owned(1, rank, 2)) for rank in range(2)] == [0, 1]


def test_permutations_by_key():
    assert permutation(20, 1, 2, 3) == permutation(20, 1, 2, 3)
    assert permutation(20, 1, 2, 3) != permutation(20, 1, 2, 4)
    assert sorted(permutation(20, 0)) == list(range(20))
    assert permutation(0, 1) == []


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 5))
def test_minibatches_do_not_depend_on_the_processes(counts, num):
    (alone,) = [minibatch_shares([sum(counts)], 0, num, 7)]
    together: list[list[int]] = [[] for _ in range(num)]
    for rank in range(len(counts)):
        first = sum(counts[:rank])
        for chunk, mine in zip(together, minibatch_shares(counts, rank, num, 7), strict=True):
            chunk.extend(first + i for i in mine)
    assert [sorted(chunk) for chunk in together] == [sorted(chunk) for chunk in alone]
    sizes = [len(chunk) for chunk in alone]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == sum(counts)


def test_errors_of_the_main_process_are_raised():
    from accelerate import Accelerator

    from trl_agent.processes import gather_rows, global_sums, on_main

    accelerator = Accelerator(cpu=True)
    assert on_main(accelerator, lambda: 3, ValueError) == 3
    with pytest.raises(ZeroDivisionError):
        on_main(accelerator, lambda: 1 / 0, ZeroDivisionError)
    assert gather_rows(accelerator, [1, 2.5]) == [[1.0, 2.5]]
    assert global_sums(accelerator, [1, 2.5]) == [1.0, 2.5]
