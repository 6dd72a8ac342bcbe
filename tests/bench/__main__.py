"""`make bench`, or `python -m tests.bench launch output --rounds 5`."""

from __future__ import annotations

import argparse

from tests.bench.scenarios import SCENARIOS
from tests.bench.table import render


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[[], *SCENARIOS], default=list(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=11, help="runs of each contender")
    options = parser.parse_args()
    for name in options.scenarios:
        for row in SCENARIOS[name](options.rounds):
            print(render(row), flush=True)


if __name__ == "__main__":
    main()
