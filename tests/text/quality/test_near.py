import numpy as np
import pytest
from tiny_text import one_line

from hornbook.errors import UserError
from hornbook.text.quality.duplicates import band_keys, band_rows, check_threshold, num_equal


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.9, 1.0])
def test_bands_find_what_is_at_the_threshold(threshold):
    rows = band_rows(threshold)
    assert 1 - (1 - threshold**rows) ** (128 // rows) >= 0.99
    if rows < 128:
        assert 1 - (1 - threshold ** (rows + 1)) ** (128 // (rows + 1)) < 0.99


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.9, 1.0])
def test_the_estimate_at_the_threshold_is_enough_and_one_byte_less_is_not(threshold):
    for equal in range(129):
        estimate = (256 * equal - 128) / (255 * 128)  # (256 e - 1) / 255 of the share e of equal bytes
        assert (equal >= num_equal(threshold)) == (estimate >= threshold), equal
    assert num_equal(1.0) == 128


@pytest.mark.parametrize("threshold", [0.3, 0.8, 1.0])
def test_keys_are_equal_where_bands_are(threshold):
    signatures = np.random.default_rng(0).integers(0, 256, (2, 128), dtype=np.uint8)
    rows = band_rows(threshold)
    signatures[1, : 2 * rows] = signatures[0, : 2 * rows]
    keys = band_keys(signatures, threshold)
    assert keys.shape == (2, 128 // rows)
    assert (keys[0] == keys[1]).tolist() == [number < 2 for number in range(128 // rows)]
    assert len(set(band_keys(np.zeros((1, 128), dtype=np.uint8), threshold)[0].tolist())) == 128 // rows


@pytest.mark.parametrize("threshold", [0.29, 1.01, float("nan"), -1])
def test_a_threshold_out_of_range_is_one_line(threshold):
    with pytest.raises(UserError) as caught:
        check_threshold(threshold)
    assert one_line(caught.value, f"{threshold:g}", "expected 0.3 to 1")
