"""``hornbook generate``: generate text for prompts from options, a file, standard input or the keyboard.

hornbook generate runs/demo                                              a conversation, on a terminal
hornbook generate runs/demo --prompt "def main(" --num-samples 3
hornbook generate runs/demo --prompt-file prompts.jsonl --json-lines > texts.jsonl
hornbook generate runs/bert-mini --prompt "The cat sat on the [MASK]." --top-k 5      an encoder fills masks
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.arguments import (
    COMPUTE,
    add_device_arguments,
    non_negative_number,
    positive_fraction,
    positive_integer,
    positive_number,
    prepared_device,
)

if TYPE_CHECKING:
    from hornbook.cli.texts import Output
    from hornbook.exchange.restore import LoadedModel
    from hornbook.generate import Request, TextWriter
    from hornbook.text.prompts import Prompt


_FOR_DECODERS: dict[str, Any] = {
    "num_samples": 1,
    "input_length": None,
    "output_length": 128,
    "start_token": None,
    "temperature": 0.8,
    "top_p": None,
    "repetition_penalty": 1.0,
    "stop": [],
    "stop_token": None,
    "seed": 0,
}
"""Options that apply only to decoders, with their defaults."""
_DEFAULT_TOP_K, _DEFAULT_GUESSES = 50, 5
_DEFAULT_BATCH_SIZE = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, checkpoint or Hugging Face folder")
    _add_input(parser.add_argument_group("prompts"))
    _add_sampling(parser.add_argument_group("choice of tokens"))
    output = parser.add_argument_group("output")
    output.add_argument("--json-lines", action="store_true", help="print one JSON object per text")
    output.add_argument("--output", type=Path, metavar="FILE", help="also write the texts to FILE as JSON lines")
    parser.add_argument("--compute", choices=COMPUTE, default="auto", help="dtype of the activations (default: auto)")
    parser.add_argument(
        "--batch-size",
        type=positive_integer,
        metavar="N",
        help="prompts per batch (default: 8); 1 makes bf16 texts independent of each other",
    )
    add_device_arguments(parser)


def _add_input(group: "argparse._ArgumentGroup") -> None:
    group.description = "default: one per line of standard input, or a conversation on a terminal"
    group.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="text to continue; '' starts a new text; repeatable",
    )
    group.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="file with one prompt per line, or JSONL with the field `prompt`; - for standard input",
    )
    group.add_argument(
        "--prompt-format",
        choices=("auto", "text", "jsonl"),
        help="format of the prompts; auto: jsonl for .jsonl, .ndjson and .json, else lines (default: auto)",
    )
    group.add_argument("--num-samples", type=positive_integer, metavar="N", help="texts per prompt (default: 1)")
    group.add_argument(
        "--input-length",
        type=positive_integer,
        metavar="N",
        help="truncate prompts to their last N tokens (default: a prompt that is too long is an error)",
    )
    group.add_argument(
        "--start-token",
        action=argparse.BooleanOptionalAction,
        help=(
            "put the end-of-text token before each prompt, as in training (default: yes; for Hugging "
            "Face and imported models no, as in transformers)"
        ),
    )
    group.add_argument("--output-length", type=positive_integer, metavar="N", help="maximum new tokens (default: 128)")


def _add_sampling(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--temperature", type=non_negative_number, help="sampling temperature; 0: greedy (default: 0.8)")
    group.add_argument(
        "--top-k",
        type=_count_or_none,
        default=...,
        metavar="K",
        help="sample from the K most likely tokens; none: all (default: 50); encoders: tokens per mask (default: 5)",
    )
    group.add_argument(
        "--top-p",
        type=positive_fraction,
        metavar="P",
        help="sample from the smallest set of tokens with total probability P",
    )
    group.add_argument(
        "--repetition-penalty",
        type=positive_number,
        metavar="X",
        help="penalty for tokens that occur in the prompt or text (CTRL) (default: 1, off)",
    )
    group.add_argument("--stop", action="append", metavar="STRING", help="end the text before this string; repeatable")
    group.add_argument(
        "--stop-token",
        metavar="TOKEN",
        help="end the text at this token; none: never (default: the end-of-text token)",
    )
    group.add_argument("--seed", type=int, metavar="N", help="sampling seed (default: 0)")


def _count_or_none(text: str) -> int | None:
    return None if text == "none" else positive_integer(text)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Generate the texts, print the timing, and return both."""
    from hornbook.checkpoint.listing import require_source
    from hornbook.errors import UserError

    require_source(arguments.checkpoint)
    is_conversation = not arguments.prompt and arguments.prompt_file is None and sys.stdin.isatty()
    if is_conversation and (arguments.json or arguments.json_lines):
        raise UserError("no prompt: add --prompt or --prompt-file, or pipe prompts to standard input")
    _refuse_useless(arguments, is_conversation=is_conversation)
    prompts = [] if is_conversation else _prompts(arguments)
    loaded = _load(arguments)
    if not loaded.model.is_causal:
        return _fill(arguments, loaded, prompts)
    given = {name: getattr(arguments, name) for name in _FOR_DECODERS}
    chosen = {name: default if given[name] is None else given[name] for name, default in _FOR_DECODERS.items()}
    chosen["top_k"] = _DEFAULT_TOP_K if arguments.top_k is ... else arguments.top_k
    arguments = argparse.Namespace(**vars(arguments) | chosen)
    path, writer = loaded.path, _writer(arguments, loaded)
    del loaded  # frees its memory: the writer may hold converted weights
    return {"checkpoint": str(path), **_write(arguments, writer, prompts)}


def _refuse_useless(arguments: argparse.Namespace, *, is_conversation: bool) -> None:
    """Raise UserError for an option that does not apply to the kind of prompts."""
    from hornbook.errors import UserError

    if is_conversation and arguments.batch_size is not None:
        raise UserError("--batch-size does not apply to a conversation; remove it")
    if arguments.prompt_format is not None and (is_conversation or (arguments.prompt and not arguments.prompt_file)):
        raise UserError("--prompt-format applies only to --prompt-file and standard input; remove it")


def _write(arguments: argparse.Namespace, writer: "TextWriter", prompts: "list[Prompt]") -> dict[str, Any]:
    """Continue the prompts with a decoder; without prompts, start a conversation."""
    from hornbook.cli.conversation import converse
    from hornbook.cli.texts import Output, timing_line

    requests = _requests(writer, prompts, arguments.num_samples)
    with Output(as_json=arguments.json_lines, file=arguments.output) as output:
        if requests:
            _write_all(writer, requests, output, batch_size=arguments.batch_size or _DEFAULT_BATCH_SIZE)
        else:
            print("enter the beginning of a text; Ctrl-C ends the text, Ctrl-D exits", file=sys.stderr)
            converse(writer, output, num_samples=arguments.num_samples)
    print(timing_line(writer.timing), file=sys.stderr)
    return {**writer.timing.summary(), "results": output.records}


def _fill(arguments: argparse.Namespace, loaded: "LoadedModel", prompts: "list[Prompt]") -> dict[str, Any]:
    """Fill the masks of the prompts with an encoder; without prompts, read them from the terminal.

    Raises UserError for an option that applies only to decoders.
    """
    from hornbook.cli.fill import fill_all, fill_typed
    from hornbook.cli.texts import Output
    from hornbook.errors import UserError
    from hornbook.generate.fill_mask import GapFiller

    for name in _FOR_DECODERS:
        if getattr(arguments, name) is not None:
            raise UserError(
                f"--{name.replace('_', '-')} applies only to decoders, and {loaded.path} is an encoder; remove it"
            )
    if arguments.top_k is None:
        raise UserError("--top-k none applies only to decoders; for an encoder, pass the number of tokens per mask")
    top_k = _DEFAULT_GUESSES if arguments.top_k is ... else arguments.top_k
    filler = GapFiller(loaded.model, loaded.require_tokenizer(), top_k=top_k)
    requests = [filler.request(prompt.text, place=prompt.place) for prompt in prompts]
    with Output(as_json=arguments.json_lines, file=arguments.output) as output:
        if requests:
            fill_all(filler, requests, output, batch_size=arguments.batch_size or _DEFAULT_BATCH_SIZE)
        else:
            fill_typed(filler, output)
    return {"checkpoint": str(loaded.path), "results": output.records}


def _prompts(arguments: argparse.Namespace) -> "list[Prompt]":
    from hornbook.text.prompts import Prompt, read_prompts

    given = arguments.prompt
    prompts = [
        Prompt(text, "the prompt" if len(given) == 1 else f"prompt {number}") for number, text in enumerate(given, 1)
    ]
    source = arguments.prompt_file or (None if prompts else "-")
    return prompts if source is None else prompts + read_prompts(source, arguments.prompt_format or "auto")


def _load(arguments: argparse.Namespace) -> "LoadedModel":
    from hornbook.exchange.restore import load_model

    return load_model(arguments.checkpoint, prepared_device(arguments), compute=arguments.compute)


def _writer(arguments: argparse.Namespace, loaded: "LoadedModel") -> "TextWriter":
    from hornbook.generate import Sampling, TextOptions, TextWriter, find_stop_id

    sampling = Sampling(
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        repetition_penalty=arguments.repetition_penalty,
    )
    tokenizer = loaded.require_tokenizer()
    options = TextOptions(
        output_length=arguments.output_length,
        input_length=arguments.input_length,
        start_token=loaded.has_start_token if arguments.start_token is None else arguments.start_token,
        sampling=sampling,
        stop_strings=tuple(arguments.stop),
        stop_id=find_stop_id(arguments.stop_token, tokenizer),
        seed=arguments.seed,
    )
    return TextWriter(loaded.model, tokenizer, options)


def _requests(writer: "TextWriter", prompts: "Sequence[Prompt]", num_samples: int) -> "list[Request]":
    """Encode all prompts before generating the first text, and warn about truncated ones."""
    from dataclasses import replace

    from hornbook.track.console import Console

    requests, cut = [], []
    for prompt in prompts:
        request = writer.request(prompt.text, place=prompt.place)
        requests += [replace(request, sample=sample) for sample in range(num_samples)]
        if request.num_cut:
            cut.append(f"{prompt.place}, by {request.num_cut} tokens")
    if cut:
        more = f", and {len(cut) - 1} more" if len(cut) > 1 else ""
        Console().warn(f"truncated to the last --input-length tokens: {cut[0]}{more}")
    return requests


def _write_all(writer: "TextWriter", requests: "Sequence[Request]", output: "Output", *, batch_size: int) -> None:
    """Generate the texts in batches; on a terminal, show a single text while it is generated."""
    from hornbook.cli.texts import Screen

    screen, number = Screen(), 0
    is_streaming = len(requests) == 1 and screen.is_terminal and not output.as_json
    if is_streaming:
        screen.write_prompt(requests[0].prompt)
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        texts = writer.write(batch, on_text=(lambda _, piece: screen.write(piece)) if is_streaming else None)
        for text in texts:
            number += 1
            output.add(text)
            if output.as_json:
                continue
            if len(requests) > 1:
                screen.write(f"--- {number} of {len(requests)}\n")
            if not is_streaming:
                screen.write_prompt(text.prompt)
                screen.write(text.text)
            screen.end_line()
