"""Logprobs of prompts, for requests that ask for them: read off the rows of their prefill chunks as these come."""

from torch import Tensor

from engine.batch import RaggedBatch
from engine.sampling.logprobs import logprobs
from engine.scheduler import Schedule
from engine.sequence import Sequence

_AT_ONCE = 32  # rows: the log-probabilities of a whole chunk would be one more copy of all its logits


def judge_prompts(schedule: Schedule, batch: RaggedBatch, logits: Tensor) -> Tensor:
    """Extend the sequences' `prompt_logprobs`, and return the rows that tokens are drawn from.

    logits: [R, V], the wanted rows of the batch: of a chunk whose prompt is judged, all of them.
    """
    if not any(chunk.sequence.unjudged for chunk in schedule.chunks):
        return logits
    decodes = len(schedule.decodes)
    end = sum(span.logits for span in batch.spans[:decodes])
    drawn = list(range(end))
    for span, (sequence, rows) in zip(batch.spans[decodes:], schedule.chunks, strict=True):
        start, end = end, end + span.logits
        if rows == sequence.uncomputed:
            drawn.append(end - 1)
        if sequence.unjudged:
            _judge(sequence, span.start, logits[start:end])
    return logits[drawn]


def _judge(sequence: Sequence, position: int, rows: Tensor) -> None:
    """rows: [N, V] of consecutive positions; each row judges the token that comes after it."""
    found, sampling = sequence.prompt_logprobs, sequence.sampling
    assert found is not None, "only prompts that are asked about are judged"
    rows = rows[len(found) - position - 1 :]  # a prompt that is computed again is not judged again
    tokens = sequence.request.prompt[len(found) : len(found) + len(rows)]
    for at in range(0, len(tokens), _AT_ONCE):
        part = tokens[at : at + _AT_ONCE]
        laws = rows[at : at + len(part)].float().log_softmax(dim=-1)
        found += logprobs(laws, part, [sampling.prompt_logprobs or 0] * len(part))
