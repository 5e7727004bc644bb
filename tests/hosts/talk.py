"""Two processes say what they see of each other; `test_talk` runs this and reads it."""

import json
import sys

import jax
import numpy as np
import tyro
from jax.sharding import NamedSharding, PartitionSpec

from grpo_jax import hosts
from grpo_jax.sharding import batch_sharding, make_mesh


def refused(index):
    """What every host is told where some fail."""
    try:
        with hosts.together():
            if hosts.index() >= index:
                raise KeyError(f"row {hosts.index()}")
    except hosts.HostFailed as error:
        return str(error)
    return None


def main(place: hosts.Hosts) -> None:
    seen = {}
    with hosts.started(place):
        mesh = make_mesh("data=4,tensor=2")
        groups = batch_sharding(mesh)
        seen["who"] = [hosts.index(), hosts.count(), hosts.is_writer(), jax.device_count(), jax.local_device_count()]
        seen["said"] = [hosts.exchange(f"{hosts.index()} {turn}".encode())[1].decode() for turn in range(3)]
        seen["gathered"] = hosts.gathered(np.full((2,), hosts.index() + 0.5, np.float32)).tolist()
        seen["writer"] = hosts.from_writer(lambda: {"made by": hosts.index()})
        seen["refused"] = [refused(index) for index in (2, 1, 0)]
        seen["held"] = [hosts.held_rows(groups, 8), hosts.held_rows(NamedSharding(mesh, PartitionSpec("tensor")), 8)]
        seen["scored"] = [
            hosts.scored_by(groups, 8).tolist(),
            hosts.scored_by(NamedSharding(mesh, PartitionSpec("tensor")), 8).tolist(),
        ]
        mine = np.full((8, 2), -1.0, np.float32)
        first, last = hosts.held_rows(groups, 8)
        mine[first:last] = np.arange(16, dtype=np.float32).reshape(8, 2)[first:last]
        array = hosts.put(mine, groups)
        seen["whole"] = hosts.whole({"x": array, "y": 3})["x"].tolist()
        seen["unwanted"] = hosts.whole([array], wanted=hosts.is_writer())[0] is None
        with hosts.quiet():
            print("printed")
        seen["waited"] = hosts.waited() >= 0
        print(json.dumps(seen))
        sys.stdout.flush()
        if hosts.index() == 1:
            raise ArithmeticError("not foreseen")
        hosts.exchange(b"never answered")


if __name__ == "__main__":
    main(tyro.cli(hosts.Hosts, args=[word.replace("--hosts.", "--") for word in sys.argv[1:]]))
