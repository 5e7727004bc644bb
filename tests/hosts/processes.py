"""Runs of several processes on this machine, over loopback."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(devices, **more):
    """What a process of a run with some virtual devices runs under."""
    flags = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "MPLBACKEND": "Agg", "XLA_FLAGS": flags}
    return {**os.environ, **own, "PYTHONPATH": str(ROOT), **more}


def compiled_once(folder):
    """The variables with which processes share what they compile."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def begun(words, devices=4, **more):
    """A Python process with these arguments, not waited for."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment(devices, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pair(words, **more):
    """Two processes of one program, which get the options of a run of two hosts."""
    named = ["--hosts.coordinator", f"127.0.0.1:{free_port()}", "--hosts.count", "2"]
    return [begun([*words, *named, "--hosts.index", str(index)], **more) for index in range(2)]


def ended(processes, seconds=300):
    """Waits; returns exit status, standard output and standard error of each. What takes too long is killed.

    All are read at once: one that nobody reads would stand still when its pipe is full, and the others with it.
    """

    def wait(process):
        try:
            texts = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            texts = process.communicate()
        return (process.returncode, *texts)

    with ThreadPoolExecutor(len(processes)) as workers:
        return list(workers.map(wait, processes))
