"""Generation back ends: token ids in, token ids and logprobs out."""

from trl_agent.generation.protocol import (
    GenerationBackend,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from trl_agent.generation.transformers_backend import TransformersBackend

__all__ = [
    "GenerationBackend",
    "GenerationRequest",
    "GenerationResult",
    "SamplingParams",
    "TransformersBackend",
]
