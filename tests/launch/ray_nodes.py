"""A real Ray cluster of one or more nodes on this machine, that leaves nothing behind: no process, no file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

from tests import loopback
from tests.launch.launching import ALONE

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # a token would be written to the home folder
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",  # importing torch takes long on a machine that others use too
    "RAY_worker_niceness": "0",  # Ray's 15 starves its workers on a machine that others use too
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",  # as for the workers of a training
}


@contextlib.contextmanager
def cluster(*cpus: int, takes_jobs: bool = False) -> Iterator[Cluster]:
    """A head node with so many CPUs, and further nodes with theirs. Asserts that none of its processes is left afterwards.

    To take jobs it needs Ray's dashboard, which takes seconds to start; its address is `webui_url`.
    """
    before, others = dict(os.environ), set(family())
    os.environ.update({**ALONE, **QUIET})
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: a socket's path has at most 107 bytes
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)  # where it notes the address of the newest cluster, in /ray, which must be there
    nodes = Cluster()
    started = list[psutil.Process]()
    try:
        for number, count in enumerate(cpus):
            dashboard = {"include_dashboard": takes_jobs and number == 0, "dashboard_port": 0}
            if takes_jobs:  # the agent takes them; the default port may be that of another cluster
                dashboard["dashboard_agent_listen_port"] = loopback.free_port()
            nodes.add_node(num_cpus=count, object_store_memory=80 * 2**20, temp_dir=str(folder / "ray"), **dashboard)
        started += [process for process in family() if process not in others]
        yield nodes
    finally:
        started += [process for process in family() if process not in others]
        nodes.shutdown()
        os.environ.clear()
        os.environ.update(before)
        _, left = psutil.wait_procs(started, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
        left = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
        for process in left:  # a node that did not come up is none that is shut down
            process.kill()
        assert len(started) >= 3 and not left, left


def family() -> list[psutil.Process]:
    """All that this process started, and what they started."""
    return psutil.Process().children(recursive=True)


def workers(name: str) -> list[psutil.Process]:
    """Those of the open cluster that Ray has given a title with `name` in it."""
    found = []
    for process in family():
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            if title.startswith("ray::") and name in title:
                found.append(process)
    return found


def ray_train(nodes: Cluster, *arguments: object) -> list[str]:
    """The command that trains on a cluster."""
    return [sys.executable, "-m", "finetune", "ray-train", "--ray-address", nodes.address, *map(str, arguments)]
