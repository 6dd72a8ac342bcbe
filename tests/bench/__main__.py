"""`make bench`, or `python -m tests.bench launch output --rounds 5`."""

from __future__ import annotations

import argparse

from tests.bench import scenarios
from tests.bench.session import inspector, session
from tests.bench.table import render
from tests.bench.train import training

SCENARIOS = {
    **scenarios.SCENARIOS,
    "session": session,
    "inspector": inspector,
    "training": training,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"some of {', '.join(SCENARIOS)}")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each contender")
    options = parser.parse_args()
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(SCENARIOS)}")
    for name in options.scenarios or SCENARIOS:
        for row in SCENARIOS[name](options.rounds):
            print(render(row), flush=True)


if __name__ == "__main__":
    main()
