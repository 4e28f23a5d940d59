//! Link arguments of the plugin.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // UCX keeps pointers into it, also after it has closed what it loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
