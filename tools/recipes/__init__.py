"""Programs that run in the vLLM environment to make models; never imported by the tools themselves."""
