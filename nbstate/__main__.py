"""`python -m nbstate doctor`: what a launch here would do, and why."""

from __future__ import annotations

import argparse
import sys

from nbstate.checkup import doctor


def main() -> int:
    """Print the doctor's report; 1 where it found a problem."""
    parser = argparse.ArgumentParser(prog="python -m nbstate")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="say what a launch here would do, and why")
    parser.parse_args()
    found = doctor()
    print(found)  # noqa: T201 - what it is for
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
