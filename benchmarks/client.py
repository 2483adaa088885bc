"""An OpenAI-style client that measures: time to first token, answers as token ids with log-probabilities."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any

PORT = 8000
_RETRY_S = 0.005


@dataclass(frozen=True)
class Answer:
    """What the worker said: text, token ids and the log-probability of each token."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def complete(address: str, prompt: str, tokens: int, *, port: int = PORT, timeout_s: float = 120.0) -> Answer:
    """One greedy completion; raises OSError or http.client.HTTPException when the worker does not answer."""
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "logprobs": 1,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    choice = _post(address, port, "/v1/completions", body, timeout_s)["choices"][0]
    return Answer(choice["text"], tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]))


def chat(address: str, question: str, *, port: int = PORT, timeout_s: float = 120.0) -> str:
    """One greedy answer to a question."""
    body = {"model": "m", "messages": [{"role": "user", "content": question}], "max_tokens": 32, "temperature": 0}
    return str(_post(address, port, "/v1/chat/completions", body, timeout_s)["choices"][0]["message"]["content"])


def first_token(address: str, prompt: str, began: float, *, port: int = PORT, limit_s: float = 300.0) -> float:
    """Seconds from ``began`` (monotonic) to the first token; connects again and again until the worker listens."""
    while True:
        try:
            complete(address, prompt, 1, port=port, timeout_s=limit_s)
            return time.monotonic() - began
        except (ConnectionError, http.client.HTTPException):
            if time.monotonic() - began > limit_s:
                raise
            time.sleep(_RETRY_S)


def _post(address: str, port: int, path: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json", "connection": "close"})
        response = connection.getresponse()
        data = response.read()
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"status {response.status}: {data[:300]!r}")
        answer: dict[str, Any] = json.loads(data)
        return answer
    finally:
        connection.close()
