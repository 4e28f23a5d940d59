//! Link arguments of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libstrait_mpi.so.0");
    // The MPI keeps pointers to its functions after a dlclose(3).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
