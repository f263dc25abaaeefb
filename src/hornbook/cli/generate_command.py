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

from hornbook.cli.arguments import COMPUTE, add_declared, add_device_arguments, declared_values
from hornbook.config.generation import GenerationConfig
from hornbook.config.options import describe
from hornbook.parallel.launched import collector_paused

if TYPE_CHECKING:
    from hornbook.exchange.restore import LoadedModel
    from hornbook.generate import Request, TextWriter
    from hornbook.text.prompts import Prompt


_DEFAULT_GUESSES = 5
_FOR_DECODERS = tuple(name for name in describe(GenerationConfig) if name not in ("top_k", "batch_size"))
"""Options that apply only to decoders."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, checkpoint or Hugging Face folder")
    prompts = parser.add_argument_group("prompts")
    prompts.description = "default: one per line of standard input, or a conversation on a terminal"
    prompts.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="text to continue; '' starts a new text; repeatable",
    )
    prompts.add_argument(
        "--prompt-file",
        metavar="FILE",
        help="file with one prompt per line, or JSONL with the field `prompt`; - for standard input",
    )
    prompts.add_argument(
        "--prompt-format",
        choices=("auto", "text", "jsonl"),
        help="format of the prompts; auto: jsonl for .jsonl, .ndjson and .json, else lines (default: auto)",
    )
    for name, metavar in (("num_samples", "N"), ("input_length", "N"), ("start_token", None), ("output_length", "N")):
        add_declared(prompts, GenerationConfig, name, metavar=metavar)
    sampling = parser.add_argument_group("choice of tokens")
    metavars = {"top_k": "K", "top_p": "P", "repetition_penalty": "X", "stop": "STRING", "stop_token": "TOKEN"}
    for name in ("temperature", *metavars, "seed"):
        note = f"; encoders: tokens per mask (default: {_DEFAULT_GUESSES})" if name == "top_k" else ""
        add_declared(sampling, GenerationConfig, name, metavar=metavars.get(name), note=note)
    output = parser.add_argument_group("output")
    output.add_argument("--json-lines", action="store_true", help="print one JSON object per text")
    output.add_argument("--output", type=Path, metavar="FILE", help="also write the texts to FILE as JSON lines")
    parser.add_argument("--compute", choices=COMPUTE, default="auto", help="dtype of the activations")
    add_declared(parser, GenerationConfig, "batch_size", metavar="N")
    add_device_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Generate the texts, print the timing, and return both."""
    from hornbook.checkpoint.load import require_source
    from hornbook.errors import UserError
    from hornbook.parallel.launched import device_without_torch
    from hornbook.text.prompts import Prompt, read_prompts

    require_source(arguments.checkpoint)
    device_without_torch(arguments.device)
    is_conversation = not arguments.prompt and arguments.prompt_file is None and sys.stdin.isatty()
    if is_conversation and (arguments.json or arguments.json_lines):
        raise UserError("no prompt: add --prompt or --prompt-file, or pipe prompts to standard input")
    if is_conversation and "batch_size" in arguments:
        raise UserError("--batch-size does not apply to a conversation; remove it")
    if arguments.prompt_format is not None and (is_conversation or (arguments.prompt and not arguments.prompt_file)):
        raise UserError("--prompt-format applies only to --prompt-file and standard input; remove it")
    texts: list[str] = arguments.prompt
    prompts = [Prompt(text, f"prompt {number}") for number, text in enumerate(texts, 1)]
    if len(texts) == 1:
        prompts = [Prompt(texts[0], "the prompt")]
    if arguments.prompt_file or not (texts or is_conversation):
        prompts += read_prompts(arguments.prompt_file or "-", arguments.prompt_format or "auto")
    with collector_paused():
        from hornbook.exchange.restore import load_model
        from hornbook.parallel.device import prepare
    device = prepare(arguments.device, arguments.threads)
    loaded = load_model(arguments.checkpoint, device, compute=arguments.compute)
    if not loaded.model.is_causal:
        return _fill(arguments, loaded, prompts)
    from hornbook.generate import TextWriter

    path, options = loaded.path, GenerationConfig(**declared_values(arguments, GenerationConfig))
    writer = TextWriter(loaded.model, loaded.require_tokenizer(), options, has_start_token=loaded.has_start_token)
    del loaded  # frees its memory: the writer may hold converted weights
    return {"checkpoint": str(path), **_write(arguments, writer, prompts)}


def _write(arguments: argparse.Namespace, writer: "TextWriter", prompts: "list[Prompt]") -> dict[str, Any]:
    """Continue the prompts with a decoder, in batches; without prompts, start a conversation.

    On a terminal, a single text is shown while it is generated.
    """
    from hornbook.cli.conversation import Output, Screen, converse, timing_line

    requests, screen, number, batch_size = _requests(writer, prompts), Screen(), 0, writer.options.batch_size
    is_streaming = len(requests) == 1 and screen.is_terminal and not arguments.json_lines
    with Output(as_json=arguments.json_lines, file=arguments.output) as output:
        if not requests:
            print("enter the beginning of a text; Ctrl-C ends the text, Ctrl-D exits", file=sys.stderr)
            converse(writer, output, num_samples=writer.options.num_samples)
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
    print(timing_line(writer.timing), file=sys.stderr)
    return {**writer.timing.summary(), "results": output.records}


def _fill(arguments: argparse.Namespace, loaded: "LoadedModel", prompts: "list[Prompt]") -> dict[str, Any]:
    """Fill the masks of the prompts with an encoder; without prompts, read them from the terminal.

    Raises UserError for an option that applies only to decoders.
    """
    from hornbook.cli.conversation import Output, fill_all, fill_typed
    from hornbook.errors import UserError
    from hornbook.generate.fill_mask import GapFiller

    for name in _FOR_DECODERS:
        if name in arguments:
            raise UserError(
                f"--{name.replace('_', '-')} applies only to decoders, and {loaded.path} is an encoder; remove it"
            )
    top_k = getattr(arguments, "top_k", _DEFAULT_GUESSES)
    if top_k is None:
        raise UserError("--top-k none applies only to decoders; for an encoder, pass the number of tokens per mask")
    filler = GapFiller(loaded.model, loaded.require_tokenizer(), top_k=top_k)
    requests = [filler.request(prompt.text, place=prompt.place) for prompt in prompts]
    with Output(as_json=arguments.json_lines, file=arguments.output) as output:
        if requests:
            size = getattr(arguments, "batch_size", GenerationConfig.batch_size)
            fill_all(filler, requests, output, batch_size=size)
        else:
            fill_typed(filler, output)
    return {"checkpoint": str(loaded.path), "results": output.records}


def _requests(writer: "TextWriter", prompts: "Sequence[Prompt]") -> "list[Request]":
    """Encode all prompts before generating the first text, and warn about truncated ones."""
    from dataclasses import replace

    from hornbook.track.console import Console

    requests, cut = [], []
    for prompt in prompts:
        request = writer.request(prompt.text, place=prompt.place)
        requests += [replace(request, sample=sample) for sample in range(writer.options.num_samples)]
        if request.num_cut:
            cut.append(f"{prompt.place}, by {request.num_cut} tokens")
    if cut:
        more = f", and {len(cut) - 1} more" if len(cut) > 1 else ""
        Console().warn(f"truncated to the last --input-length tokens: {cut[0]}{more}")
    return requests
