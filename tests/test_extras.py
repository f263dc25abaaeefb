import json

import pytest

from hornbook.errors import UserError
from hornbook.extras import require
from tiny_text import one_line


def test_a_library_that_is_there_and_one_that_is_not():
    assert require("json", extra="none", purpose="this test") is json
    with pytest.raises(UserError) as caught:
        require("no_such_library.part", extra="arrow", purpose="reading Parquet files")
    assert one_line(caught.value, "reading Parquet files needs no_such_library: pip install 'hornbook[arrow]'")
