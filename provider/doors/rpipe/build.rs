//! Link arguments of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libstrait_rpipe.so.0");
    // Its threads and exit handlers outlive a dlclose(3).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
