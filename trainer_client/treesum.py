"""A sum over one fixed binary tree, so that its rounding does not depend on who adds what and when.

Node (level, place) covers the leaves place << level up to (place + 1) << level. Two halves are added as soon as both are
held, left + right; a half whose sibling would lie beyond the last leaf stands for the whole. Any set of nodes that tiles the
leaves gives the same root, bit by bit.

The idea of adding the gradients of logical micro-batches in an order that is independent of the hardware is EasyScale's
(Li et al.: "EasyScale: accuracy-consistent elastic training for deep learning", SC 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Node = tuple[int, int]
T = TypeVar("T")


class TreeSum(Generic[T]):
    """The nodes held of one sum; `held` maps each to its value. `add(left, right)` may change and return its arguments."""

    def __init__(self, num_leaves: int, add: Callable[[T, T], T]) -> None:
        self._num_leaves, self._add = num_leaves, add
        self._top = max(0, num_leaves - 1).bit_length()
        self.held: dict[Node, T] = {}

    def put(self, node: Node, value: T) -> None:
        """Take in the value of a node and merge upwards as far as it goes."""
        level, place = node
        while level < self._top:
            if place % 2 == 0 and (place + 1) << level >= self._num_leaves:
                pass  # there is nothing to the right
            elif (level, place ^ 1) in self.held:
                other = self.held.pop((level, place ^ 1))
                value = self._add(value, other) if place % 2 == 0 else self._add(other, value)
            else:
                break
            level, place = level + 1, place // 2
        self.held[level, place] = value

    def root(self) -> T:
        """The sum of all leaves; every one must have been put in."""
        assert list(self.held) == [(self._top, 0)], f"nodes {sorted(self.held)} do not cover {self._num_leaves} leaves"
        return self.held[self._top, 0]


def merged_nodes(num_leaves: int, nodes: Iterable[Node]) -> list[Node]:
    """Which nodes are held after `nodes` were put in, in the order of their leaves."""
    tree: TreeSum[None] = TreeSum(num_leaves, lambda left, right: None)
    for node in nodes:
        tree.put(node, None)
    return sorted(tree.held, key=first_leaf)


def first_leaf(node: Node) -> int:
    """The first leaf under a node."""
    return node[1] << node[0]


def most_held(start: int, stop: int) -> int:
    """The most nodes that are held before any of the leaves from `start` up to `stop` comes, if these come in their order."""
    most = whole = 0  # subtrees that are complete, each larger than the one before
    while start < stop:
        size = min(start & -start, stop - start) if start else stop - start
        most, start = max(most, whole + size.bit_length() - 1), start + size
        whole += 1
    return most
