"""The commands that generate and measure, as a user calls them."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lattice_inference import load_model
from lattice_inference.cli import main
from lattice_inference.generate.chat import Chat
from lattice_inference.generate.compare_logits import compare_logits
from lattice_inference.generate.config import GenerateConfig
from lattice_inference.generate.perplexity import perplexity
from lattice_inference.generate.session import Session
from tiny_decoders import BOS, END, EOS, VOCAB, chain, write_drawn_model, write_told_model

WINDOWS = ["--window", "32", "--stride", "16"]
TEXT = "It was the best of times, it was the worst of times. 日本 😀"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return str(write_drawn_model(tmp_path_factory.mktemp("cli") / "drawn", context=128))


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    table = chain("Yes, 😀.", END) | {259: ord("Y"), END: EOS, BOS: ord("Y")}
    return str(write_told_model(tmp_path_factory.mktemp("cli") / "chatting", table))


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("LATTICE_") and name not in {"LATTICE_ISA", "LATTICE_REQUIRE_MODELS", "LATTICE_OFFLINE"}:
            monkeypatch.delenv(name)


@pytest.fixture
def lattice(capsys):
    """Call the command line; return the exit status, standard output and standard error."""

    def call(*arguments):
        try:
            status = main(list(arguments))
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def typed(monkeypatch):
    """Give the next call this standard input."""

    def give(text):
        content = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestGenerate:
    def test_it_prints_the_text(self, lattice, chatting):
        assert lattice("generate", "--model", chatting, "--temperature", "0", "Y") == (0, "es, 😀.\n", "")

    def test_the_text_obeys_a_schema_a_regex_or_a_grammar(self, lattice, drawn, tmp_path):
        pytest.importorskip("llguidance")
        schema, grammar, lark = tmp_path / "schema.json", tmp_path / "form.gbnf", tmp_path / "form.lark"
        schema.write_text('{"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}')
        grammar.write_text('root ::= "é" | "ü"\n')
        lark.write_text('start: "x"\n')
        call = ["generate", "--model", drawn, "--temperature", "2", "--top-k", "0", "--top-p", "1", "--seed", "3", "Y"]
        status, out, err = lattice(*call, "--json-schema", str(schema))
        assert (status, err) == (0, "")
        assert set(json.loads(out)) <= {1, 2}
        assert lattice(*call, "--regex", "[0-9]{3}")[1].strip().isdigit()
        assert lattice(*call, "--grammar", str(grammar))[1] in {"é\n", "ü\n"}
        assert lattice(*call, "--grammar", str(lark))[1] == "x\n"

    @pytest.mark.parametrize(
        ("option", "content", "message"),
        [
            ("--json-schema", '{"type": "strin"}', "the schema at /type names 'strin'"),
            ("--json-schema", '{"not": {}}', "not cannot be enforced; state what is allowed"),
            ("--json-schema", "{", "the schema is no JSON"),
            ("--grammar", 'root ::= "a', "line 1, column 12 of the grammar"),
        ],
    )
    def test_what_cannot_be_enforced_is_refused_before_a_model_is_loaded(
        self, lattice, tmp_path, option, content, message
    ):
        file = tmp_path / "given"
        file.write_text(content)
        status, out, err = lattice("generate", "--model", "/nowhere", option, str(file), "Y")
        assert (status, out) == (2, "")
        assert message in err

    def test_guesses_change_no_text(self, lattice, drawn, tmp_path):
        repeating = str(write_told_model(tmp_path / "repeating", {97: 98, 98: 32, 32: 97}))
        call = ["generate", "--model", repeating, "--max-tokens", "40", "--json"]
        for sampling in (["--temperature", "0"], ["--seed", "3"]):
            drafted = []
            plain = json.loads(lattice(*call, *sampling, "ab ab ab")[1])
            config = tmp_path / "lattice.toml"
            config.write_text('[generate]\nspeculate = "ngram"\n')
            for options in (["--speculate", "ngram"], ["--config", str(config)], ["--draft-model", repeating]):
                status, out, err = lattice(*call, *sampling, *options, "ab ab ab")
                assert (status, err) == (0, "")
                result = json.loads(out)
                drafted.append(result["drafted_tokens"])
                assert 0 <= result["accepted_tokens"] <= drafted[-1]
                assert (result["text"], result["token_ids"]) == (plain["text"], plain["token_ids"])
            assert plain["drafted_tokens"] == 0
            assert drafted[0] == drafted[1] > 0
        err = lattice("generate", "--model", drawn, "--speculate", "ngram", "--verbose", "--max-tokens", "3", "ab")[2]
        assert "guessed 0, right 0" in err
        out = lattice("chat", "--model", drawn, "--speculate", "ngram", "--max-tokens", "9", "--seed", "1", "ab")[1]
        assert out == lattice("chat", "--model", drawn, "--max-tokens", "9", "--seed", "1", "ab")[1]

    @pytest.mark.parametrize(
        ("options", "status", "message"),
        [
            (["--speculate", "mtp"], 1, "needs heads for further tokens (MTP)"),
            (["--speculate", "self"], 1, "linear layers"),
            (["--speculate", "ngram", "--draft-model", "x"], 2, "exclude each other"),
            (["--speculate", "ngram", "--verify", "distribution"], 2, "draft model"),
            (["--draft-model", "/nowhere/model"], 1, "/nowhere/model"),
        ],
    )
    def test_guesses_that_cannot_be_are_refused(self, lattice, drawn, options, status, message):
        got, out, err = lattice("generate", "--model", drawn, *options, "Y")
        assert (got, out) == (status, "")
        assert message in err

    def test_two_grammars_exclude_each_other(self, lattice, tmp_path):
        status, _, err = lattice("generate", "--model", "/nowhere", "--regex", "a", "--grammar", "x", "Y")
        assert status == 2
        assert "not allowed with" in err

    def test_no_new_tokens_is_an_empty_line(self, lattice, chatting):  # I7
        for command in ("generate", "chat"):
            assert lattice(command, "--model", chatting, "--max-tokens", "0", "Y") == (0, "\n", "")
        _, out, _ = lattice("generate", "--model", chatting, "--max-tokens", "0", "--json", "Y")
        told = json.loads(out)
        assert (told["text"], told["token_ids"], told["finish_reason"]) == ("", [], "length")

    def test_special_tokens_of_a_prompt_are_found_unless_it_is_plain(self, lattice, chatting):
        counts = []
        for options in ([], ["--plain"]):
            arguments = ["generate", "--model", chatting, "--max-tokens", "0", "--json", *options, "a<|end|>b"]
            counts.append(json.loads(lattice(*arguments)[1])["prompt_tokens"])
        assert counts == [3, len("a<|end|>b")]

    def test_a_text_cut_inside_a_character_is_the_same_streamed_or_not(self, lattice, chatting):  # D2
        arguments = ["generate", "--model", chatting, "--temperature", "0", "--max-tokens", "6"]
        assert lattice(*arguments, "Y") == lattice(*arguments, "--stream", "Y") == (0, "es, \ufffd\n", "")
        _, out, _ = lattice(*arguments, "--json", "--stream", "Y")
        *pieces, result = [json.loads(line) for line in out.splitlines()]
        assert "".join(piece["text"] for piece in pieces) == result["text"] == "es, \ufffd"

    def test_json_is_one_object(self, lattice, chatting):
        status, out, err = lattice(
            "generate", "--model", chatting, "--temperature", "0", "--json", "--logprobs", "2", "Y"
        )
        result = json.loads(out)
        assert (status, err, out.count("\n")) == (0, "", 1)
        assert (result["text"], result["finish_reason"], result["stop_token_id"]) == ("es, 😀.", "stop_token", END)
        assert bytes(result["token_ids"]).decode() == "es, 😀."
        assert len(result["logprobs"]) == result["generated_tokens"] == 9

    def test_streamed_json_is_one_object_a_line(self, lattice, chatting):
        _, out, _ = lattice("generate", "--model", chatting, "--temperature", "0", "--json", "--stream", "Y")
        *pieces, result = [json.loads(line) for line in out.splitlines()]
        assert "".join(piece["text"] for piece in pieces) == result["text"] == "es, 😀."
        assert [piece["token_id"] for piece in pieces] == result["token_ids"]

    def test_every_option_reaches_the_sampler(self, lattice, drawn):
        arguments = [
            *["--max-tokens", "9", "--temperature", "1.5", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01"],
            *["--typical-p", "0.98", "--repetition-penalty", "1.2", "--presence-penalty", "0.5"],
            *["--frequency-penalty", "0.25", "--seed", "7", "--stop", "QQ", "--stop", "ZZ", "--cache-type", "float32"],
        ]
        config = GenerateConfig(9, 1.5, 40, 0.95, 0.01, 0.98, 1.2, 0.5, 0.25, seed=7, stop=["QQ", "ZZ"])
        _, out, _ = lattice("generate", "--model", drawn, *arguments, "--json", "hello")
        from lattice_inference.generate.session import SessionConfig

        with load_model(drawn) as model, Session(model, config=SessionConfig(cache_dtype="float32")) as session:
            assert json.loads(out)["token_ids"] == list(session.generate("hello", config).token_ids)

    def test_the_prompt_may_be_a_file_or_standard_input(self, lattice, drawn, tmp_path, typed):
        (tmp_path / "prompt").write_text("line\nline\n")
        arguments = ["generate", "--model", drawn, "--max-tokens", "3", "--temperature", "0", "--json"]
        _, from_file, _ = lattice(*arguments, "--input", str(tmp_path / "prompt"))
        typed("line\nline\n")
        _, from_input, _ = lattice(*arguments, "-")
        assert json.loads(from_file)["prompt_tokens"] == json.loads(from_input)["prompt_tokens"] == 10
        assert json.loads(from_file)["token_ids"] == json.loads(from_input)["token_ids"]

    def test_options_come_from_the_flag_the_environment_the_file_then_the_default(
        self, lattice, drawn, tmp_path, monkeypatch
    ):
        file = tmp_path / "lattice.toml"
        file.write_text(f'model = "{drawn}"\nseed = 1\n[generate]\nmax-tokens = 5\ntemperature = 1.0\n')

        def tokens(*arguments):
            _, out, err = lattice("generate", "--config", str(file), "--json", *arguments, "hello")
            assert err == ""
            return len(json.loads(out)["token_ids"])

        assert tokens() == 5
        monkeypatch.setenv("LATTICE_MAX_TOKENS", "4")
        assert tokens() == 4
        assert tokens("--max-tokens", "3") == 3

    def test_verbose_tells_the_speed_on_standard_error(self, lattice, drawn):
        _, out, err = lattice("generate", "--model", drawn, "--max-tokens", "4", "--seed", "3", "--verbose", "hello")
        assert out
        assert "prompt: 5 tokens" in err
        assert "seed 3" in err

    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [
            (["--temperature", "nan", "x"], 2, "temperature is nan"),
            (["--top-p", "2", "x"], 2, "top_p is 2"),
            (["--max-tokens", "many", "x"], 2, "invalid int value"),
            (["--context", "129", "x"], 2, "129"),
            (["--precision", "int3", "x"], 2, "invalid choice"),
            (["x" * 129], 2, "129"),
            ([""], 2, "no tokens"),
            ([], 2, "no text"),
            (["x", "--input", "y"], 2, "both given"),
            (["--input", "/nowhere/at/all"], 1, "No such file"),
        ],
    )
    def test_a_mistake_is_told_without_a_traceback(self, lattice, drawn, arguments, status, message):
        got, out, err = lattice("generate", "--model", drawn, *arguments)
        assert (got, out) == (status, "")
        assert message in err
        assert "Traceback" not in err

    def test_a_model_that_is_not_there(self, lattice, monkeypatch):
        monkeypatch.setenv("LATTICE_OFFLINE", "1")
        status, out, err = lattice("generate", "--model", "no/such-model", "x")
        assert (status, out) == (1, "")
        assert "no/such-model" in err


class TestChat:
    def test_one_message_is_answered(self, lattice, chatting):
        arguments = ["chat", "--model", chatting, "--temperature", "0", "--system", "Be brief."]
        assert lattice(*arguments, "Hello? 😀") == (0, "Yes, 😀.\n", "")

    def test_special_tokens_of_a_message_are_text_unless_asked_for(self, lattice, chatting):
        counts = []
        for options in ([], ["--special-tokens-in-text"]):
            arguments = ["chat", "--model", chatting, "--temperature", "0", "--json", *options, "a<|end|>b"]
            counts.append(json.loads(lattice(*arguments)[1])["prompt_tokens"])
        assert counts[0] == counts[1] + len("<|end|>") - 1

    def test_lines_are_turns_of_one_conversation(self, lattice, chatting, typed):
        typed("One?\n\nTwo?\n")
        status, out, _ = lattice("chat", "--model", chatting, "--temperature", "0", "--json")
        first, second = [json.loads(line) for line in out.splitlines()]
        assert status == 0
        assert first["text"] == second["text"] == "Yes, 😀."
        assert second["reused_tokens"] == first["prompt_tokens"] + first["generated_tokens"]

    def test_streamed_json_has_a_line_a_token(self, lattice, chatting):
        _, out, _ = lattice("chat", "--model", chatting, "--temperature", "0", "--json", "--stream", "One?")
        *pieces, answer = [json.loads(line) for line in out.splitlines()]
        assert "".join(piece["text"] for piece in pieces) == answer["text"]

    def test_commands_work_in_lines_too(self, lattice, chatting, typed, tmp_path):
        saved = tmp_path / "saved.json"
        typed(
            f"One?\n/system Brief.\nTwo?\n//three\n/undo\n/save {saved}\n/set max_new_tokens 2\nFour?\n/retry\n"
            f"/load {saved}\n/history\n/stats\n/help\n/quit\nnever\n"
        )
        status, out, err = lattice("chat", "--model", chatting, "--temperature", "0")
        assert (status, out) == (0, "Yes, 😀.\nYes, 😀.\nYes, 😀.\nYe\nYe\n")
        messages = [
            {"role": "system", "content": "Brief."},
            {"role": "user", "content": "Two?"},
            {"role": "assistant", "content": "Yes, 😀."},
        ]
        assert json.loads(saved.read_text()) == {"messages": messages}
        assert "system: Brief.\nuser: Two?\nassistant: Yes, 😀.\n" in err
        assert "of 256 tokens" in err
        assert "/retry" in err
        assert [path.name for path in tmp_path.iterdir()] == ["saved.json"]

    @pytest.mark.parametrize(
        "line",
        [
            "/nothing",
            "/set heat 1",
            "/set temperature -1",
            "/set top_k " + "[" * 100_000,
            "/undo",
            "/save",
            "/load /nowhere",
            "/save /no/where",
            "/save ~no-such-user/here",
        ],
    )
    def test_a_command_that_cannot_be_is_told(self, lattice, chatting, typed, line):
        typed(line + "\n")
        status, out, err = lattice("chat", "--model", chatting)
        assert (status, out) == (2, "")
        assert err.startswith("lattice: error: ")

    def test_at_a_terminal_an_interrupt_before_an_answer_ends_no_conversation(self, lattice, chatting, monkeypatch):
        """Such as while a grammar is compiled."""
        ids, calls = Chat.prompt_ids, []

        def interrupted(chat):
            calls.append(chat)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return ids(chat)

        monkeypatch.setattr(Chat, "prompt_ids", interrupted)
        monkeypatch.setattr(sys, "stdin", Terminal("One?\nTwo?\nThree?\n/history\n"))
        status, out, err = lattice("chat", "--model", chatting, "--temperature", "0")
        assert (status, out.count("Yes, 😀.")) == (0, 2)
        assert "(interrupted)" in err
        assert "user: One?\nassistant: Yes, 😀.\nuser: Three?\n" in err

    def test_at_a_terminal_an_error_of_a_message_ends_no_conversation(self, lattice, chatting, monkeypatch):
        lines = "One?\n/set speculate mtp\nTwo?\n/set speculate null\nThree?\n/history\n"
        monkeypatch.setattr(sys, "stdin", Terminal(lines))
        status, out, err = lattice("chat", "--model", chatting, "--temperature", "0")
        assert (status, out.count("Yes, 😀.")) == (0, 2)
        assert "lattice: speculate='mtp' needs" in err
        assert "user: One?\nassistant: Yes, 😀.\nuser: Three?\n" in err

    def test_variables_are_json_or_text(self, lattice, tmp_path):
        template = "{{ messages[-1].content }}{% if long is true %}L{% endif %}{{ style }}"
        model = str(write_told_model(tmp_path, chain("Lab", EOS), template=template))
        arguments = ["chat", "--model", model, "--temperature", "0", "--json"]
        _, out, _ = lattice(*arguments, "--variable", "long=true", "--variable", "style=L", "x")
        assert (json.loads(out)["prompt_tokens"], json.loads(out)["text"]) == (3, "ab")
        assert lattice(*arguments, "--variable", "long", "x")[0] == 2
        status, out, err = lattice(*arguments, "--variable", "long=" + "[" * 100_000, "x")
        assert (status, out) == (2, "")
        assert err == "lattice: error: --variable long: its value nests too many lists or objects\n"

    def test_input_that_is_not_utf8_is_refused(self, lattice, chatting, typed):
        typed(b"\xff\n")
        status, _, err = lattice("chat", "--model", chatting)
        assert status == 2
        assert "not UTF-8 (byte 0xff)" in err

    def test_a_model_without_a_template(self, lattice, tmp_path):
        model = str(write_drawn_model(tmp_path, template=None))
        status, out, err = lattice("chat", "--model", model, "hello")
        assert (status, out) == (1, "")
        assert "no chat template" in err

    @pytest.mark.slow
    def test_at_a_terminal_an_interrupt_ends_the_answer_only(self, tmp_path):
        """The model goes on for ever; the user interrupts it, asks for the history, and ends the conversation."""
        table = np.zeros((VOCAB, VOCAB), np.float32)
        table[:, ord("z")] = 20
        model = write_told_model(tmp_path, table, context=100_000)
        master, slave = pty.openpty()
        command = [sys.executable, "-m", "lattice_inference", "chat", "--model", str(model), "--max-tokens", "99999"]
        process = subprocess.Popen(
            [*command, "--temperature", "0"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # a run of tests in the background of a shell hands down that interrupts are ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(slave)
        seen = b""

        def wait_for(what, after=0):
            nonlocal seen
            end = time.monotonic() + 300
            while what not in seen[after:]:
                assert time.monotonic() < end, seen
                if select.select([master], [], [], 0.1)[0]:
                    seen += os.read(master, 65536)

        try:
            wait_for(b"> ")
            os.write(master, b"Hello?\n")
            wait_for(b"zzzz")
            process.send_signal(signal.SIGINT)
            wait_for(b"(interrupted)")
            os.write(master, b"/history\n")
            wait_for(b"assistant: zzzz")
            wait_for(b"> ", after=seen.rindex(b"assistant: zzzz"))  # a history may be longer than the terminal's buffer
            os.write(master, b"\x04")
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
            os.close(master)


class TestEvaluation:
    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "text"
        path.write_text(TEXT)
        return str(path)

    def test_perplexity_is_that_of_the_api(self, lattice, drawn, file):
        arguments = [*WINDOWS, "--max-tokens", "50", file]
        status, out, err = lattice("perplexity", "--model", drawn, "--json", *arguments)
        with load_model(drawn) as model:
            expected = perplexity(model, TEXT, window=32, stride=16, max_tokens=50)
        told = json.loads(out)
        assert (status, err) == (0, "")
        assert (told["perplexity"], told["nll"], told["tokens"]) == (expected.perplexity, expected.nll, 49)
        _, out, _ = lattice("perplexity", "--model", drawn, *arguments)
        assert out == f"perplexity {expected.perplexity:.4f} ({expected.nll:.6f} nats a token) over 49 tokens\n"

    def test_a_text_can_be_cut_by_characters(self, lattice, drawn, file):
        _, out, _ = lattice("perplexity", "--model", drawn, "--json", *WINDOWS, "--max-characters", "20", file)
        assert json.loads(out)["tokens"] == 19

    def test_a_comparison_is_that_of_the_api(self, lattice, drawn, file, tmp_path):
        other = str(write_drawn_model(tmp_path / "other", seed=1))
        arguments = ["compare-logits", "--model", drawn, "--other", other, *WINDOWS]
        _, out, _ = lattice(*arguments, "--json", file)
        with load_model(drawn) as reference, load_model(other) as model:
            expected = compare_logits(reference, model, TEXT, window=32, stride=16)
        told = json.loads(out)
        assert (told["agreement"], told["mean_kl"]) == (expected.agreement, expected.mean_kl)
        assert (told["reference_perplexity"], told["perplexity"]) == (
            expected.reference_perplexity,
            expected.perplexity,
        )
        assert "% of positions" in lattice(*arguments, file)[1]

    def test_precisions_of_one_model_compare(self, lattice, drawn, file):
        arguments = ["--model", drawn, "--other-precision", "bfloat16", *WINDOWS, "--json"]
        _, out, _ = lattice("compare-logits", *arguments, file)
        assert 0 < json.loads(out)["mean_kl"] < 0.05
        status, _, err = lattice("compare-logits", "--model", drawn, file)
        assert status == 2
        assert "nothing to compare" in err


class TestBench:
    def test_it_tells_speed_and_memory(self, lattice, drawn):
        arguments = ["bench", "--model", drawn, "--prompt-tokens", "64", "--generate-tokens", "16", "--repeat", "1"]
        status, out, err = lattice(*arguments, "--json")
        told = json.loads(out)
        assert (status, err) == (0, "")
        assert told["speed"]["prompt_speed"] > 0
        assert told["speed"]["generate_speed"] > 0
        memory = told["memory"]
        assert memory["weights_packed"] + memory["weights_mapped"] >= 4 * 2 * VOCAB * 32
        assert [entry["layer"] for entry in memory["layers"]] == [None, 0, 1]
        assert sum(sum(v for k, v in entry.items() if k != "layer") for entry in memory["layers"]) == (
            memory["weights_packed"] + memory["weights_mapped"]
        )
        # two layers, keys and values of one head of 16 numbers in two bytes
        assert memory["cache_per_token"] == 2 * 2 * 16 * 2
        _, out, _ = lattice(*arguments, "--layers")
        assert "tokens/s" in out
        assert "outside of layers" in out

    def test_what_does_not_fit_is_refused(self, lattice, drawn):
        status, _, err = lattice("bench", "--model", drawn, "--prompt-tokens", "120")
        assert status == 2
        assert "do not fit" in err


@pytest.mark.parametrize("command", ["generate", "chat", "perplexity", "compare-logits", "bench"])
def test_help_teaches_with_examples(lattice, command):
    status, out, _ = lattice(command, "--help")
    assert status == 0
    assert f"lattice {command} --model" in out
