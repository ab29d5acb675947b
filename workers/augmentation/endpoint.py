"""An OpenAI-compatible endpoint: chat completions over HTTP, with bounded retries."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx
from django.conf import settings

from workers.augmentation.registry import MethodError

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
NUM_TRIES = 4
BUSY = (408, 409, 425, 429, 500, 502, 503, 504)


class EndpointBusy(Exception):
    """The endpoint does not answer now; later it may."""


@dataclass(frozen=True)
class Endpoint:
    """`base_url` ends before `/chat/completions`, as in http://host/v1."""

    base_url: str
    model: str
    api_key: str = ""

    @classmethod
    def from_settings(cls) -> Endpoint:
        return cls(settings.OPENAI_BASE_URL.rstrip("/"), settings.OPENAI_MODEL, settings.OPENAI_API_KEY)

    @property
    def generator(self) -> str:
        return f"endpoint:{self.model}"

    def complete(self, prompts: list[str], *, seed: int, temperature: float, max_tokens: int) -> list[str]:
        """One answer per prompt, each with its own seed. Raises `MethodError` where asking again would not help."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        with httpx.Client(timeout=TIMEOUT, headers=headers) as client:
            return [
                self._one(client, prompt, (seed + number) % 2**31, temperature, max_tokens)
                for number, prompt in enumerate(prompts)
            ]

    def _one(self, client: httpx.Client, prompt: str, seed: int, temperature: float, max_tokens: int) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
        }
        said = "no answer"
        for number in range(NUM_TRIES):
            try:
                reply = client.post(f"{self.base_url}/chat/completions", json=body)
            except httpx.TransportError as error:
                said = type(error).__name__
            else:
                if reply.status_code == 200:
                    return _content(reply)
                said = f"status {reply.status_code}"
                if reply.status_code not in BUSY:
                    raise MethodError(f"The endpoint {self.base_url} refused: {said}: {reply.text[:200]}")
                if (wait := reply.headers.get("Retry-After", "")).isdigit():
                    time.sleep(min(float(wait), 10.0))
                    continue
            time.sleep(min(0.25 * 2**number, 2.0))
        raise EndpointBusy(f"The endpoint {self.base_url} does not answer ({said}).")


def _content(reply: httpx.Response) -> str:
    try:
        content = reply.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise MethodError(f"The endpoint's answer is not a chat completion: {reply.text[:200]}") from error
    return content if isinstance(content, str) else ""
