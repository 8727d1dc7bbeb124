"""A small server: the page, models named at start, saved traces. Needs `regard[viewer]`."""

from regard.viewer.server.limits import Limits
from regard.viewer.server.models.served_model import Draft, PromptTokens, ServedModel, Step
from regard.viewer.server.uvicorn_server import serve

__all__ = ["Draft", "Limits", "PromptTokens", "ServedModel", "Step", "serve"]
