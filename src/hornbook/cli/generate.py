"""Let a trained model write: ``hornbook generate runs/demo --prompt "def main("`` prints the prompt and what follows."""

import argparse

from hornbook.cli.arguments import add_device_arguments, non_negative_number, positive_integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a run's folder, or one checkpoint of it")
    parser.add_argument("--prompt", default="", help="text to continue; default: the beginning of a document")
    parser.add_argument("--output-length", type=positive_integer, default=128, metavar="N", help="tokens at most (128)")
    parser.add_argument("--temperature", type=non_negative_number, default=0.8, help="0: the likeliest token (0.8)")
    parser.add_argument(
        "--top-k", type=positive_integer, default=50, metavar="K", help="draw from the K likeliest (50)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    parser.add_argument("--compute", choices=("auto", "fp32", "bf16"), default="auto", help="dtype of the activations")
    add_device_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Generate one text and print it."""
    from pathlib import Path

    from hornbook.checkpoint.restore import load_model
    from hornbook.engine.device import choose_device, prepare
    from hornbook.generate import generate
    from hornbook.track.console import visible

    device = choose_device(arguments.device)
    prepare(device, arguments.threads)
    loaded = load_model(Path(arguments.checkpoint), device, compute=arguments.compute)
    tokenizer = loaded.require_tokenizer()
    ids = generate(
        loaded.model,
        [tokenizer.end_of_text_id, *tokenizer.encode(arguments.prompt)],
        num_tokens=arguments.output_length,
        seed=arguments.seed,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        stop_id=tokenizer.end_of_text_id,
    )
    text = tokenizer.decode(ids)
    print(visible(arguments.prompt + text))
    return {"prompt": arguments.prompt, "text": text, "tokens": len(ids)}
