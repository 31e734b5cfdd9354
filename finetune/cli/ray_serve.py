"""overtone ray-serve --model MODEL [--model MODEL …] [--replicas N] …

Serves exported models as replicas on a Ray cluster, with the API, access control and limits of `overtone serve`. Each machine of the
cluster listens at the same port, and sends a request to the replica with fewer requests. Ray restarts a replica that died.

  --replicas N             number of replicas (default 1); N:M starts N, and up to M under load
  --use-gpu auto           a GPU for each replica: auto (if the cluster has any), true or false, which takes a CPU
  --ray-address HOST:PORT  which cluster; auto: the one that runs here; local: a new one (default: RAY_ADDRESS, else auto, else local)
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.argument_parsing import also_known
from overtone.finetune.cli.generate import MODEL_FLAGS, ensure_exported, find_model, parse_model_arguments
from overtone.finetune.cli.serve import find_shared_recipe
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError, catch_user_errors, format_count
from overtone.finetune.pages import web_server
from overtone.finetune.ray_cluster import cluster_checks, cluster_connection
from overtone.finetune.ray_cluster.verb_arguments import USE_GPU, parse_choice
from overtone.finetune.recipe import find_recipe, load_inference
from overtone.finetune.terminal import announce_torch, print_line

if TYPE_CHECKING:
    from overtone.finetune.ray_cluster.serving_replica import ReplicaArguments
    from overtone.finetune.recipe import ReplicaPlan

CONTROLLER = ("SERVE_CONTROLLER_ACTOR", "serve")
"""Name and namespace of the actor that every Ray Serve has."""
APPLICATION = "overtone"
"""Name of the application in Ray Serve."""
POLL_SECONDS = 0.2
PROXY_START = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120"}
"""Time for a proxy to start. Ray's own is 5 s, within which a busy machine does not import Ray Serve; the server then would not start."""
SPARE = 8
"""Requests of a replica besides those that it answers and those that wait: of its state, and those that it refuses because it is full."""


@dataclass(frozen=True)
class ReplicaCount:
    """The number of replicas, and where they run."""

    fewest: int
    most: int
    gpu: bool | None
    """True if each takes a GPU; None: if the cluster has any."""
    address: str | None


@catch_user_errors
@also_known(*MODEL_FLAGS, "--replicas", "--use-gpu", "--ray-address")
def main(argv: list[str]) -> int:
    """Serve the models on the command line until SIGTERM or Ctrl-C; returns the exit code. Raises `UserError`, before Ray starts, for what
    cannot be served."""
    given = parse_model_arguments("ray-serve", __doc__, argv)
    if given is None:
        return 0
    count, rest = parse_replicas(given.rest)
    found = {model: find_model(model, given.recipe, rest) for model in given.models}
    name = find_shared_recipe({model: recipe for model, (_, recipe) in found.items()})
    make_plan = load_inference(find_recipe(name)).plan_replica
    if make_plan is None:
        raise UserError(
            f"the recipe {name} has no server with replicas; start one with `{overtone_command('serve', '--model', given.models[0])}`"
        )
    require_ray_serve()
    announce_torch(", ".join(given.models))
    folders = {model: ensure_exported(folder, name, given.strength).absolute() for model, (folder, _) in found.items()}
    plan = make_plan(folders, rest, os.environ)
    web_server.require_free_port(plan.port, plan.host)
    from overtone.finetune.ray_cluster.serving_replica import ReplicaArguments

    paths = {model: str(folder) for model, folder in folders.items()}
    with cluster_connection.connect(count.address):
        serve_on_cluster(count, plan, ReplicaArguments(name, paths, rest, plan.secrets, str(Path.cwd())))
    print_line("serve: stopped")
    return 0


def parse_replicas(rest: list[str]) -> tuple[ReplicaCount, list[str]]:
    """Split the arguments into those of this verb and those of the recipe. Raises `UserError` for a number that is none."""
    parser = argparse.ArgumentParser("overtone ray-serve", add_help=False, allow_abbrev=False)
    parser.add_argument("--replicas", default="1")
    parser.add_argument("--use-gpu", default="auto")
    parser.add_argument("--ray-address")
    own, others = parser.parse_known_args(rest)
    number = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", own.replicas)
    if number is None or not 1 <= int(number[1]) <= int(number[2] or number[1]):
        raise UserError(f"--replicas {own.replicas}: expected a number (2) or a range (1:8), of which Ray starts more under load")
    gpu = parse_choice("use-gpu", own.use_gpu, USE_GPU)
    return ReplicaCount(int(number[1]), int(number[2] or number[1]), gpu, own.ray_address), others


def require_ray_serve() -> None:
    """Raises `UserError` if Ray or a package that its Serve needs is missing."""
    missing = [name for name in ("ray", "grpc_reflection", "watchfiles", "mmh3") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Ray Serve needs {', '.join(missing)}, which is not installed; install on every machine of the cluster with: "
            "pip install 'overtone[ray-serve]'"
        )


def serve_on_cluster(count: ReplicaCount, plan: ReplicaPlan, arguments: ReplicaArguments) -> None:
    """Serve on the connected cluster until SIGTERM or Ctrl-C. Raises `UserError` if the cluster cannot."""
    import ray
    from ray import serve

    from overtone.finetune.ray_cluster.serving_replica import ServingReplica

    each = cluster_checks.choose_worker_resources(count.gpu)
    cluster_checks.require_resources(count.fewest, each, f"--replicas {count.fewest}")
    cluster_checks.check_machines([Path(arguments.place), *(path.absolute() for path in plan.files)])
    try:
        ray.get_actor(*CONTROLLER)
    except ValueError:
        pass
    else:
        raise UserError(
            "Ray Serve runs on this cluster already, at its own address; stop it with `serve shutdown`, or choose another cluster"
        )
    resources = {"num_gpus": each["GPU"]} if "GPU" in each else {"num_cpus": each["CPU"]}
    replicas: dict[str, object] = {"num_replicas": count.fewest}
    if count.most > count.fewest:
        scaling = {"min_replicas": count.fewest, "max_replicas": count.most, "target_ongoing_requests": plan.slots}
        replicas = {"autoscaling_config": scaling}
    deployment = serve.deployment(
        serve.ingress()(ServingReplica),
        ray_actor_options=resources,
        max_ongoing_requests=plan.slots + plan.room + SPARE,
        graceful_shutdown_timeout_s=plan.drain_seconds,
        **replicas,
    )
    number = format_count(count.fewest, "replica") if count.fewest == count.most else f"{count.fewest} to {count.most} replicas"
    host = f"[{plan.host}]" if ":" in plan.host else plan.host
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the replicas are ready, as Ctrl-C; Ray's own handler exits with 15
    try:
        start_replicas(plan, deployment.bind(arguments))
        print_line(f"serve: http://{host}:{plan.port}/v1 on {number}   (stop with Ctrl-C)")
        wait_for_stop(plan.drain_seconds)
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):  # another signal would leave the replicas running
            signal.signal(one, signal.SIG_IGN)
        serve.shutdown()


def start_replicas(plan: ReplicaPlan, bound: object) -> None:
    """Start the proxies and the replicas, and wait until they are ready. Raises `UserError` if they are not."""
    from ray import serve
    from ray.exceptions import RayError

    try:
        serve.start(
            proxy_location="EveryNode",
            http_options={"host": plan.host, "port": plan.port},
            controller_options={"runtime_env": {"env_vars": PROXY_START}},
        )
        serve.run(bound, name=APPLICATION, route_prefix="/")
    except (RuntimeError, TimeoutError, RayError) as error:
        raise UserError(f"the replicas did not start: {error}; `overtone serve` with the same arguments shows the problem here") from None


def wait_for_stop(drain_seconds: float) -> None:
    """Wait for a signal. After SIGTERM, refuse new requests, and wait until the replicas have completed theirs, for at most
    `drain_seconds` or until Ctrl-C. `serve.shutdown` alone would close the connections of the proxies at once."""
    from ray import serve

    stopped, hurried = threading.Event(), threading.Event()

    def stop(number: int, _: object) -> None:
        if number == signal.SIGINT:
            hurried.set()
        stopped.set()

    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, stop)
    stopped.wait()
    if hurried.is_set():
        return
    print_line(f"serve: completing the requests of the replicas, for at most {drain_seconds:g} s (Ctrl-C stops at once)")
    serve.delete(APPLICATION, _blocking=False)
    deadline = time.monotonic() + drain_seconds
    while APPLICATION in serve.status().applications and time.monotonic() < deadline and not hurried.wait(POLL_SECONDS):
        pass
