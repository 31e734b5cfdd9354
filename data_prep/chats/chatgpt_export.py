"""ChatGPT's export (conversations.json): one object per conversation, whose `mapping` is a tree of messages with all edited variants."""

from __future__ import annotations

from pydantic import JsonValue

from overtone.finetune.errors import UserError

SKIPPED_CONTENT = frozenset({"user_editable_context", "model_editable_context", "thoughts", "reasoning_recap", "system_error"})
"""Kinds of content that the page does not show as part of the conversation."""
LONGEST_PATH = 10_000
"""Messages of one conversation; more can only be a loop in the tree."""


def read_shown_turns(mapping: JsonValue, current_node: JsonValue) -> list[JsonValue]:
    """Return the messages {role, content} of the path from the root to `current_node`, which is the variant that ChatGPT shows.

    Without `current_node`, the last child is followed. Hidden and empty messages are skipped. Raises `UserError` for a damaged tree, and
    for pictures, files and calls of built-in tools, which the export does not hold completely.
    """
    nodes = {name: node for name, node in mapping.items() if isinstance(node, dict)} if isinstance(mapping, dict) else {}
    if not isinstance(mapping, dict) or len(nodes) < len(mapping) or not nodes:
        raise UserError("mapping must be an object of messages, as in ChatGPT's conversations.json")
    path: list[dict[str, JsonValue]] = []
    name: JsonValue = current_node if isinstance(current_node, str) and current_node in nodes else _find_last_leaf(nodes)
    while name is not None:
        if not isinstance(name, str) or name not in nodes or len(path) > LONGEST_PATH:
            raise UserError("the mapping of ChatGPT's export is damaged: a parent is missing, or its own descendant")
        path.append(nodes[name])
        name = nodes[name].get("parent")
    return [turn for node in reversed(path) if (turn := _read_turn(node.get("message")))]


def _find_last_leaf(nodes: dict[str, dict[str, JsonValue]]) -> str:
    name = next((name for name, node in nodes.items() if node.get("parent") is None), next(iter(nodes)))
    for _ in range(len(nodes)):
        children = nodes[name].get("children")
        last = children[-1] if isinstance(children, list) and children else None
        if not isinstance(last, str) or last not in nodes:
            break
        name = last
    return name


def _read_turn(message: JsonValue) -> dict[str, JsonValue] | None:
    """Return one shown message; None for one that is hidden or empty."""
    if not isinstance(message, dict):
        return None
    author, content, about = (value if isinstance(value := message.get(key), dict) else {} for key in ("author", "content", "metadata"))
    kind, role = content.get("content_type", "text"), author.get("role")
    if about.get("is_visually_hidden_from_conversation") or kind in SKIPPED_CONTENT:
        return None
    if role == "tool" or message.get("recipient", "all") != "all":
        raise UserError("a call of one of ChatGPT's own tools, whose definition the export does not hold")
    parts = content.get("parts", [content.get("text", "")])
    texts = [part for part in parts if isinstance(part, str)] if isinstance(parts, list) else []
    if kind != "text" or not isinstance(parts, list) or len(texts) < len(parts):
        raise UserError(f"a message of ChatGPT's content type {kind!r:.40}, which is not text")
    text = "\n".join(texts)
    return {"role": role, "content": text} if text.strip() else None
