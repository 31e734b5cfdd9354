"""The types of `state.json` have the keys that its schema checks."""

from __future__ import annotations

from overtone.finetune.checkpointing import checkpoint_metadata
from overtone.finetune.recipe import checkpoint_state


def test_types_and_schema_have_the_same_keys() -> None:
    pairs = [
        (checkpoint_state.CheckpointState, checkpoint_metadata.State),
        (checkpoint_state.BaseState, checkpoint_metadata.BaseDigest),
        (checkpoint_state.DataState, checkpoint_metadata.DataDigest),
        (checkpoint_state.SourceState, checkpoint_metadata.SourceDigest),
    ]
    for types, schema in pairs:
        assert [*types.__annotations__] == [*schema.model_fields]
