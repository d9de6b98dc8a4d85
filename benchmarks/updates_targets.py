"""The demo target, changed in the ways in which targets are changed, and a head that knows nothing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from specd.bench.prompts import texts
from specd.models import manifest

_STEPS: Final = 120
_TOKENS: Final = 256
_RATE: Final = 1e-4
_TEMPLATE: Final = (
    "{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)


def copied(target: Path, into: Path) -> Path:
    """The same files; only the manifest, which says that they were fetched, is left behind."""
    shutil.copytree(target, into, dirs_exist_ok=True)
    (into / manifest.NAME).unlink(missing_ok=True)
    return into


def resaved(target: Path, into: Path) -> Path:
    """The same weights, written in another order: another fingerprint, and the same text."""
    copied(target, into)
    tensors = load_file(target / "model.safetensors")
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt", "made": "again"})
    return into


def retemplated(target: Path, into: Path) -> Path:
    """The same weights under another chat template."""
    copied(target, into)
    (into / "chat_template.jinja").write_text(_TEMPLATE)
    return into


def fine_tuned(target: Path, into: Path, *, steps: int = _STEPS) -> Path:
    """Trained for some minutes, all its weights, on requests for programs, at a rate as small models are tuned with."""
    torch.manual_seed(0)
    copied(target, into)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=_RATE)
    for tokens in _lessons(target, steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.to(torch.bfloat16).save_pretrained(into / "trained")
    shutil.move(into / "trained" / "model.safetensors", into / "model.safetensors")
    shutil.rmtree(into / "trained")
    return into


def random_head(head: Path, into: Path) -> Path:
    """A head of the same sizes whose weights are noise of the same spread."""
    shutil.copytree(head, into, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    tensors = load_file(head / "model.safetensors")
    noise = {name: _noise(tensor, generator) for name, tensor in tensors.items()}
    save_file(noise, into / "model.safetensors", metadata={"format": "pt"})
    _forget_record(into)
    return into


def _noise(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return tensor  # what maps its vocabulary to the target's, and norms, are no guesses
    spread = float(tensor.float().std())
    return (torch.randn(tensor.shape, generator=generator) * spread).to(tensor.dtype)


def _forget_record(head: Path) -> None:
    """It is no longer the head that was trained."""
    record = head / "record.json"
    if record.exists():
        known: dict[str, Any] = json.loads(record.read_text())
        record.write_text(json.dumps({"target_fingerprint": known.get("target_fingerprint")}))


def _lessons(target: Path, steps: int) -> Iterator[torch.Tensor]:
    """[1, T] tokens of one text after the other."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    lessons = [
        tokenizer(text, return_tensors="pt", truncation=True, max_length=_TOKENS).input_ids
        for text in texts("code")
    ]
    for step in range(steps):
        yield lessons[step % len(lessons)]
