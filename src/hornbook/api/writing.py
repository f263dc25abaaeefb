"""Generate continuations of prompts, given as texts or ids, in batches.

    write(loaded, read_inputs("Once"), GenerationConfig(num_samples=2), several=True)    [" upon", " there"]
    write(loaded, read_inputs([464, 3797]), GenerationConfig(), several=False)              [3332, 319]

Ids need no tokenizer. Sampling depends on the prompt and the number of the sample, not on the batch size.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

from hornbook.api.passes import Given, ids_of
from hornbook.config.generation import GenerationConfig
from hornbook.errors import UserError
from hornbook.exchange.restore import LoadedModel
from hornbook.generate import TextWriter, draws_of, find_stop_id, generate_batch, make_decoder
from hornbook.model.language_model import evaluation_mode


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


def write(loaded: LoadedModel, given: Given, options: GenerationConfig, *, several: bool) -> Any:
    """Return the continuation of each prompt; see `hornbook.Model.generate`.

    Args:
        loaded: a decoder.
        given: the prompts.
        options: for all texts.
        several: return a list for one prompt, too.

    Raises:
        UserError: an option does not suit the model, or a prompt is too long.
        CheckpointError: a prompt is a text, and the model has no tokenizer.
    """
    texts = given.texts()
    results: Sequence[str | list[int]]
    with evaluation_mode(loaded.model):
        results = _write_texts(loaded, texts, options) if texts else _write_ids(loaded, given, options)
    return results[0] if given.form == "one" and not several else results


def _write_texts(loaded: LoadedModel, prompts: Sequence[str], options: GenerationConfig) -> list[str]:
    tokenizer, batch_size = loaded.require_tokenizer(), options.batch_size
    writer = TextWriter(loaded.model, tokenizer, options, has_start_token=loaded.has_start_token)
    several = len(prompts) > 1
    asked = [
        writer.request(prompt, place=f"prompt {number}" if several else "the prompt")
        for number, prompt in enumerate(prompts, 1)
    ]
    requests = [replace(request, sample=sample) for request in asked for sample in range(options.num_samples)]
    starts = range(0, len(requests), batch_size)
    return [text.text for start in starts for text in writer.write(requests[start : start + batch_size])]


def _write_ids(loaded: LoadedModel, given: Given, options: GenerationConfig) -> list[list[int]]:
    if options.stop:
        raise UserError("stop applies only to prompts of text; use stop_token for ids")
    prompts = [ids[-(options.input_length or 0) :].tolist() for ids in ids_of(loaded, given, most=options.input_length)]
    requests = [(ids, sample) for ids in prompts for sample in range(options.num_samples)]
    tokenizer, vocab_size = loaded.tokenizer, loaded.model.vocab_size
    stop_id = find_stop_id(options.stop_token, tokenizer) if tokenizer else None
    decoder, written = make_decoder(loaded.model), list[list[int]]()
    for start in range(0, len(requests), options.batch_size):
        batch = requests[start : start + options.batch_size]
        written += generate_batch(
            decoder,
            [ids for ids, _ in batch],
            num_tokens=options.output_length,
            vocab_size=vocab_size if tokenizer is None else min(vocab_size, tokenizer.vocab_size),
            draws=[draws_of(options.seed, ids, sample) for ids, sample in batch],
            sampling=options,
            stop_id=stop_id,
        )
    return written
