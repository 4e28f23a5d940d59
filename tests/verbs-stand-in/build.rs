//! The name under which libibverbs is known to the linker.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
}
