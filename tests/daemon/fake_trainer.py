"""What `specd draft train` starts, without a model: writes a head as it was told, or makes trouble.

The first argument is a file with its manners in JSON, read at its start:
  exit      say something and end with this code
  write     bytes to write into the work before anything else
  linger    a file: its presence is noted, and nothing is done until it is gone
  told      a file in which the arguments are noted
"""

import json
import os
import sys
import time
from pathlib import Path

from tests.daemon.heads import write_head


def main() -> int:
    file, *given = sys.argv[1:]
    manners = json.loads(Path(file).read_text())
    told = dict(one.removeprefix("--").split("=", 1) for one in given)
    told["pid"] = os.getpid()
    prompts = [json.loads(line) for line in Path(told["prompts"]).read_text().splitlines()]
    out = Path(told["out"])
    (out / "work").mkdir(parents=True, exist_ok=True)
    starts = out / "work" / "starts"
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    told |= {"starts": len(starts.read_text()), "lines": prompts}
    if "told" in manners:
        note = Path(manners["told"])
        note.with_suffix(".new").write_text(json.dumps(told))
        note.with_suffix(".new").replace(note)
    (out / "work" / "much").write_bytes(b"x" * manners.get("write", 0))
    while "linger" in manners and Path(manners["linger"]).exists():
        time.sleep(0.01)
    if "exit" in manners:
        sys.stderr.write("reading shards\nthe loss is not a number\n")
        return manners["exit"]
    write_head(out, told["fingerprint"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
