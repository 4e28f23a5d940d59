# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The libfabric provider and the UCX transport strait, as files of this package."""
import os

_HERE = os.path.dirname(os.path.abspath(__file__))

#: The directory for FI_PROVIDER_PATH.
provider_path = os.path.join(_HERE, "lib", "libfabric")
#: The directory for UCX_PLUGIN_PATH.
plugin_path = os.path.join(_HERE, "lib", "strait", "ucx")
#: The library of include/strait.h, strait_p2pmem.h and strait_storage.h.
library = os.path.join(_HERE, "lib", "libstrait.so.0")
#: The library of include/strait_xpu.h.
xpu_library = os.path.join(_HERE, "lib", "libstrait_xpu.so.0")
#: The library of include/strait_rpipe.h.
rpipe_library = os.path.join(_HERE, "lib", "libstrait_rpipe.so.0")
#: The library to preload before an MPI.
mpi_library = os.path.join(_HERE, "lib", "strait", "libstrait_mpi.so.0")
#: The directory of strait.h and the other headers.
include = os.path.join(_HERE, "include")
#: The command.
command = os.path.join(_HERE, "bin", "strait")

_MPI = {
    "mpich": {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"},
    "intel": {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "strait"},
    "openmpi": {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi"},
}


def settings(mpi=None):
    """What turns the provider on, as a dictionary of environment variables; for one MPI library, or for all of them."""
    if mpi is not None and mpi not in _MPI:
        raise ValueError("mpi is one of {}, not {!r}".format(", ".join(sorted(_MPI)), mpi))
    found = {"FI_PROVIDER": "strait", "FI_PROVIDER_PATH": provider_path}
    for name, variables in sorted(_MPI.items()):
        if mpi in (None, name):
            found.update(variables)
    return found
