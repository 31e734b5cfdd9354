"""The event log, heartbeats of ranks, stop requests, and loss spikes."""
