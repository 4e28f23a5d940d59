//! Link arguments of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name by which programs need it, and by which the provider finds it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libstrait.so.0");
    // The provider holds on to its table.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
