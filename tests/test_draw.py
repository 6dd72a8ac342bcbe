"""Teaching pictures say in text what they draw."""

from __future__ import annotations

import base64
import doctest
import re
import xml.etree.ElementTree as ET

import pytest

from nbstate import draw


def test_the_examples_hold():
    found = doctest.testmod(draw, extraglobs={"draw": draw})
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    "picture",
    [
        draw.split(7, 3),
        draw.split(["a<b", "c&d"], 3, padding=True),
        draw.split(0, 2),
        draw.accumulation(3, 7),
        *(draw.collective(name, 3) for name in draw._COLLECTIVES),
    ],
    ids=lambda picture: picture.text.splitlines()[0],
)
def test_pictures_are_sound_svg(picture):
    bundle = picture._repr_mimebundle_()
    encoded = re.search('base64,([^"]*)', bundle["text/html"])[1]
    root = ET.fromstring(base64.b64decode(encoded))
    assert root.tag.endswith("svg")
    assert bundle["text/plain"] == repr(picture)


def test_a_scatter_and_an_all_to_all_undo_what_their_opposites_do():
    assert draw.collective("all_to_all", 2).text.splitlines()[1:] == [
        "rank 0  A0 A1   A0 B0",
        "rank 1  B0 B1   A1 B1",
    ]
    assert draw.collective("reduce_scatter", 2).text.splitlines()[2].endswith("A1+B1")


def test_wrong_names_are_told():
    with pytest.raises(ValueError, match="'allreduce': choose one of 'broadcast'"):
        draw.collective("allreduce")
    with pytest.raises(ValueError, match="num_processes=9: from 1 to 8 can be drawn"):
        draw.collective("gather", 9)
    with pytest.raises(ValueError, match="steps=0"):
        draw.accumulation(0)
