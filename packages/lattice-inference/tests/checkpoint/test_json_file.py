"""JSON from files: strict, bounded, and every complaint names the file."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_inference.checkpoint.json_file import exceeds_depth, load_json, load_json_object, parse_json
from lattice_inference.errors import CheckpointError, ModelConfigError, ModelNotFoundError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@pytest.mark.slow
@given(json_values, st.booleans())
def test_what_is_valid_reads_as_python_reads_it(value, ascii_only):
    content = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parse_json(content, source="x", max_depth=64) == value


@pytest.mark.slow
@given(json_values, st.integers(0, 6))
def test_depth_is_exact(value, limit):
    content = json.dumps(value).encode()
    assert exceeds_depth(content, limit) == (depth_of(value) > limit)


@settings(max_examples=300)
@given(st.text(alphabet='[]{}",:\\a1 ', max_size=60))
def test_nothing_but_the_given_error_comes_out(text):
    try:
        expected = json.loads(text, parse_int=str)
    except ValueError:
        expected = None
    try:
        parse_json(text.encode(), source="x", error=CheckpointError)
    except CheckpointError:
        return
    assert expected is not None


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, '{"a":' * 300_000, "[" * 33 + "]" * 33, '"' + "[" * 50 + '",' + "[" * 40]
)
def test_deep_nesting_is_refused_before_parsing(text):
    with pytest.raises(ModelConfigError, match="x: nested deeper than the 32"):
        parse_json(text.encode(), source="x")


def test_brackets_in_strings_do_not_nest():
    value = {"a": "[[[[" * 100, "b\\": '"{{{{"' * 100, "c": "\\" * 7}
    assert parse_json(json.dumps(value).encode(), source="x", max_depth=1) == value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"a": 1,}', "line 1, column"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' stands twice"),
        (b'{"x": {"a": 1, "a": 1}}', "'a' stands twice"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b'["\xff"]', "not UTF-8"),
        (b'["\xed\xa0\x80"]', "not UTF-8"),
        (b'["\\ud800"]', "surrogate"),
        (b'{"\\udc00x": 1}', "surrogate"),
        (b"[" + b"1" * 5000 + b"]", "not valid JSON"),
        (b"\xff\xfe[\x001\x00", "UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<!doctype html><title>Not found</title>", "web page"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelConfigError, match=message) as caught:
        load_json(path)
    assert str(path) in str(caught.value)


def test_a_byte_order_mark_is_taken_off(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert load_json_object(path) == {"a": 1}


def test_minus_zero_is_no_integer():
    assert isinstance(parse_json(b"[-0]", source="x")[0], float)
    assert parse_json(b'["-0", -1, 0]', source="x") == ["-0", -1, 0]


@pytest.mark.parametrize("text", ["[]", "null", "1", '"text"'])
def test_an_object_is_demanded(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelConfigError, match="an object is needed"):
        load_json_object(path)


def test_size_is_checked_before_reading(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')
    assert load_json(path, max_bytes=8) == {"a": 1}
    with pytest.raises(ModelConfigError, match="8 bytes, and at most 7"):
        load_json(path, max_bytes=7)
    os.truncate(path, 1 << 40)  # sparse
    with pytest.raises(ModelConfigError, match="at most"):
        load_json(path)


def test_only_regular_files_are_read(tmp_path):
    with pytest.raises(ModelConfigError, match="is a directory"):
        load_json(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ModelConfigError, match="not a regular file"):
        load_json(tmp_path / "fifo")
    with pytest.raises(ModelNotFoundError):
        load_json(tmp_path / "absent")
