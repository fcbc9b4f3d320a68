"""Pickles from outside: plain values come out, nothing is called, and no nesting or table size crashes the reader."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hace.errors import FormatError
from hace.files import pickles
from hace.files.pickles import check_size, read_cifar_pickle
from tests.data_layouts import python2_pickle

# Each of these crashed or exhausted the interpreter when it was unpickled.
DEEP_KEY = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."
DEEP_LIST = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
TUPLE_KEY = b"\x80\x02})" + b"\x85" * 40_000 + b"K\x01s."  # within the limit
FAR_MEMO = b"\x80\x02K\x01r\xff\xff\xff\x7f."


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "it wants to call os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "it wants to call os.system"),
        (b"cnumpy\nload\n(S'x'\ntR.", "it wants to call numpy.load"),
        (b"c__main__\nnumpy.dtype\n(tR.", "it wants to call __main__.numpy.dtype"),
        (b"cnumpy\nndarray\n(tR.", "a Part instead of a dictionary"),
        (b"cnumpy\nndarray\nq\x00}X\x01\x00\x00\x00aK\x01sbh\x00.", "missing 1 required positional argument"),
        (b"(ios\nsystem\n.", "it wants to call os.system"),
        (b"\x82\x01.", "unregistered extension code 1"),
        (b"Pid\n.", "persistent"),
        (b"", "pickle exhausted"),
        (b"not a pickle", "not a pickle of CIFAR-100"),
        (b"\x80\x02K\x01", "pickle exhausted"),
        (b"\x80\x02(.", "unexpected MARK found"),
        (b"\x80\x02K\x01a.", "unpickling stack underflow"),
        (b"\x80\x02h\x07.", "Memo value not found at index 7"),
        (TUPLE_KEY, "maximum recursion depth exceeded"),
        (b"\x80\x02K\x01K\x02a.", "no attribute 'append'"),
        (b"\x80\x02]q\x00.", "a list instead of a dictionary"),
        (b"\x80\x02}]K\x02s.", "unhashable type"),
        (b"\x80\x02]q\x00h\x00a.", "a list instead of a dictionary"),
        (b"\x80\x02]q\x00h\x00\x85a.", "a list instead of a dictionary"),
        (DEEP_KEY, "it has more than 50,000 tuples"),
        (DEEP_LIST, "a list instead of a dictionary"),
        (FAR_MEMO, "its opcodes do not fit together"),
        (python2_pickle({"data": np.zeros(3)}), "an array is not of bytes"),
        (python2_pickle({"data": np.array([1, "a"], dtype=object)}), "an array is not of bytes"),
        (
            python2_pickle({"data": np.zeros(3, dtype=np.uint8)}).replace(b"K\x03\x85", b"K\x04\x85"),
            "an array has no shape",
        ),
        (
            python2_pickle({"data": np.zeros((3, 2), dtype=np.uint8)}).replace(b"K\x03", b"K\x02"),
            "an array of shape (2, 2) has 6 bytes",
        ),
    ],
)
def test_a_pickle_of_something_else_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=r"^file x: not a pickle of CIFAR-100: .*Fetch it again") as caught:
        read_cifar_pickle(data, "file x")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("protocol", range(5))
def test_the_tuples_of_a_pickle_are_bounded(protocol: int) -> None:
    """However they are put together: a chain of tuples that are remembered and recalled is as deep as a plain one."""
    check_size(pickle.dumps([(i, -i) for i in range(40_000)], protocol))
    with pytest.raises(FormatError, match="it has more than 50,000 tuples"):
        check_size(pickle.dumps([(i, -i) for i in range(60_000)], protocol))


def test_the_number_of_opcodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_OPCODES", 100)
    check_size(pickle.dumps(list(range(90)), 2))
    with pytest.raises(FormatError, match="more than 100 opcodes"):
        check_size(pickle.dumps(list(range(110)), 2))
