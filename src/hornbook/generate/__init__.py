"""Generation with a trained model: continuations, and in a module each, filled masks, classes, answers and embeddings.

    text    ->  TextWriter  ->  generate_batch  ->  Decoder     logits of the next tokens, from cached keys and values
    streamed    stop strings    the loop over       Chooser     temperature, top-k, top-p, penalty, one draw per row
    back        UTF-8           tokens

A text is a function of (model, prompt, options, seed, sample number); it does not depend on the rest of its batch or on
the device's random state.
"""

from hornbook.config.generation import GenerationConfig, Sampling
from hornbook.generate.decoder import Decoder, generate, generate_batch, make_decoder
from hornbook.generate.sampling import draws_of
from hornbook.generate.text import Request, Text, TextWriter, Timing, find_stop_id

__all__ = [
    "Decoder",
    "GenerationConfig",
    "Request",
    "Sampling",
    "Text",
    "TextWriter",
    "Timing",
    "draws_of",
    "find_stop_id",
    "generate",
    "generate_batch",
    "make_decoder",
]
