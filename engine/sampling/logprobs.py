"""Logarithms of probabilities, for requests that ask for them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.api import SamplingParams, TokenLogprob
from engine.sampling.processors import COLDEST
from engine.transfer import send


def at_temperature(rows: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """[N, V] edited rows -> [N, V] float32 log-probabilities at each one's temperature, 1 for greedy; nothing cut."""
    temperature = send([p.temperature or 1.0 for p in params], rows.device)[:, None]
    wide = rows.float()
    # the maximum first: dividing it by a tiny temperature would overflow
    return ((wide - wide.amax(dim=-1, keepdim=True)) / temperature.clamp(min=COLDEST)).log_softmax(dim=-1)


def logprobs(laws: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """What each row says of a token, and which tokens it finds likeliest.

    laws: [N, V] log-probabilities; tokens: [N]; tops: [N], how many of the likeliest to name. Among equals the lower
    id comes first, in `top` and in `rank`. Tokens that cannot be drawn are not named.
    """
    chosen = send(tokens, laws.device)[:, None]  # [N, 1]
    own = laws.gather(1, chosen)  # [N, 1]
    ids = torch.arange(laws.shape[1], device=laws.device)
    before = (laws > own) | ((laws == own) & (ids < chosen))
    columns = zip(
        tokens, own[:, 0].tolist(), before.sum(dim=-1).tolist(), _likeliest(laws, tops), strict=True
    )
    return [TokenLogprob(token, logprob, ahead + 1, top) for token, logprob, ahead, top in columns]


def _likeliest(laws: Tensor, tops: Sequence[int]) -> list[list[tuple[int, float]]]:
    """The first `tops` tokens of each row [N, V], falling, and their log-probabilities."""
    most = min(max(tops), laws.shape[1])
    found: list[list[tuple[int, float]]] = [[] for _ in tops]
    if most == 0:
        return found
    last_named = laws.topk(most, dim=-1).values[:, -1:].clamp(min=torch.finfo(laws.dtype).min)
    rows, ids = (laws >= last_named).nonzero(as_tuple=True)
    values = laws[rows, ids].cpu().numpy()
    order = np.lexsort((ids.cpu().numpy(), -values, rows.cpu().numpy()))
    for row, token, value in zip(
        rows[order].tolist(), ids[order].tolist(), values[order].tolist(), strict=True
    ):
        if len(found[row]) < tops[row]:
            found[row].append((token, value))
    return found
