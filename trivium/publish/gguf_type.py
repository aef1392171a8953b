"""How a GGUF file stores matrices, by the names that llama.cpp has for it."""

from enum import StrEnum

SUFFIX = ".gguf"


class GgufType(StrEnum):
    """Three kinds of floats, or blocks of bytes with a scale each."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
