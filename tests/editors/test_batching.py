"""A sample that a pipeline cannot take costs that sample only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nein.editors.base import EditRequest, EditResult, edit_in_batches


@pytest.mark.parametrize("error", [RuntimeError, ValueError, TypeError, ZeroDivisionError, IndexError])
def test_a_sample_that_fails_inside_the_pipeline_has_an_error_and_the_rest_succeed(
    error: type[Exception],
) -> None:
    picture = np.zeros((4, 4, 3), np.uint8)

    def edit(items: list[EditRequest]) -> list[EditResult]:
        if any(item.id == "b" for item in items):
            raise error("no such shape")
        return [EditResult(item.id, item.image) for item in items]

    results = edit_in_batches(
        [EditRequest(name, picture, "Remove it.", 0) for name in "abc"],
        lambda request: ("all", request), edit, batch_size=2, device=torch.device("cpu"),
    )  # fmt: skip
    assert [result.id for result in results] == ["a", "b", "c"]
    assert [result.image is None for result in results] == [False, True, False]
    assert results[1].error == f"{error.__name__}: no such shape"
