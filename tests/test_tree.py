"""The token tree: shared prefixes are laid out once, and every reply token knows who predicts it."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_rl.errors import InvalidValue
from openclaw_rl.losses.tree import PackedTree, TokenPath, distinct, pack


def path(tokens: str | list[int], reply: int) -> TokenPath:
    return TokenPath(tokens=tuple(ord(c) if isinstance(c, str) else c for c in tokens), reply=reply)


def only(paths: list[TokenPath]) -> PackedTree:
    (packed,) = pack(paths)
    return packed


def test_two_sequences_share_their_beginning_and_part_ways() -> None:
    # the last token of each path predicts nothing, so 'x' and 'y' are never computed
    packed = only([path("ABCDx", 2), path("ABEFy", 2)])
    assert bytes(packed.tokens.tolist()) == b"ABCDEF"
    assert packed.depth.tolist() == [0, 1, 2, 3, 2, 3]
    assert packed.end.tolist() == [6, 6, 4, 4, 6, 6]
    rows = dict(zip(packed.members, packed.rows, strict=True))
    assert rows[0].tolist() == [2, 3]  # C predicts D, D predicts x
    assert rows[1].tolist() == [4, 5]


def test_a_turn_that_extends_another_adds_only_its_own_tokens() -> None:
    packed = only([path("ABCDEFG", 2), path("ABC", 1)])
    assert bytes(packed.tokens.tolist()) == b"ABCDEF"
    assert packed.end.tolist() == [6] * 6
    rows = dict(zip(packed.members, packed.rows, strict=True))
    assert rows[1].tolist() == [1]
    assert rows[0].tolist() == [4, 5]


def test_the_same_sequence_twice_is_computed_once() -> None:
    packed = only([path("ABC", 1), path("ABC", 2)])
    assert packed.size == 2
    rows = dict(zip(packed.members, packed.rows, strict=True))
    assert rows[0].tolist() == [1]
    assert rows[1].tolist() == [0, 1]


def test_unrelated_sequences_become_separate_trees_that_do_not_see_each_other() -> None:
    packed = only([path("ABC", 1), path("XYZ", 1)])
    assert packed.roots() == [0, 2]
    assert packed.attention_mask().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_without_sharing_each_path_is_a_tree_of_its_own() -> None:
    (packed,) = pack([path("ABCx", 1), path("ABDy", 1)], share=False)
    assert packed.size == 6
    assert len(packed.roots()) == 2


def test_a_budget_cuts_the_batch_and_a_longer_path_stands_alone() -> None:
    paths = [path("ABCDx", 1), path("ABEFy", 1), path("Q" * 9 + "z", 1)]
    trees = pack(paths, budget=6)
    assert [packed.size for packed in trees] == [6, 9]
    assert [packed.size for packed in pack(paths, budget=5)] == [4, 4, 9]
    assert sorted(m for packed in trees for m in packed.members) == [0, 1, 2]


@pytest.mark.parametrize("share", [True, False])
def test_no_paths_are_no_forest(share: bool) -> None:
    assert pack([], share=share) == ()
    assert distinct([]) == 0


def test_a_path_without_a_prompt_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one must precede the reply"):
        TokenPath(tokens=(1, 2), reply=2)


sequences = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=12), min_size=1, max_size=10)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(sequences, st.sampled_from([None, 5, 20]), st.booleans())
def test_every_path_reads_back_from_the_forest_as_it_went_in(
    tokens: list[list[int]], budget: int | None, share: bool
) -> None:
    paths = [TokenPath(tokens=tuple(ids), reply=len(ids) - 1) for ids in tokens]
    trees = pack(paths, budget=budget, share=share)
    assert sorted(m for packed in trees for m in packed.members) == list(range(len(paths)))
    for packed in trees:
        sees = packed.attention_mask()
        for member, rows in zip(packed.members, packed.rows, strict=True):
            # with the whole of a path as its reply, its rows are the path itself
            assert tuple(packed.tokens[rows].tolist()) == paths[member].tokens[:-1]
            assert packed.depth[rows].tolist() == list(range(len(rows)))
            for row, at in enumerate(rows.tolist()):
                assert torch.nonzero(sees[at])[:, 0].tolist() == rows[: row + 1].tolist()
    if share and budget is None:
        prefixes = {path.tokens[:n] for path in paths for n in range(1, len(path.tokens))}
        assert distinct(paths) == len(prefixes)


def test_building_grows_with_the_tokens_and_not_with_their_square() -> None:
    def seconds(turns: int) -> float:
        paths = [TokenPath(tokens=tuple(range(400 * (t + 1))), reply=100) for t in range(turns)]
        best = 9.0
        for _ in range(3):
            begin = time.thread_time()
            pack(paths)
            best = min(best, time.thread_time() - begin)
        return best / sum(len(p.tokens) for p in paths)

    # eight times the turns are 53 times the tokens; the cost of each token must stay about the same
    assert seconds(32) < 4 * seconds(4)
