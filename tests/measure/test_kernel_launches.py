"""What operators launch, against closed forms: kernels that PyTorch launches beside them, bytes from caches, lists."""

import pytest
import torch

from hornbook.measure.kernel_launches import _launch, launches_of


def launched(name, given, made, args=()):
    found = launches_of(name, args, given, made, given + made, (0.0, 0.0))
    return {each.name: each for each in found}


@pytest.mark.parametrize(("num_columns", "cached"), [(50304, True), (200_000, False)])
def test_a_cross_entropy_reads_rows_again_from_the_cache_that_holds_them(num_columns, cached):
    logits = torch.empty(64, num_columns, dtype=torch.bfloat16, device="meta")
    launch = _launch("triton_cross_entropy", (), [logits], [], [logits], (0.0, 0.0))
    size = logits.numel() * 2
    assert (launch.bytes, launch.cached) == ((2 * size, size) if cached else (3 * size, 0))
    summaries = torch.empty(2, 4, 64, device="meta")  # of split rows, in which the first pass is another launch
    launch = _launch("triton_cross_entropy", (), [logits, summaries], [], [logits, summaries], (0.0, 0.0))
    assert (launch.bytes, launch.cached) == (2 * size + 4 * summaries.numel(), 0)


def test_updates_in_place_also_write():
    weights, gradients, first, second = ([torch.empty(100, device="meta")] for _ in range(4))
    lists = [weights, gradients, first, second, [], []]
    given = [*weights, *gradients, *first, *second]
    assert _launch("_fused_adamw_", lists, given, [], given, (0.0, 0.0)).bytes == 400 * (4 + 3)
    assert _launch("_foreach_mul_", [weights, 0.5], weights, [], weights, (0.0, 0.0)).bytes == 400 * 2
    assert (
        _launch("_foreach_copy_", [weights, first], weights + first, [], weights + first, (0.0, 0.0)).bytes == 400 * 2
    )
    assert _launch("_foreach_zero_", [weights], weights, [], weights, (0.0, 0.0)).bytes == 400


def tensors(number, *shape, dtype=torch.bfloat16):
    return [torch.empty(shape, dtype=dtype, device="meta") for _ in range(number)]


def test_tritons_adamw_also_writes_copies():
    lists = [[torch.empty(100, device="meta")] for _ in range(4)]
    copies, given = tensors(1, 100), [tensor for (tensor,) in lists]
    launch = _launch("triton_adamw", [*lists, copies], given + copies, [], given + copies, (0.0, 0.0))
    assert (launch.bytes, launch.kernels) == (400 * (4 + 3) + 200, 2)


def test_tritons_embedding_moves_only_rows_that_occur():
    tables = [torch.empty(rows, 4, device="meta") for rows in (50, 6)]
    ids, (result,) = [torch.empty(2, 8, dtype=torch.int64, device="meta") for _ in range(2)], tensors(1, 2, 8, 4)
    args = (*ids, *tables, torch.bfloat16, None, 0, 0.0)
    launch = _launch("triton_embedding", args, ids + tables, [result], [*ids, *tables, result], (0.0, 0.0))
    assert launch.bytes == 2 * 16 * 8 + (16 + 6) * 4 * 4 + 16 * 4 * 2
    ids, order = (torch.empty(40, dtype=dtype, device="meta") for dtype in (torch.int32, torch.int64))
    for total, rows in (tables[0], 40), (tables[1], 6):
        given = [total, ids, order, *tensors(1, 5, 8, 4)]
        launch = _launch("triton_add_rows", given, given, [], given, (0.0, 0.0))
        parts = 2 * 2  # of two blocks of 32 places
        assert launch.bytes == 40 * (4 + 8) + 40 * 4 * 2 + 2 * (rows + parts) * 4 * 4


@pytest.mark.parametrize("kind", ["flash", "cudnn"])
def test_gradients_of_flash_attention_are_three_kernels(kind):
    """Sums of y dy and zeros before, fp32 sums of the queries' gradients inside, their rounding behind."""
    num_tokens, size = 2 * 3 * 128, 64
    y, q, k, v = tensors(4, 2, 3, 128, size)
    row_sums = torch.empty(2, 3, 128, device="meta")
    made, elements = tensors(3, 2, 3, 128, size), num_tokens * size
    name = f"_scaled_dot_product_{kind}_attention_backward"
    found = launched(name, [y, q, k, v, y, row_sums], made, (y, q, k, v, y, row_sums, None, None, 128, 128, 0.0, True))
    assert found["flash_bwd_dot_do_o"].bytes == (2 + 2 + 4) * elements + 4 * num_tokens
    assert found["flash_bwd_convert_dq"].bytes == (4 + 2) * elements
    # reads dy, q, k, v and log-sums, writes dk, dv, adds to dq
    assert found[name].bytes == (4 * 2 + 2 * 2 + 2 * 4) * elements + 4 * num_tokens
    assert found[name].flops == 0.5 * 10 * size * 128 * num_tokens
    assert [each.kernels for each in found.values()] == [1, 1, 1]


def test_gradients_of_shared_heads_are_summed_by_kernels():
    (q,), (k,) = tensors(1, 1, 8, 128, 64), tensors(1, 1, 2, 128, 64)
    given = [q, q, k, k, q, torch.empty(1, 8, 128, device="meta")]
    summed = launched("_scaled_dot_product_flash_attention_backward", given, [q, k, k], tuple(given))
    assert summed["flash_bwd_sum_heads"].kernels == 2
    assert summed["flash_bwd_sum_heads"].bytes == 2 * (4 + 1) * k.numel() * 2


def test_an_embeddings_gradient_sorts_many_tokens():
    tokens, gradient = torch.empty(4096, dtype=torch.int64, device="meta"), torch.empty(4096, 32, device="meta")
    table = torch.empty(100, 32, device="meta")
    found = launched("embedding_dense_backward", [gradient, tokens], [table])
    assert sum(each.kernels for each in found.values()) == 15
    assert found["embedding_sums_of_parts"].bytes == (2 * (100 + 409) + 100) * 32 * 4  # parts of at most ten rows
    few = launched("embedding_dense_backward", [gradient[:3072], tokens[:3072]], [table])
    assert [each.kernels for each in few.values()] == [1, 1]


def test_norms_and_softmax_read_again():
    gradient, x, y = tensors(3, 512, 64)
    gain, bias = tensors(2, 64)
    found = launched("native_layer_norm_backward", [gradient, x], [y, gain, bias])
    assert sum(each.bytes for each in found.values()) == (3 + 2) * x.numel() * 2 + 2 * 64 * 2
    logits, logarithms = tensors(2, 64, 50304, dtype=torch.float32)
    reads = {"_log_softmax": 4, "_log_softmax_backward_data": 4}  # with what is written
    for name, number in reads.items():
        given = [logits] if name == "_log_softmax" else [logits, logarithms]
        found = launched(name, given, [logarithms])
        assert sum(each.bytes for each in found.values()) == number * logits.numel() * 4, name
    assert len(launched("_log_softmax", tensors(1, 64, 1000), tensors(1, 64, 1000))) == 1
    given = [torch.empty((), device="meta"), logits, torch.empty(64, dtype=torch.int64, device="meta")]
    assert launched("nll_loss_backward", given, [logarithms])["nll_loss_backward"].bytes == logits.numel() * 4
