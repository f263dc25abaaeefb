"""Generate continuations of prompts, given as texts or ids, in batches.

    write(loaded, read_inputs("Once"), TextOptions(...), num_samples=2, batch_size=8)    [" upon a time", " there was"]
    write(loaded, read_inputs([464, 3797]), TextOptions(...), ...)                       [3332, 319]

Ids need no tokenizer. Sampling depends on the prompt and the number of the sample, not on the batch size.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

from hornbook.api.inputs import Given
from hornbook.api.passes import ids_of, refuse_below_one
from hornbook.errors import UserError
from hornbook.exchange.restore import LoadedModel
from hornbook.generate import TextOptions, TextWriter, draws_of, generate_batch, make_decoder
from hornbook.model.forward import evaluation_mode


class GenerateOptions(TypedDict, total=False):
    """The options of `hornbook.Model.generate`; see there."""

    output_length: int
    input_length: int | None
    start_token: bool | None
    temperature: float
    top_k: int | None
    top_p: float | None
    repetition_penalty: float
    stop: str | Sequence[str]
    stop_token: str | None
    seed: int
    batch_size: int


def write(loaded: LoadedModel, given: Given, options: TextOptions, *, num_samples: int | None, batch_size: int) -> Any:
    """Return the continuation of each prompt, in the form of the input; see `hornbook.Model.generate`.

    Raises:
        UserError: an option is out of range, or a prompt is too long.
        CheckpointError: a prompt is a text, and the model has no tokenizer.
    """
    refuse_below_one(num_samples=num_samples, batch_size=batch_size, output_length=options.output_length)
    samples, texts = num_samples or 1, given.texts()
    results: Sequence[str | list[int]]
    with evaluation_mode(loaded.model):
        if texts:
            results = _write_texts(loaded, texts, options, num_samples=samples, batch_size=batch_size)
        else:
            results = _write_ids(loaded, given, options, num_samples=samples, batch_size=batch_size)
    return results[0] if given.form == "one" and num_samples is None else results


def _write_texts(
    loaded: LoadedModel, prompts: Sequence[str], options: TextOptions, *, num_samples: int, batch_size: int
) -> list[str]:
    writer = TextWriter(loaded.model, loaded.require_tokenizer(), options)
    several = len(prompts) > 1
    asked = [
        writer.request(prompt, place=f"prompt {number}" if several else "the prompt")
        for number, prompt in enumerate(prompts, 1)
    ]
    requests = [replace(request, sample=sample) for request in asked for sample in range(num_samples)]
    starts = range(0, len(requests), batch_size)
    return [text.text for start in starts for text in writer.write(requests[start : start + batch_size])]


def _write_ids(
    loaded: LoadedModel, given: Given, options: TextOptions, *, num_samples: int, batch_size: int
) -> list[list[int]]:
    if options.stop_strings:
        raise UserError("stop applies only to prompts of text; use stop_token for ids")
    refuse_below_one(input_length=options.input_length)
    prompts = [ids[-(options.input_length or 0) :].tolist() for ids in ids_of(loaded, given, most=options.input_length)]
    requests = [(ids, sample) for ids in prompts for sample in range(num_samples)]
    tokenizer, vocab_size = loaded.tokenizer, loaded.model.vocab_size
    decoder, written = make_decoder(loaded.model), list[list[int]]()
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        written += generate_batch(
            decoder,
            [ids for ids, _ in batch],
            num_tokens=options.output_length,
            vocab_size=vocab_size if tokenizer is None else min(vocab_size, tokenizer.vocab_size),
            draws=[draws_of(options.seed, ids, sample) for ids, sample in batch],
            sampling=options.sampling,
            stop_id=options.stop_id,
        )
    return written
