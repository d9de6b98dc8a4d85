"""Started by the daemon as `PYTHON …/engine/vllm --fd N`, where PYTHON is that of an environment with vLLM.

That environment need not have specd installed: what of it is needed is found from here, behind everything that is
installed there, so that vLLM has the packages that it was built for.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # processes that vLLM spawns import this file too, and are given our path
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    sys.path.append(sys.path.pop(0))
    from engine.vllm.worker import main

    main()
