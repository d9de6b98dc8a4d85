"""What is measured against what: transformers' own `generate`, and the engine in this process."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.api import DraftSettings, Launch, Request, SamplingParams, StepReport
from engine.processor import quick_format
from engine.start import start
from policies.settings import PolicySettings

Prompts = Sequence[list[int]]


class Generate:
    """transformers' `generate`, batched by left padding, greedy, end-of-sequence ignored."""

    def __init__(self, path: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, quick_format())).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._tokenizer.padding_side = "left"

    def seconds(self, prompts: Prompts, tokens: int) -> float:
        """Time to generate `tokens` for every prompt, in one batch."""
        batch = self._tokenizer.pad({"input_ids": list(prompts)}, return_tensors="pt")
        begin = time.perf_counter()
        with torch.inference_mode():
            self._model.generate(**batch, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        return time.perf_counter() - begin


class Ours:
    """The engine without the daemon around it, as `generate` is without a server."""

    def __init__(
        self, path: Path, cache: Path | None, *, draft: DraftSettings | None = None, **settings: Any
    ) -> None:
        """draft: prompt lookup alone unless given. settings: of Launch."""
        self._draft = DraftSettings() if draft is None else draft
        launch = Launch(
            model_path=str(path),
            dtype=quick_format(),
            cache_dir=str(cache) if cache else "",
            draft=self._draft,
            **settings,
        )
        self.engine = start(launch, lambda _: None)
        self._serial = 0

    def plain(self) -> None:
        """No speculation from here on."""
        self._configure(PolicySettings(kind="off"))

    def adaptive(self) -> None:
        """The policy that a daemon has by default."""
        self._configure(PolicySettings())

    def seconds(self, prompts: Prompts, tokens: int) -> float:
        """Time to generate `tokens` for every prompt, all at once."""
        begin = time.perf_counter()
        self.reports(prompts, tokens)
        return time.perf_counter() - begin

    def reports(
        self, prompts: Prompts, tokens: int, *, temperature: float = 0.0, ignore_eos: bool = True
    ) -> list[StepReport]:
        """The same, step by step."""
        for prompt in prompts:
            self._serial += 1
            sampling = SamplingParams(
                max_tokens=tokens, temperature=temperature, ignore_eos=ignore_eos, seed=self._serial
            )
            self.engine.submit(Request(id=str(self._serial), prompt=prompt, sampling=sampling))
        reports = []
        while self.engine.has_work:
            reports.append(self.engine.step())
        self.engine.check_integrity()
        return reports

    def texts(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """What it says to each prompt, all at once."""
        first = self._serial + 1
        said: dict[str, list[int]] = {str(first + i): [] for i in range(len(prompts))}
        for report in self.reports(prompts, tokens):
            for output in report.outputs:
                said[output.id] += output.tokens
        return list(said.values())

    def _configure(self, policy: PolicySettings) -> None:
        self.engine.configure(policy, self._draft)


def encode(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """User messages as token ids, in the model's chat template."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)[
            "input_ids"
        ]
        for text in texts
    ]
