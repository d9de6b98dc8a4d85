"""`python -m engine.train`: what `specd draft train` starts, since it needs torch."""

import argparse
import sys
from collections.abc import Sequence

from engine.processor import quick_format
from engine.train import kinds
from engine.train.errors import TrainError
from engine.train.job import Job

REFUSED = 2
INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Train. Returns the exit code: 2 for what the user must change, 130 when interrupted."""
    job = _job(arguments)
    try:
        kinds.load(job.kind).train(job)
    except TrainError as fault:
        print(fault, file=sys.stderr)  # noqa: T201  the answer of a command
        return REFUSED
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on where it was ({job.work})", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    print(f"written: {job.out}", file=sys.stderr)  # noqa: T201
    return 0


def _job(arguments: Sequence[str]) -> Job:
    parser = argparse.ArgumentParser(description="trains a draft; started by specd draft train")
    for name in ("kind", "target", "name", "prompts", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--tokens", type=int, default=500_000)
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--disk", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    for name in ("cache", "fingerprint"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--dtype", default=quick_format())
    return Job(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
