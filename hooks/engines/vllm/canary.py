"""The canary: a few greedy tokens of a fixed prompt, computed by the engine itself."""

from __future__ import annotations

from typing import Any

from hotstart import reasons
from hotstart.errors import HotstartError
from hotstart.hooks.control.protocol import Canary, CanaryToken
from hotstart.hooks.engines.vllm import compat

_REQUEST = "hotstart-canary"


async def compute(client: Any, prompt: str, count: int) -> Canary:
    """Have ``client`` (an AsyncLLM) continue ``prompt`` by ``count`` tokens; nobody else may be asking it.

    The prefix cache is cleared afterwards, so that users do not hit the canary in it.  (A prompt shorter than a block
    is never cached, but the block size is the user's to choose.)  vLLM's own metrics count the request.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    wanted = SamplingParams(
        temperature=0.0,
        max_tokens=count,
        min_tokens=count,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    last = None
    async for output in client.generate(prompt, wanted, _REQUEST):
        last = output
    if last is None or not last.outputs or len(last.outputs[0].token_ids) != count:
        raise HotstartError(reasons.INTERNAL, f"the engine did not answer the canary with {count} tokens")
    await compat.reset_prefix_cache(client)
    answer = last.outputs[0]
    return Canary(
        prompt,
        tuple(
            CanaryToken(int(token), float(logprobs[token].logprob))
            for token, logprobs in zip(answer.token_ids, answer.logprobs, strict=True)
        ),
    )
