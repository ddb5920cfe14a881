CAUGHT_BY: dict[str, tuple[str, ...]] = {}
