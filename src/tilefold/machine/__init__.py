"""What hardware can do, as data: rates and capacities, and a roofline over plain counts. Knows nobody else here."""

from .description import Machine
from .detect import of, this_cpu
from .known import A100, B200, H100, H200, KNOWN, MI300X
from .roofline import Counts, Estimate, roofline

__all__ = [
    "A100", "B200", "H100", "H200", "KNOWN", "MI300X",
    "Counts", "Estimate", "Machine", "of", "roofline", "this_cpu",
]  # fmt: skip
