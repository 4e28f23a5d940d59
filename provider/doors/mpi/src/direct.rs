//! Whether the MPI hands device memory to a transport that takes it: point-to-point messages without gaps
//! then go as they are.
//!
//! That has to be known for certain, since an MPI that copies by the CPU crashes. It is known of Open MPI
//! where its PML is `cm` and its MTL `ofi`, which look at no byte of such a message, and where libfabric has
//! no provider but strait. Everything else takes mirrors. MPICH is not among them: it copies messages of a
//! process to itself by the CPU.

use std::sync::OnceLock;

use loaded::Object;

use crate::abi::{Abi, Family};
use crate::library::library;

/// Bytes of a component's description in which its names are: `mca_base_component_t` of Open MPI 4 and 5.
const DESCRIPTION: usize = 200;

/// Whether it does. Known once the MPI has chosen, in MPI_Init: no message is sent before.
pub fn is_possible(abi: &Abi) -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    abi.family == Family::OpenMpi && *POSSIBLE.get_or_init(|| is_only_strait() && is_cm_over_ofi())
}

/// FI_PROVIDER names the only provider that libfabric offers a program.
fn is_only_strait() -> bool {
    std::env::var("FI_PROVIDER").is_ok_and(|name| name == "strait") && has_strait()
}

fn has_strait() -> bool {
    Object::all_defining(c"fi_prov_ini").iter().any(|(_, path)| path.to_string_lossy().contains("strait"))
}

fn is_cm_over_ofi() -> bool {
    let Some(library) = library() else { return false };
    let pml = library.address(c"mca_pml_base_selected_component");
    let mtl = library.address(c"ompi_mtl_base_selected_component");
    if pml == 0 || mtl == 0 {
        return false;
    }
    // SAFETY: objects of Open MPI's: a description, and a pointer to one, or NULL.
    unsafe {
        let mtl = (mtl as *const usize).read();
        mtl != 0 && names(pml, b"cm") && names(mtl, b"ofi")
    }
}

/// Whether the description at that address has the name, with nothing around it.
///
/// # Safety
/// It is one.
unsafe fn names(at: usize, name: &[u8]) -> bool {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, DESCRIPTION) };
    has_name(bytes, name)
}

fn has_name(bytes: &[u8], name: &[u8]) -> bool {
    bytes.split(|byte| *byte == 0).any(|text| text == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_between_zeros() {
        let of = |text: &[u8]| has_name(text, b"cm");
        assert!(of(b"\x02\x01pml\0\0\0cm\0\0ob1") && of(b"cm\0"));
        assert!(!of(b"pml\0ob1\0cmx\0xcm\0"));
    }
}
