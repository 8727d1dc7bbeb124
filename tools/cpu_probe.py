"""Does bfloat16 work on this processor? Prints a line for make to include.

Some virtual machines advertise AMX and then kill the process that uses it. oneDNN can be told to
leave it alone, but only before torch starts: the question is asked once, in a second process.
"""

import os
import subprocess
import sys

VARIABLE, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
QUESTION = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def needed() -> dict[str, str]:
    """Environment variables without which bfloat16 would kill this process."""
    if VARIABLE in os.environ:
        return {}
    died = subprocess.run([sys.executable, "-c", QUESTION], capture_output=True).returncode < 0
    return {VARIABLE: WITHOUT_AMX} if died else {}


if __name__ == "__main__":
    for name, value in needed().items():
        print(f"export {name} := {value}")
