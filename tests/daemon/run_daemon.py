"""`specd run` with another engine: `run_daemon.py CONFIG ENGINE_COMMAND…`; TRAINER, if it is set, trains heads."""

import os
import sys
from pathlib import Path

from specd.config.layers import load
from specd.daemon import serve

if __name__ == "__main__":
    config, *engine = sys.argv[1:]
    trainer = os.environ.get("TRAINER", "false").split(" ")
    sys.exit(serve(load(Path(config), env={}), engine_command=engine, train_command=trainer))
