"""`specd run` with another engine: `run_daemon.py CONFIG ENGINE_COMMAND…`."""

import sys
from pathlib import Path

from specd.config.layers import load
from specd.daemon import serve

if __name__ == "__main__":
    config, *engine = sys.argv[1:]
    sys.exit(serve(load(Path(config), env={}), engine_command=engine))
