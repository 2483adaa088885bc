"""The vLLM plugin (entry point ``vllm.general_plugins``)."""
