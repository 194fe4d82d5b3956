"""What the script for HTTP concludes from a record."""

from typing import Any

import serving_http
from harness.record import describe_run


def serving_record(
    *, wall: float = 1.02, processor: float = 1.03, texts: float = 1.25, idle: int = 120_000_000, extra: int = 2_200_000
) -> dict[str, Any]:
    return describe_run("serving_http") | {
        "model": "a.gguf",
        "embedding": "b",
        "extra_bytes": extra,
        "idle": {"session": 100_000_000, "server": idle},
        "streams": {"library": [[100, 1.0, 2.0]] * 2, "server": [[100, wall, 2 * processor]] * 2},
        "texts": {"library": [[64, 1.0, 2.0]], "server": [[64, texts, 2 * texts]]},
    }


def test_a_server_is_compared_with_what_it_serves() -> None:
    assert serving_http.misses(serving_record()) == []
    lines = serving_http.render(serving_record()).splitlines()
    assert "| 16 streams, tokens a second | 0.98 | 0.97 |" in lines
    assert "| 64 clients, texts a second | 0.80 | 0.80 |" in lines
    assert "An idle server has 20 MB more than an idle session. `[serve]` has 2.2 MB." in lines


def test_each_limit_is_said_to_be_missed() -> None:
    for record in (
        serving_record(processor=1.1),
        serving_record(texts=1.5),
        serving_record(processor=float("nan")),
        serving_record(idle=141_000_000),
        serving_record(extra=8_100_000),
    ):
        assert len(serving_http.misses(record)) == 1
