"""A training as it was asked for, and where its files are.

OUT/
  config.json, model.safetensors, record.json     the result
  work/prompts.jsonl                              made once, at the first start
  work/answers-R.jsonl                            what the target said, by worker
  work/shards-KIND/                               features
  work/checkpoint-KIND.pt
"""

from pathlib import Path
from typing import Literal

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The same job started again goes on where it was."""

    kind: str
    target: str
    """A local Hugging Face directory."""
    name: str
    """Of the target, as others know it: written into what they may read."""
    fingerprint: str = ""
    """Of the target, for the record: a head drafts for no other."""
    prompts: str
    """A file of JSON lines, or "builtin"."""
    out: str
    tokens: int = 500_000
    """Of answers."""
    minutes: float = 45.0
    """Of the training itself; what comes before is bound by `tokens`."""
    disk: float = 8.0
    """GB that the work may take."""
    seed: int = 0
    workers: int = 2
    """Processes of one thread each."""
    cache: str = ""
    """Where native kernels are compiled to; empty does without them."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"

    @property
    def work(self) -> Path:
        """What a resumed training finds."""
        return Path(self.out) / "work"

    @property
    def prompts_file(self) -> Path:
        """The prompts as they were when the job began."""
        return self.work / "prompts.jsonl"

    def answers(self, rank: int) -> Path:
        """What one worker has written."""
        return self.work / f"answers-{rank}.jsonl"

    @property
    def all_answers(self) -> list[Path]:
        """What there is, of workers of earlier starts too."""
        return sorted(self.work.glob("answers-*.jsonl"))

    @property
    def shards(self) -> Path:
        """Features of this kind."""
        return self.work / f"shards-{self.kind}"

    @property
    def checkpoint(self) -> Path:
        """Of the training."""
        return self.work / f"checkpoint-{self.kind}.pt"
