"""For a process that only imports: what is imported is no garbage, and looking for some takes a fifth of it."""

import gc

gc.disable()
