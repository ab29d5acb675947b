"""The fixed tree and the sharing of micro-batches, without torch."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from trainer_client.treesum import TreeSum, first_leaf, merged_nodes, most_held
from trainer_client.workshare import StepWork


def tree_of(num_leaves: int) -> TreeSum[str]:
    """Values are expressions, so that two sums are equal only if they were added in the same order."""
    return TreeSum(num_leaves, lambda left, right: f"({left}+{right})")


@given(st.integers(1, 40), st.integers(1, 8), st.integers())
def test_the_root_does_not_depend_on_who_adds_what_and_when(num_leaves: int, world: int, seed: int) -> None:
    order = list(range(num_leaves))
    expected = tree_of(num_leaves)
    for leaf in order:
        expected.put((0, leaf), str(leaf))
    draw = random.Random(seed)
    draw.shuffle(order)
    ranks = [tree_of(num_leaves) for _ in range(world)]
    for leaf in order:
        draw.choice(ranks).put((0, leaf), str(leaf))
    joined = tree_of(num_leaves)
    nodes = [(node, value) for rank in ranks for node, value in rank.held.items()]
    draw.shuffle(nodes)
    for node, value in nodes:
        joined.put(node, value)
    assert joined.root() == expected.root()
    assert sorted(int(text) for text in joined.root().replace("(", "").replace(")", "").split("+")) == sorted(order)


@given(st.integers(1, 64), st.integers(1, 8))
def test_a_rank_that_does_consecutive_leaves_holds_few_nodes(num_leaves: int, world: int) -> None:
    for share in StepWork.whole(num_leaves, world).remaining:
        before = [len(merged_nodes(num_leaves, [(0, leaf) for leaf in share[:at]])) for at in range(len(share))]
        assert max(before, default=0) == (most_held(share[0], share[-1] + 1) if share else 0)
        nodes = merged_nodes(num_leaves, [(0, leaf) for leaf in share])
        assert len(nodes) <= 2 * max(1, num_leaves.bit_length())
        assert [first_leaf(node) for node in nodes] == sorted(first_leaf(node) for node in nodes)


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(1, 8), st.integers(0, 9)), min_size=1, max_size=6))
def test_each_micro_batch_is_done_once_over_any_number_of_resizes(num_micro: int, path: list[tuple[int, int]]) -> None:
    done: list[int] = []
    work = StepWork.whole(num_micro, path[0][0])
    for world, rounds in path:
        work = work.for_world(world)
        assert len(work.remaining) == world
        done += [index for share in work.remaining for index in share[:rounds]]
        work = work.after(rounds)
        assert work.num_done == len(done)
    done += [index for share in work.remaining for index in share]
    assert sorted(done) == list(range(num_micro))


def test_the_same_world_keeps_its_shares() -> None:
    work = StepWork(9, ((1, 2), (5,), (7, 8)))
    assert work.for_world(3) is work
    assert work.for_world(2).remaining == ((1, 2, 5), (7, 8))


@given(st.integers(1, 40), st.integers(1, 8))
def test_micro_batches_that_are_dealt_out_lie_side_by_side_in_every_round(num_micro: int, world: int) -> None:
    work = StepWork.dealt(num_micro, world)
    done: list[int] = []
    for number in range(work.num_rounds):
        found = work.round(number)
        done += [found[rank] for rank in sorted(found)]
        assert sorted(done) == list(range(len(done)))
        assert work.after(number + 1).num_done == len(done)
    assert len(done) == num_micro
    assert StepWork.whole(num_micro, 3).for_world(world, dealt=True) == (
        work if world != 3 else StepWork.whole(num_micro, 3)
    )
