"""Builds cpu.cpp once for this processor and calls it through ctypes.

The library shares torch's OpenMP threads: both link libgomp, and the loader keeps one copy of it. Another thread pool
beside torch's would spin against it and make both many times slower.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engine.kernels.structures import Decoder, EagleDrafts, EagleHead, EagleStep, Spans, SqueezedLinear, Step
from engine.processor import features

_SOURCE: Final = Path(__file__).with_name("cpu.cpp")
_HEADERS: Final = (
    "common.h",
    "attention.h",
    "attention_tiles.h",
    "attention_long.h",
    "squeezed.h",
    "decoder.h",
    "eagle.h",
)
_FLAGS: Final = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-mprefer-vector-width=512",
    "-fopenmp",
    "-shared",
    "-fPIC",
    # What lets sums vectorise, and no more: infinities and NaN keep their meaning, they are how faults are noticed.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-freciprocal-math",
)
_SUFFIX: Final = {torch.float32: "f32", torch.bfloat16: "bf16"}
_BUILD_SECONDS: Final = 120
_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES: Final = {
    "add_rms_norm": [_P, _P, _P, _P, _I, _I, _F],
    "silu_mul": [_P, _P, _I, _I],
    "rotate": [_P, _I, _P, _P, _I, _I, _I],
    "write_kv": [_P, _P, _I, _P, _P, _P, _I, _I],
    "single_row": [_P, _P, _P, _P, _I, _I],
    "paged_attention": [_P, _I, _P, _P, _P, _P, _I, _I, _I, _I, _F, _I],
}


class NativeError(Exception):
    """The library cannot be had here; the message says why. Everything works without it, slower."""


def build(cache: Path) -> Path:
    """Compile into the cache directory, or find what was compiled before. Raises NativeError."""
    compiler = shutil.which("g++")  # clang would bring an OpenMP of its own
    if compiler is None:
        raise NativeError("there is no C++ compiler: install g++ for a faster CPU engine")
    library = cache / f"specd-cpu-{_fingerprint(compiler)}.so"
    if library.exists():
        return library
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            fresh = Path(scratch) / library.name
            _compile(compiler, fresh)
            fresh.replace(library)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise NativeError(f"cannot compile into {cache}: {fault}") from None
    return library


def _compile(compiler: str, target: Path) -> None:
    command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(target)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": _BUILD_SECONDS}
    done = subprocess.run(command, check=False, **options)  # noqa: S603  our own command line
    if done.returncode != 0:
        raise NativeError(f"{compiler} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


def _fingerprint(compiler: str) -> str:
    """Source, flags, compiler and processor: a library of another machine must not be taken for this one's."""
    digest = hashlib.sha256()
    for file in (_SOURCE, *map(_SOURCE.with_name, _HEADERS)):
        digest.update(file.read_bytes())
    digest.update(" ".join([*_FLAGS, compiler, str(Path(compiler).stat().st_mtime_ns), features()]).encode())
    return digest.hexdigest()[:16]


class NativeOps:
    """The library's functions for one dtype. See engine.kernels.reference.LayerOps."""

    def __init__(self, library: Path, dtype: torch.dtype) -> None:
        if dtype not in _SUFFIX:
            raise NativeError(f"the native kernels know float32 and bfloat16, not {dtype}")
        try:
            loaded = ctypes.CDLL(os.fspath(library))
        except OSError as fault:
            raise NativeError(f"{library} cannot be loaded: {fault}") from None
        self._functions: dict[str, Callable[..., None]] = {
            name: _function(loaded, f"{name}_{_SUFFIX[dtype]}", types) for name, types in _SIGNATURES.items()
        }
        self._library = loaded
        loaded.count_exponents.argtypes = [_P, _I, _P]
        loaded.squeeze.argtypes = [_P, _I, _I, _P, _P, _P, _P, _P]
        loaded.squeezed_supported.restype = _I
        self.squeezes = dtype == torch.bfloat16 and bool(loaded.squeezed_supported())
        """Whether this processor has the kernels of squeezed.h."""
        if self.squeezes:
            self._forward = _function(loaded, "forward", [_P, _P])
            self._eagle_step = _function(loaded, "eagle_step", [_P, _P])
            self._eagle_drafts = _function(loaded, "eagle_drafts", [_P, _P, _P])
            self._squeezed_linear = _function(loaded, "squeezed_linear", [_P, _P, _I, _P])

    def squeezed_linear(self, linear: SqueezedLinear, x: Tensor, rows: int) -> Tensor:
        """x: [rows up to a multiple of 16, in] bf16 -> [rows, out]. Only where `squeezes`."""
        out = x.new_empty(rows, linear.outputs)
        self._squeezed_linear(ctypes.byref(linear), x.data_ptr(), rows, out.data_ptr())
        return out

    def forward(self, decoder: Decoder, step: Step) -> None:
        """A whole forward; see decoder.h. Only where `squeezes`."""
        self._forward(ctypes.byref(decoder), ctypes.byref(step))

    def eagle_step(self, head: EagleHead, step: EagleStep) -> None:
        """One level of an EAGLE-3 head; see eagle.h. Only where `squeezes`."""
        self._eagle_step(ctypes.byref(head), ctypes.byref(step))

    def eagle_drafts(self, head: EagleHead, first: EagleStep, drafts: EagleDrafts) -> None:
        """Whole drafts, written to where `drafts` points; see eagle.h. Only where `squeezes`."""
        self._eagle_drafts(ctypes.byref(head), ctypes.byref(first), ctypes.byref(drafts))

    def count_exponents(self, weight: Tensor) -> Tensor:
        """How often each of bf16's exponents occurs: [256] int64."""
        counts = torch.zeros(256, dtype=torch.int64)
        self._library.count_exponents(weight.data_ptr(), weight.numel(), counts.data_ptr())
        return counts

    def squeeze(
        self, weight: Tensor, names: Tensor, data: Tensor, exceptions: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Fill `data` with weight [out, in]; names: [256] uint8. Returns the exceptions: see squeezed.h."""
        outputs, inputs = weight.shape
        first = torch.zeros(-(-outputs // 32) + 1, dtype=torch.int64)
        place, value = torch.zeros(exceptions, 2, dtype=torch.int32), torch.zeros(exceptions)
        self._library.squeeze(
            weight.data_ptr(), outputs, inputs, names.data_ptr(), data.data_ptr(), first.data_ptr(),
            place.data_ptr(), value.data_ptr(),
        )  # fmt: skip
        return first, place, value

    def add_rms_norm(self, hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """See LayerOps. hidden and delta must be contiguous."""
        out = torch.empty_like(hidden)
        added = None if delta is None else delta.data_ptr()
        rows, size = hidden.shape
        self._functions["add_rms_norm"](
            hidden.data_ptr(), added, weight.data_ptr(), out.data_ptr(), rows, size, eps
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See LayerOps. gate_up must be contiguous."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        self._functions["silu_mul"](gate_up.data_ptr(), out.data_ptr(), rows, size)
        return out

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """See LayerOps. In place; heads must lie one after another."""
        rows, heads, dim = x.shape
        self._functions["rotate"](
            x.data_ptr(), x.stride(0), cosine.data_ptr(), sine.data_ptr(), rows, heads, dim
        )
        return x

    def single_row(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Linear of one row. x: [..., in] with in elements in all; weight: [out, in]; bias: [out] -> [..., out]."""
        size_out, size_in = weight.shape
        out = x.new_empty(*x.shape[:-1], size_out)
        added = None if bias is None else bias.data_ptr()
        self._functions["single_row"](
            x.data_ptr(), weight.data_ptr(), added, out.data_ptr(), size_in, size_out
        )
        return out

    def write_kv(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store rows. key, value: [T, kv_heads, dim] of equal row stride; keys, values: the pool's; slots: [T]."""
        size = key.shape[1] * key.shape[2]
        self._functions["write_kv"](
            key.data_ptr(), value.data_ptr(), key.stride(0), keys.data_ptr(), values.data_ptr(),
            slots.data_ptr(), key.shape[0], size,
        )  # fmt: skip

    def paged_attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        *,
        spans: "NativeSpans",
        scaling: float,
        window: int,
    ) -> None:
        """Fill the rows of `spans` in out. query: [T, heads, dim], rows may be strided; out: [T, heads, dim]."""
        self._functions["paged_attention"](
            query.data_ptr(), query.stride(0), keys.data_ptr(), values.data_ptr(), out.data_ptr(),
            ctypes.byref(spans.structure), query.shape[1], keys.shape[1], query.shape[2], spans.block_size,
            scaling, window,
        )  # fmt: skip


class NativeSpans:
    """Spans as the library takes them: int64 columns."""

    def __init__(
        self,
        tables: list[list[int]],
        first_row: list[int],
        rows: list[int],
        end: list[int],
        *,
        block_size: int,
        positions: Tensor,
        sights: Tensor | None,
        begin: int = 0,
    ) -> None:
        """begin: the first place that holds a key. positions, sights: by packed row, [T] int64; for sights see
        engine.attention.native.
        """
        longest = max(map(len, tables))
        self.tables = torch.tensor([table + [0] * (longest - len(table)) for table in tables])  # [B, N]
        self.first_row = torch.tensor(first_row)
        self.rows = torch.tensor(rows)
        self.end = torch.tensor(end)
        self.positions = positions
        self.sights = sights
        self.block_size = block_size
        self.begin = begin
        self.longest = max(end)

    @property
    def structure(self) -> Spans:
        """As the library takes them; points into this object."""
        return Spans(
            self.tables.data_ptr(), self.tables.shape[1], self.first_row.data_ptr(), self.rows.data_ptr(),
            self.end.data_ptr(), self.positions.data_ptr(), None if self.sights is None else self.sights.data_ptr(),
            len(self.rows), self.begin, None,
        )  # fmt: skip


def _function(library: Any, name: str, types: list[Any]) -> Callable[..., None]:
    function = getattr(library, name)
    function.argtypes = types
    function.restype = None
    return function  # type: ignore[no-any-return]
