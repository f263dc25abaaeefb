"""GGUF files: their keys and tensors are those of the model, and what llama.cpp makes of them is hornbook's text."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from test_huggingface_decoders import KINDS, contents_of
from tiny_encoder_runs import encoder_contents
from tiny_huggingface import tiny_contents
from tiny_runs import run_tiny
from tiny_text import TEXTS, build_tiny, one_line, tiny_tokenizer

import hornbook
from hornbook.checkpoint import Contents, save
from hornbook.errors import CheckpointError, StorageError, UserError
from hornbook.exchange.gguf import write_gguf
from hornbook.storage.faults import count_operations, inject
from hornbook.storage.files import sha256_file

pytest.importorskip("gguf", reason="hornbook[gguf] is not installed")
from gguf_model import GGUFModel

SCALINGS = {
    "llama-linear": {"rope_scaling": "linear", "rope_factor": 4.0},
    "llama-llama3": {"rope_scaling": "llama3", "rope_factor": 8.0, "rope_original_positions": 12}
    | {"rope_low_factor": 1.0, "rope_high_factor": 4.0, "rope_theta": 50.0},
    "llama-biases": {"qkv_bias": True, "linear_bias": True, "tied": True},
    "qwen3-tied": KINDS["qwen3"] | {"tied": True, "head_size": 16, "rope_scaling": "linear", "rope_factor": 2.0},
    "olmo2-tied": KINDS["olmo2"] | {"tied": True},
    "gemma3-capped": KINDS["gemma3_text"] | {"logit_cap": 3.0, "rope_scaling": "linear", "rope_factor": 2.0},
}
DECODERS = {name: {"num_kv_heads": 2} | options for name, options in KINDS.items() if name != "nanochat"} | SCALINGS


def drawn(name: str) -> Contents:
    """A checkpoint with noise in every weight."""
    if name == "gpt2":
        return tiny_contents(activation="gelu_tanh")
    contents = contents_of(**DECODERS[name])
    generator = torch.Generator().manual_seed(3)
    for tensor in contents.tensors["model"].values():
        tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.2)
    return contents


def loaded(folder: Path, contents: Contents) -> hornbook.Model:
    save(folder / "run" / "checkpoints", contents)
    return hornbook.load(folder / "run", device="cpu", compute="fp32")


def refused(tmp_path: Path, contents: Contents, *parts: str, dtype: str = "fp32") -> bool:
    with pytest.raises(CheckpointError) as caught:
        write_gguf(tmp_path / "out.gguf", contents, dtype=dtype)
    return one_line(caught.value, *parts) and not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("name", ["gpt2", *DECODERS])
def test_the_logits_of_a_files_tensors_are_those_of_the_model(tmp_path: Path, name: str) -> None:
    contents = drawn(name)
    written = write_gguf(tmp_path / "out.gguf", contents)
    path = tmp_path / "out.gguf"
    assert (path.stat().st_size, sha256_file(path)) == (written.size, written.sha256)
    ids = [299, 5, 7, 7, 40, 200, 3, 9, 11, 250, 17, 80]
    torch.testing.assert_close(
        GGUFModel(path).logits(ids).float(), loaded(tmp_path, contents).logits(ids), rtol=2e-5, atol=2e-5
    )


def test_every_weight_is_in_the_file_once_and_every_key_is_that_of_the_model(tmp_path: Path) -> None:
    contents = drawn("qwen3")
    write_gguf(tmp_path / "mine.gguf", contents, license="apache-2.0")
    found, weights = GGUFModel(tmp_path / "mine.gguf"), contents.tensors["model"]
    expected = {"token_embd": "embedding.tokens", "output": "head.table", "output_norm": "head.norm.weight"}
    for index in range(2):
        names = {"attn_norm": "attention_norm", "attn_q_norm": "attention.query_norm", "ffn_norm": "feed_forward_norm"}
        names |= {"attn_k_norm": "attention.key_norm", "attn_q": "attention.query", "attn_output": "attention.out"}
        names |= {"ffn_down": "feed_forward.down"}
        expected |= {f"blk.{index}.{theirs}": f"blocks.{index}.{ours}.weight" for theirs, ours in names.items()}
    tensors = {f"{theirs}.weight": weights[ours] for theirs, ours in expected.items()}
    for index in range(2):
        for ours, theirs in (("attention.key_value", "attn_k attn_v"), ("feed_forward.gate_up", "ffn_gate ffn_up")):
            parts = weights[f"blocks.{index}.{ours}.weight"].unbind(0)
            tensors |= {f"blk.{index}.{name}.weight": part for name, part in zip(theirs.split(), parts, strict=True)}
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found.tensors[name], tensor), name
    keys = {name.removeprefix("qwen3."): value for name, value in found.keys.items() if name.startswith("qwen3.")}
    assert keys == {
        "block_count": 2,
        "context_length": 24,
        "embedding_length": 32,
        "feed_forward_length": 128,
        "vocab_size": 300,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 8,
        "attention.value_length": 8,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-5),
        "rope.dimension_count": 8,
        "rope.freq_base": 10_000.0,
    }
    assert (found.keys["general.name"], found.keys["general.license"]) == ("mine", "apache-2.0")


def test_the_tokenizer_is_that_of_the_model(tmp_path: Path) -> None:
    contents = tiny_contents(activation="gelu_tanh", vocab_size=302)
    write_gguf(tmp_path / "out.gguf", contents)
    keys, tokenizer = GGUFModel(tmp_path / "out.gguf").keys, tiny_tokenizer()
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in keys.items() if "tokenizer" in name}
    assert own.pop("tokens") == [*sorted(tokenizer.vocab, key=tokenizer.vocab.__getitem__), "[PAD300]", "[PAD301]"]
    assert own.pop("token_type") == [1] * 299 + [3] + [5] * 2, "normal, control, unused"
    assert own.pop("merges") == [" ".join(pair) for pair in tokenizer.settings["model"]["merges"]]
    ends = {"bos_token_id": 299, "eos_token_id": 299, "add_bos_token": True, "add_eos_token": False}
    assert own == {"model": "gpt2", "pre": "gpt-2", "add_space_prefix": False} | ends


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", "BF16"), ("fp16", "F16")])
def test_matrices_in_smaller_dtypes(tmp_path: Path, dtype: str, kind: str) -> None:
    contents = tiny_contents(activation="gelu_tanh")
    write_gguf(tmp_path / "out.gguf", contents, dtype=dtype)
    found = GGUFModel(tmp_path / "out.gguf")
    wide = {name for name, own in found.types.items() if own == kind}
    assert wide == {name for name, tensor in found.tensors.items() if tensor.dim() == 2} - {"position_embd.weight"}
    assert {own for name, own in found.types.items() if name not in wide} == {"F32"}
    table = contents.tensors["model"]["embedding.tokens"]
    assert torch.equal(found.tensors["token_embd.weight"], table.to(found.tensors["token_embd.weight"].dtype))
    contents.tensors["model"]["blocks.1.attention.out.weight"][0, 0] = 1e5
    if dtype == "fp16":
        (tmp_path / "out.gguf").unlink()
        assert refused(tmp_path, contents, "larger values in blk.1.attn_output.weight; export bf16", dtype=dtype)


@pytest.mark.parametrize(
    ("contents", "parts"),
    [
        (lambda: tiny_contents(activation="gelu"), ["the closest, gpt2, differs in", 'model.activation = "gelu"']),
        (lambda: tiny_contents(head="classification", num_labels=2), ['model.head = "classification"']),
        (lambda: encoder_contents("bert"), ["a model of the family 'bert' cannot be exported as GGUF"]),
        (lambda: contents_of(**KINDS["nanochat"]), ["model.norm_gain, model.embedding_norm, model.feed_forward"]),
        (
            lambda: contents_of(value_embeddings=True, smear=True),
            ["llama, differs in model.value_embeddings, model.sm"],
        ),
        (lambda: contents_of(activation="gelu_tanh"), ["llama, differs in", 'model.activation = "gelu_tanh"']),
        (lambda: contents_of(query_key_norm="head", window=8), ["the closest, qwen3, differs in model.window"]),
        (
            lambda: contents_of(**KINDS["gemma3_text"], attention_scale=0.5),
            ["gemma3, differs in model.att"],
        ),
        (lambda: contents_of(**KINDS["olmo2"], head_size=16), ["olmo2, differs in model.head_size"]),
        (
            lambda: contents_of(**KINDS["qwen3"], **SCALINGS["llama-llama3"]),
            ['differs in model.rope_scaling = "l'],
        ),
    ],
)
def test_models_that_llama_cpp_does_not_have_are_named(tmp_path: Path, contents, parts: list[str]) -> None:
    assert refused(tmp_path, contents(), *parts)


def edited(**changes: object) -> Contents:
    """A checkpoint whose tokenizer has other settings."""
    settings = json.loads(tiny_tokenizer().to_json())
    for name, value in changes.items():
        settings[name] = value
    contents = tiny_contents(activation="gelu_tanh")
    contents.files["tokenizer.json"] = json.dumps(settings).encode()
    return contents


def test_tokenizers_that_llama_cpp_does_not_have_are_named(tmp_path: Path) -> None:
    contents = tiny_contents(activation="gelu_tanh")
    without = Contents(step=5, tensors=contents.tensors, documents=contents.documents, files={})
    assert refused(tmp_path, without, "has no tokenizer, which a GGUF file contains")
    digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}]}
    assert refused(tmp_path, edited(pre_tokenizer=digits), "expected byte-level BPE with the pattern of GPT-2, GPT-4")


def tiktoken_like(digits: str) -> dict[str, object]:
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    regex = words + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def test_other_patterns_and_normalizers(tmp_path: Path) -> None:
    warnings: list[str] = []
    contents = edited(pre_tokenizer=tiktoken_like(r"\p{N}"), normalizer={"type": "NFC"})
    write_gguf(tmp_path / "out.gguf", contents, warn=warnings.append)
    assert GGUFModel(tmp_path / "out.gguf").keys["tokenizer.ggml.pre"] == "qwen2"
    assert "Unicode's form NFC" in warnings[0]
    write_gguf(tmp_path / "other.gguf", edited(pre_tokenizer=tiktoken_like(r"\p{N}{1,3}")))
    assert GGUFModel(tmp_path / "other.gguf").keys["tokenizer.ggml.pre"] == "dbrx"
    contents = edited(pre_tokenizer=tiktoken_like(r"\p{N}"), normalizer={"type": "Lowercase"})
    (tmp_path / "out.gguf").unlink()
    assert refused(tmp_path, contents, "the normalizer 'Lowercase', which llama.cpp cannot represent")


def test_a_file_that_exists_stays_and_an_error_leaves_nothing(tmp_path: Path) -> None:
    contents, path = tiny_contents(activation="gelu_tanh"), tmp_path / "out.gguf"
    path.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        write_gguf(path, contents)
    assert path.read_text() == "mine"
    path.unlink()
    with count_operations() as operations:
        whole = write_gguf(path, contents)
    path.unlink()
    for n in range(1, len(operations) + 1):
        with inject("any", n, "enospc"), pytest.raises(StorageError):
            write_gguf(path, contents)
        for left in tmp_path.iterdir():  # only the sync of the folder failed
            assert left == path and sha256_file(path) == whole.sha256
            left.unlink()


FAMILIES = {
    "gpt2": ["--model.activation=gelu_tanh"],
    "llama": ["--model.family=decoder", "--model.num-kv-heads=2"],
    "qwen3": ["--model.family=decoder", "--model.query-key-norm=head", "--model.tied=false"],
    "olmo2": ["--model.family=decoder", "--model.query-key-norm=width", "--model.norm-placement=after"],
    "gemma3": [
        *("--model.family=decoder", "--model.query-key-norm=head", "--model.norm-placement=both"),
        *("--model.embedding-scale=8", "--model.activation=gelu_tanh", "--model.window=16"),
        *("--model.window-pattern=LG", "--model.local-rope-theta=1e4", "--model.rope-theta=1e6"),
    ],
    "llama-yarn": [
        *("--model.family=decoder", "--model.rope-scaling=yarn", "--model.rope-factor=4"),
        "--model.rope-original-positions=32",
    ],
    "llama-llama3": [
        *("--model.family=decoder", "--model.rope-scaling=llama3", "--model.rope-factor=8"),
        *("--model.rope-original-positions=32", "--model.rope-low-factor=1", "--model.rope-high-factor=4"),
    ],
}


def read_by_llama_cpp(path: Path) -> Any:
    """A server of llama.cpp in this process, on one thread, with keys and values in fp32."""
    library = pytest.importorskip("xllamacpp", reason="xllamacpp, which contains llama.cpp, is not installed")
    options = library.CommonParams()
    options.model.path, options.n_ctx, options.n_gpu_layers, options.warmup = str(path), 128, 0, False
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.cache_type_k = options.cache_type_v = library.ggml_type.GGML_TYPE_F32
    options.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return library.Server(options)


def ask(server: Any, path: str, **content: object) -> dict[str, Any]:
    data = json.dumps(content).encode()
    request = urllib.request.Request(f"{server.listening_address}/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_llama_cpp_finds_the_same_ids_logits_and_text(tmp_path: Path, name: str) -> None:
    build_tiny(tmp_path / "corpus")
    run_tiny(
        tmp_path,
        *("--data.synthetic=false", f"--data.train={tmp_path / 'corpus'}", "--model.vocab-size=300"),
        *("--model.hidden-size=64", "--model.num-heads=4", "--model.max-positions=128", "--data.sequence-length=64"),
        *("--training.steps=60", *FAMILIES[name]),
    )
    model = hornbook.load(tmp_path / "run", device="cpu", compute="fp32")
    (path,) = model.export(tmp_path / "mine.gguf", format="gguf")
    server = read_by_llama_cpp(path)
    for text in (*TEXTS[:20], "a \n\n b  12345  don't<|endoftext|>\t漢字 \r\n", "  "):
        found = ask(server, "tokenize", content=text, add_special=True, parse_special=False)
        assert found["tokens"] == model.encode(text)
    for prompt in (TEXTS[11], "story 12: the cat", "on the", "é"):
        found = ask(server, "completion", prompt=prompt, n_predict=60, temperature=0.0, n_probs=300)
        first = {each["id"]: each["logprob"] for each in found["completion_probabilities"][0]["top_logprobs"]}
        own = model.logits(model.encode(prompt))[-1].log_softmax(0)
        theirs = torch.tensor([first[number] for number in range(300)])
        tolerance = 5e-3 if name in ("gpt2", "gemma3") else 2e-4  # llama.cpp's GELU is a table in fp16
        torch.testing.assert_close(theirs, own, rtol=0, atol=tolerance)
        assert found["content"] == model.generate(prompt, output_length=60, temperature=0.0)
