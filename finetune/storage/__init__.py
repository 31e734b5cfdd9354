"""Files, local and remote; strict JSON; downloads; model folders checked before they are read; the demo models."""
