"""The canary: a few greedy tokens of a fixed prompt, computed by the engine itself."""

from __future__ import annotations

import functools
import os
import shutil
import sysconfig
from pathlib import Path
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

    Without a C++ compiler the tokens are told with a log-probability of 0: see ``can_tell_logprobs``.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    wanted = SamplingParams(
        temperature=0.0,
        max_tokens=count,
        min_tokens=count,
        ignore_eos=True,
        logprobs=0 if can_tell_logprobs() else None,
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
    told = answer.logprobs or [None] * count
    return Canary(
        prompt,
        tuple(
            CanaryToken(int(token), float(logprobs[token].logprob) if logprobs else 0.0)
            for token, logprobs in zip(answer.token_ids, told, strict=True)
        ),
    )


@functools.cache
def can_tell_logprobs() -> bool:
    """Whether the engine survives a request for log-probabilities.

    On a CPU vLLM compiles a kernel at the first such request, and its engine process dies where there is no C++
    compiler or no Python.h.  The answer is remembered: a copy must compute its canary as the source did, wherever it
    wakes up.
    """
    compiler = os.environ.get("CXX") or "g++"
    return shutil.which(compiler) is not None and Path(sysconfig.get_path("include"), "Python.h").exists()
