"""Which gradient an objective follows, computed exactly on policies small enough to list all their completions."""
