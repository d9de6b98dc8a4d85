"""Without a GPU, Triton's kernels are run by its interpreter. It asks for that when it is first imported."""

import os
import shutil

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"
