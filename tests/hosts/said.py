"""A task of SLURM says who it is and whom it hears; `test_scripts` runs this."""

from grpo_jax import hosts

if __name__ == "__main__":
    with hosts.started(hosts.Hosts(detect=True, timeout=60)):
        heard = [int(part) for part in hosts.exchange(str(hosts.index()).encode())]
        print(f"{hosts.index()} of {hosts.count()}: {heard}")
