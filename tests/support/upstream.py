"""A scripted upstream: a server of chat completions that says what it is told to, counts tokens and logs requests."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from tests.support.http_servers import JsonHandler, Server

Body = dict[str, Any]


@dataclass
class Upstream:
    """An upstream on a port of its own.

    Attributes:
        says: Returns the text for a request, or the whole message.
        spoilt: Replies for the next requests, in place of a completion: status, content and headers; or `hang`, or
            `hang-up`.
        key: The API key that it asks for; empty for none.
        models: The models that it has.
        lacks: Fields of a request that it refuses, or ignores, as `logprobs`; `usage` in streams.
        paced: Called before each chunk of a stream with the request and the number of the chunk, from 0.
        breaks: The number of the chunk at which the next stream breaks off; None for never.
        listing: What it says of each of them in its list, by name.
        info: What it says of them as LiteLLM's proxy does, at `/model/info`; None if it is no such proxy.
        log: What it replied to with a completion: the request, with the usage that it was billed.
        requests: Bodies of all requests for completions.
        headers: Their headers.
    """

    says: Callable[[Body], str | Body] = lambda body: "So \\boxed{5}"
    spoilt: list[Any] = field(default_factory=list)
    key: str = ""
    models: tuple[str, ...] = ("hosted",)
    lacks: tuple[str, ...] = ()
    paced: Callable[[Body, int], object] = lambda body, chunk: None
    breaks: int | None = None
    listing: dict[str, Body] = field(default_factory=dict)
    info: list[Body] | None = None
    log: list[tuple[Body, dict[str, int]]] = field(default_factory=list)
    requests: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        outer, self.lock, self.hung = self, Lock(), Event()

        class Handler(JsonHandler):
            def do_GET(self) -> None:
                if not outer.allows(self.headers):
                    return self.reply({"error": {"message": "no such key"}}, 401)
                if self.path == "/model/info":
                    return self.reply({"data": outer.info} if outer.info else {}, 200 if outer.info else 404)
                listed = [{"id": name, **outer.listing.get(name, {})} for name in outer.models]
                return self.reply({"object": "list", "data": listed})

            def do_POST(self) -> None:
                body = self.body()
                with outer.lock:
                    outer.requests.append(body)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    spoil = outer.spoilt.pop(0) if outer.spoilt else None
                if spoil == "hang-up":
                    self.close_connection = True
                    return None
                if spoil == "hang":
                    outer.hung.wait(30)
                    self.close_connection = True
                    return None
                if isinstance(spoil, tuple):
                    status, content, headers = spoil
                    return self.reply(content, status, headers)
                if not outer.allows(self.headers):
                    return self.reply({"error": {"message": "no such key"}}, 401)
                if body["model"] not in outer.models:
                    return self.reply({"error": {"message": f"no model {body['model']}"}}, 404)
                if refused := [name for name in outer.lacks if name in body and name != "logprobs"]:
                    return self.reply({"error": {"message": f"no {refused[0]}"}}, 400)
                if body.get("stream"):
                    return self.stream(body)
                return self.reply(outer.completion(body))

            def stream(self, body: Body) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                broken, outer.breaks = outer.breaks, None
                for number, event in enumerate([*outer.chunks(body), "[DONE]"]):
                    outer.paced(body, number)
                    if number == broken:
                        self.close_connection = True
                        return
                    raw = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
                self.wfile.write(b"0\r\n\r\n")

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = self.server.url
        self.server.listen()

    def allows(self, headers: Any) -> bool:
        """Return whether a request has the key."""
        return not self.key or headers.get("authorization") == f"Bearer {self.key}"

    def completion(self, body: Body) -> Body:
        """Return a completion: a word is a token, and one that has more than it may is cut."""
        most = body.get("max_tokens", body.get("max_completion_tokens", 1 << 20))
        choices, count = [], 0
        for index in range(body.get("n", 1)):
            said = self.says(body)
            words = said.split(" ") if isinstance(said, str) else ["call"]
            count += len(words[:most])
            finish = "length" if len(words) > most else "stop"
            message: Body = {"role": "assistant", "content": " ".join(words[:most])}
            if not isinstance(said, str):
                finish, message = "tool_calls" if said.get("tool_calls") else "stop", said
            choice = {"index": index, "message": message, "finish_reason": finish}
            if body.get("logprobs") and "logprobs" not in self.lacks:
                choice["logprobs"] = {"content": [{"token": word, "logprob": -0.5} for word in words[:most]]}
            choices.append(choice)
        prompt = sum(len(str(each["content"] or "").split()) + 4 for each in body["messages"])
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        with self.lock:
            self.log.append((body, usage))
        return {"id": "c", "object": "chat.completion", "choices": choices, "usage": usage}

    def chunks(self, body: Body) -> list[Body]:
        """Return the chunks of a completion: a word each, a call in two, the reason it ended, and the usage."""
        made = self.completion(body)
        [choice] = made["choices"]
        message, logprobs = choice["message"], (choice.get("logprobs") or {}).get("content", [])
        deltas: list[Body] = [{"role": "assistant", "content": ""}]
        words = (message.get("content") or "").split(" ")
        deltas += [{"content": f" {word}" if at else word} for at, word in enumerate(words) if word or at]
        for at, call in enumerate(message.get("tool_calls") or ()):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            first = {**call, "index": at, "function": {"name": name, "arguments": arguments[:3]}}
            deltas.append({"tool_calls": [first]})
            deltas.append({"tool_calls": [{"index": at, "function": {"arguments": arguments[3:]}}]})
        found = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        for each, logprob in zip(found[1:], logprobs, strict=False):
            each["choices"][0]["logprobs"] = {"content": [logprob]}
        found.append({"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
        if (body.get("stream_options") or {}).get("include_usage") and "usage" not in self.lacks:
            found.append({"choices": [], "usage": made["usage"]})
        return found

    def close(self) -> None:
        """End it."""
        self.hung.set()
        self.server.close()
