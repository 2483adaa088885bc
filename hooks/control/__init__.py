"""The control protocol between the agent and a sandbox: the only part of ``hooks`` that the agent may import."""
