"""The confusion matrix and the figures of each class, on counts whose figures are known."""

import numpy as np
import pytest

from hornbook.evaluate.classification import class_figures, confusion, macro_f1

LABELS = np.array([0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 1, 1, 1, 1])


def test_figures_of_each_class():
    """Class 2 is never predicted; classes 3 and 4 neither occur nor are predicted."""
    matrix = confusion(LABELS, PREDICTED, 5)
    assert matrix[:3, :3].tolist() == [[2, 1, 0], [0, 2, 0], [0, 1, 0]] and matrix.sum() == 6
    figures = class_figures(matrix)
    assert figures[0] == pytest.approx((1.0, 2 / 3, 4 / 5, 3, 2))
    assert figures[1] == pytest.approx((1 / 2, 1.0, 2 / 3, 2, 4))
    assert figures[2] == (0.0, 0.0, 0.0, 1, 0), "it occurs and is never predicted"
    assert figures[3] == figures[4] == (0.0, 0.0, 0.0, 0, 0)
    assert macro_f1(figures) == pytest.approx((4 / 5 + 2 / 3 + 0) / 3), "of the classes that occur or are predicted"


def test_a_class_that_is_only_predicted_counts():
    figures = class_figures(confusion(np.array([0, 0]), np.array([0, 1]), 3))
    assert figures[1] == (0.0, 0.0, 0.0, 0, 1)
    assert macro_f1(figures) == pytest.approx(1 / 3)
