"""Overtone: fine-tuning of speech and language models. Importing this package loads nothing heavy.

The functions here do what the commands do. Each loads what it needs when it is called.
"""

from overtone.dataset_preparation import ChatDataset, EncodedDataset, VoiceDataset, add_codes, prepare_chats, prepare_voice, write_report
from overtone.evaluation import VoiceEvaluation, evaluate
from overtone.exporting import export
from overtone.finetune.errors import UserError
from overtone.loading import ChatModel, ChatReply, Speech, VoiceModel, load_chat, load_voice
from overtone.planning import TrainingPlan, plan
from overtone.selection import CheckpointSelection, select
from overtone.training import TrainingRun, open_run, train
from overtone.version import __version__ as __version__

__all__ = [
    "ChatDataset",
    "ChatModel",
    "ChatReply",
    "CheckpointSelection",
    "EncodedDataset",
    "Speech",
    "TrainingPlan",
    "TrainingRun",
    "UserError",
    "VoiceDataset",
    "VoiceEvaluation",
    "VoiceModel",
    "add_codes",
    "evaluate",
    "export",
    "load_chat",
    "load_voice",
    "open_run",
    "plan",
    "prepare_chats",
    "prepare_voice",
    "select",
    "train",
    "write_report",
]
