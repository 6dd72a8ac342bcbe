"""Datasets of the datasets library, indexed and streamed."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from nbstate import Accelerator, debug_launcher

datasets = pytest.importorskip("datasets")


def make():
    return datasets.Dataset.from_dict(
        {"number": list(range(9)), "text": [f"sample {each}" for each in range(9)]}
    ).with_format("torch")


@pytest.mark.parametrize("streamed", [False, True])
def test_every_row_is_seen_once_with_its_text(streamed):
    dataset = make().to_iterable_dataset() if streamed else make()

    def read():
        accelerator = Accelerator()
        numbers, texts = [], []
        for batch in accelerator.prepare(DataLoader(dataset, 2)):
            numbers += accelerator.gather_for_metrics(batch["number"]).tolist()
            texts += accelerator.gather_for_metrics(batch["text"])
        return numbers, texts

    expected = list(range(9)), [f"sample {each}" for each in range(9)]
    assert list(debug_launcher(read)) == [expected, expected]
