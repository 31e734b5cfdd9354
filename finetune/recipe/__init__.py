"""The contract of a recipe; `contract.py` has it whole. Recipes and the engine import it from here.

- `contract.py`: `Recipe`, what a recipe must give; `samples.py`, `loaded_model.py` and `export_plan.py`: what its functions take and return
- `recipe_state.py`: what it stores with a checkpoint; `checkpoint_state.py`: what the engine stores beside it
- `inference.py`: uses of an exported model
- `rollouts.py`: batches that depend on the current weights
- `planning.py`: what `plan` needs
- `discovery.py`: how a recipe is found by its name or folder
"""

from overtone.finetune.recipe.checkpoint_state import CheckpointState
from overtone.finetune.recipe.contract import Recipe
from overtone.finetune.recipe.discovery import (
    built_in_recipes,
    choose_recipe,
    find_recipe,
    load_data_preparation,
    load_inference,
    load_options,
    load_recipe,
    load_released_models,
    recipe_arguments,
)
from overtone.finetune.recipe.export_plan import Conversion, ExportPlan
from overtone.finetune.recipe.inference import Answer, Inference, MeasuredAnswers, PreparedMetrics, ReplicaPlan, SampleMetrics
from overtone.finetune.recipe.loaded_model import (
    BASE_DISTANCE,
    BASE_STATES,
    DIVERGENCE,
    REFERENCE,
    BaseDistance,
    Divergence,
    Loaded,
    PredictionCache,
    Reference,
)
from overtone.finetune.recipe.planning import ReleasedModel, Sketch
from overtone.finetune.recipe.recipe_state import RecipeState, parse_recipe_state
from overtone.finetune.recipe.rollouts import (
    AnswerRecord,
    LoggedRollout,
    PromptRow,
    Rollout,
    RolloutRecord,
    Rollouts,
    RolloutSettings,
    RolloutWorker,
)
from overtone.finetune.recipe.samples import (
    POSITIONS,
    Batch,
    ContextLimits,
    ContextRows,
    DataPreparation,
    OptionsT,
    ProcessorT,
    Row,
    RowPlace,
    Sample,
    Term,
)

__all__ = [
    "BASE_DISTANCE",
    "BASE_STATES",
    "DIVERGENCE",
    "POSITIONS",
    "REFERENCE",
    "Answer",
    "AnswerRecord",
    "BaseDistance",
    "Batch",
    "CheckpointState",
    "ContextLimits",
    "ContextRows",
    "Conversion",
    "DataPreparation",
    "Divergence",
    "ExportPlan",
    "Inference",
    "Loaded",
    "LoggedRollout",
    "MeasuredAnswers",
    "OptionsT",
    "PredictionCache",
    "PreparedMetrics",
    "ProcessorT",
    "PromptRow",
    "Recipe",
    "RecipeState",
    "Reference",
    "ReleasedModel",
    "ReplicaPlan",
    "Rollout",
    "RolloutRecord",
    "RolloutSettings",
    "RolloutWorker",
    "Rollouts",
    "Row",
    "RowPlace",
    "Sample",
    "SampleMetrics",
    "Sketch",
    "Term",
    "built_in_recipes",
    "choose_recipe",
    "find_recipe",
    "load_data_preparation",
    "load_inference",
    "load_options",
    "load_recipe",
    "load_released_models",
    "parse_recipe_state",
    "recipe_arguments",
]
