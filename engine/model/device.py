"""Where the model runs."""

import torch


def unavailable_reason(device: str) -> str | None:
    """Why torch cannot compute there, or None."""
    if device != "cuda" or torch.cuda.is_available():
        return None
    if torch.version.cuda is None:
        return (
            f'engine.device is "cuda", but torch {torch.__version__} was built without CUDA: '
            'install a CUDA build of the same version, or set engine.device = "cpu"'
        )
    return (
        'engine.device is "cuda", but torch finds no GPU here: see that nvidia-smi lists one and that '
        'CUDA_VISIBLE_DEVICES does not hide it, or set engine.device = "cpu"'
    )
