"""What an engine says that it serves.

`created` is left out of it: both vLLM and llama.cpp write the time of the question there.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from specd.config.observe import ObservedKind
from specd.observe.errors import ObserveError
from specd.observe.peer import Peer

_LISTED: Final = ("id", "root", "parent", "max_model_len")
_META: Final = ("n_params", "size", "n_vocab", "n_embd", "ftype")
_PAGES: Final[Mapping[ObservedKind, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "vllm": ("/version", (), ("version",)),
    "llamacpp": ("/props", ("model_path", "model_ftype", "chat_template"), ("build_info",)),
    "sglang": ("/get_model_info", ("model_path", "tokenizer_path", "weight_version"), ()),
    "tgi": ("/info", ("model_id", "model_sha", "model_dtype"), ("version", "sha")),
}
"""By kind: a page of its own, what of it is the target's, and what is the program's."""
_LONG: Final = 60


class Identity(msgspec.Struct, frozen=True):
    """By name, as text. Two targets may say the same of themselves."""

    model: str
    """What to call it in a request."""
    target: dict[str, str]
    program: dict[str, str] = {}
    """Another one of it serves the same target."""

    @property
    def revision(self) -> str:
        """Short, for labels."""
        digest = hashlib.sha256(repr(sorted(self.target.items())).encode()).hexdigest()[:8]
        return f"{self.model.rstrip('/').rpartition('/')[2][:40]}-{digest}"

    def differences(self, other: "Identity") -> list[str]:
        """Clauses: in what the other target is another."""
        names = sorted(self.target.keys() | other.target.keys())
        return [
            f"{name} was {self.target.get(name, 'not told')}, is {other.target.get(name, 'not told')}"
            for name in names
            if self.target.get(name) != other.target.get(name)
        ]


async def identify(peer: Peer, kind: ObservedKind, model: str) -> Identity:
    """Ask it. model: of those that it lists, empty for the first. Raises `ObserveError`."""
    listed = _one_of(await peer.look("/v1/models"), model)
    target, program = dict(_texts(listed, _LISTED)), dict(_texts(listed, ("owned_by",)))
    meta = listed.get("meta")
    if isinstance(meta, dict):
        target |= dict(_texts(meta, _META))
    if kind in _PAGES:
        path, of_target, of_program = _PAGES[kind]
        page = await peer.look(path) or {}
        target |= dict(_texts(page, of_target))
        program |= dict(_texts(page, of_program))
    return Identity(str(listed["id"]), target, program)


def _one_of(page: Mapping[str, Any] | None, model: str) -> Mapping[str, Any]:
    data = None if page is None else page.get("data")
    models = [one for one in data if isinstance(one, dict) and "id" in one] if isinstance(data, list) else []
    if not models:
        raise ObserveError("it lists no models at /v1/models")
    if not model:
        return models[0]
    found = next((one for one in models if one["id"] == model), None)
    if found is None:
        names = ", ".join(str(one["id"]) for one in models[:5])
        raise ObserveError(f"it does not serve {model}: at /v1/models are {names}")
    return found


def _texts(page: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What is long, as a chat template is, by its fingerprint."""
    for name in names:
        value = page.get(name)
        if value is not None and not isinstance(value, dict | list):
            text = str(value)
            yield name, text if len(text) <= _LONG else hashlib.sha256(text.encode()).hexdigest()[:12]
