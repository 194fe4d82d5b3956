"""The loops of OpenAI's and LangChain's own clients call tools of a server; ``nox -s clients`` runs them.

A scripted model calls, gets the results and answers, in the format of each chat template.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import uvicorn

from lattice_inference import Engine, EngineConfig, load_model
from lattice_inference.serve import create_app
from lattice_inference.serve.server import listen
from tiny_decoders import write_drawn_model

from .conftest import written
from .scripted_models import RESULT, ScriptedModel

openai = pytest.importorskip("openai")

FOLDER = Path(__file__).parents[1] / "data" / "chat" / "tools"
FORMATS = ["hermes", "qwen3-coder", "llama3", "mistral", "mistral-args"]
ANSWER = "It is 12 degrees in Tromsø 😀."
ONE = [("weather", {"city": 'Tromsø </tool_call> "x" [ARGS] 😀'})]
SEVERAL = [*ONE, ("add", {"a": 2, "b": -3.5}), ("weather", {"city": "Oslo\\\n{}"})]
LOOPS = [(name, calls) for name in FORMATS for calls in (ONE, SEVERAL) if name != "llama3" or calls is ONE]
THINKS_NOT = {"chat_template_kwargs": {"enable_thinking": False}}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def run_tool(name: str, arguments: dict) -> str:
    return f"{RESULT} {name} {sorted(arguments.items())}"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model for each format, each with its script of one call and of several, and the server's address."""
    scripts, engines, models = [], {}, []
    for name in FORMATS:
        template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        for label, calls in (("one", ONE), ("several", SEVERAL)):
            folder = tmp_path_factory.mktemp(f"{name}-{label}")
            models.append(load_model(write_drawn_model(folder, context=8192, template=template)))
            scripts.append(ScriptedModel(models[-1], written(name, calls), ANSWER))
            engines[f"{name}-{label}"] = Engine(models[-1], EngineConfig(page_tokens=16))
    listener = listen("127.0.0.1", 0, has_keys=False)
    server = uvicorn.Server(uvicorn.Config(create_app(models=engines), log_config=None, lifespan="on"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join(30)
    for engine in engines.values():
        engine.close()
    for script, model in zip(scripts, models, strict=True):
        script.close()
        model.close()


def label(name: str, calls: list) -> str:
    return f"{name}-{'one' if calls is ONE else 'several'}"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("name", "calls"), LOOPS)
def test_openais_own_loop(served, name, calls, streamed):
    """Pydantic's classes become tools, and the client reads the calls, in pieces and at once."""
    pydantic = pytest.importorskip("pydantic")
    weather = pydantic.create_model("weather", city=(str, ...))
    add = pydantic.create_model("add", a=(int, ...), b=(float, ...))
    tools = [openai.pydantic_function_tool(tool) for tool in (weather, add)]
    made, texts = [], []
    with openai.OpenAI(base_url=served, api_key="none", max_retries=0) as client:
        messages: list = [{"role": "user", "content": "What is the weather?"}]
        for _ in range(3):
            asked = {"model": label(name, calls), "messages": messages, "tools": tools, "temperature": 0}
            asked["extra_body"] = THINKS_NOT
            if streamed:
                with client.chat.completions.stream(**asked) as stream:
                    for event in stream:
                        if event.type == "content.delta":
                            texts.append(event.delta)
                    answer = stream.get_final_completion().choices[0]
            else:
                answer = client.chat.completions.parse(**asked).choices[0]
            if answer.finish_reason == "stop":
                break
            assert answer.finish_reason == "tool_calls"
            assert not answer.message.content
            messages.append(answer.message)
            for call in answer.message.tool_calls:
                arguments = call.function.parsed_arguments.model_dump()
                made.append((call.function.name, arguments))
                assert json.loads(call.function.arguments) == arguments
                content = run_tool(call.function.name, arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    assert made == calls
    assert answer.message.content == ANSWER
    assert not streamed or "".join(texts) == ANSWER


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("name", "calls"), LOOPS)
@pytest.mark.filterwarnings("ignore")
def test_langchains_own_loop(served, name, calls, streamed):
    langchain_openai = pytest.importorskip("langchain_openai")
    agents = pytest.importorskip("langchain.agents")
    made = []

    def weather(city: str) -> str:
        """Tell the weather."""
        made.append(("weather", {"city": city}))
        return run_tool("weather", {"city": city})

    def add(a: int, b: float) -> str:
        """Add two numbers."""
        made.append(("add", {"a": a, "b": b}))
        return run_tool("add", {"a": a, "b": b})

    model = langchain_openai.ChatOpenAI(
        base_url=served, api_key="none", model=label(name, calls), temperature=0, max_retries=0,
        extra_body=THINKS_NOT, streaming=streamed,
    )  # fmt: skip
    agent = agents.create_agent(model, [weather, add])
    given = {"messages": [{"role": "user", "content": "What is the weather?"}]}
    if streamed:
        pieces = [piece for piece, _ in agent.stream(given, stream_mode="messages") if piece.type != "tool"]
        assert "".join(piece.content for piece in pieces if isinstance(piece.content, str)) == ANSWER
    else:
        assert agent.invoke(given)["messages"][-1].content == ANSWER
    assert sorted(made, key=str) == sorted(calls, key=str)  # tools run in parallel
