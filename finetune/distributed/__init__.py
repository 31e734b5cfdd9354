"""Process groups, sharding (FSDP2), data and tensor parallelism, activation checkpointing."""
