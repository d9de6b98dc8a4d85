"""The C structures of engine/kernels/*.h, field by field."""

import ctypes
from typing import ClassVar

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class SqueezedLinear(ctypes.Structure):
    """See squeezed.h."""

    _fields_: ClassVar = [
        ("data", _P),
        ("exponents", _P),
        ("first", _P),
        ("place", _P),
        ("value", _P),
        ("bias", _P),
        ("inputs", _I),
        ("outputs", _I),
        ("strips", _I),
    ]


class DecoderLayer(ctypes.Structure):
    """See decoder.h."""

    _fields_: ClassVar = [
        ("norm_in", _P),
        ("norm_mid", _P),
        ("qkv", SqueezedLinear),
        ("out", SqueezedLinear),
        ("gate_up", SqueezedLinear),
        ("down", SqueezedLinear),
        ("keys", _P),
        ("values", _P),
        ("window", _I),
        ("scaling", _F),
    ]


class Decoder(ctypes.Structure):
    """See decoder.h."""

    _fields_: ClassVar = [
        ("layers", _P),
        ("count", _I),
        ("embedding", _P),
        ("cosine", _P),
        ("sine", _P),
        ("norm", _P),
        ("head", SqueezedLinear),
        ("hidden", _I),
        ("heads", _I),
        ("kv_heads", _I),
        ("dim", _I),
        ("intermediate", _I),
        ("block_size", _I),
        ("eps", _F),
    ]


class Spans(ctypes.Structure):
    """See attention.h."""

    _fields_: ClassVar = [
        ("tables", _P),
        ("table_stride", _I),
        ("first_row", _P),
        ("rows", _P),
        ("end", _P),
        ("position", _P),
        ("sight", _P),
        ("count", _I),
        ("begin", _I),
        ("grown", _P),
    ]


class Step(ctypes.Structure):
    """See decoder.h."""

    _fields_: ClassVar = [
        ("tokens", _P),
        ("positions", _P),
        ("slots", _P),
        ("rows", _I),
        ("spans", Spans),
        ("logit_rows", _P),
        ("logits", _I),
        ("out", _P),
        ("taps", _P),
        ("tap_count", _I),
        ("tapped", _P),
    ]


class EagleHead(ctypes.Structure):
    """See eagle.h."""

    _fields_: ClassVar = [
        ("decoder", Decoder),
        ("norm_token", _P),
        ("norm_hidden", _P),
        ("normed_residual", _I),
        ("normed_output", _I),
        ("targets", _P),
    ]


class EagleStep(ctypes.Structure):
    """See eagle.h."""

    _fields_: ClassVar = [
        ("step", Step),
        ("hidden", _P),
        ("handed_on", _P),
    ]


class EagleDrafts(ctypes.Structure):
    """See eagle.h."""

    _fields_: ClassVar = [
        ("levels", _P),
        ("nodes", _P),
        ("widths", _P),
        ("most", _I),
        ("tokens", _P),
        ("parents", _P),
        ("counts", _P),
    ]
